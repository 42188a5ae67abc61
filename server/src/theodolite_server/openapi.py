"""The OpenAPI document, made from the routes' tables and the types of their bodies, and a page that shows it."""

from __future__ import annotations

import html
import inspect
import re
from typing import Any

import msgspec

from theodolite_server.routes.common import Route

SCHEMAS = "#/components/schemas/{name}"
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "code": {"type": "integer"},
            },
        }
    },
}
ERRORS: dict[str, dict[str, Any]] = {
    "openai": ERROR,
    "tei": {
        "type": "object",
        "required": ["error", "error_type"],
        "properties": {"error": {"type": "string"}, "error_type": {"type": "string"}},
    },
    "cohere": {"type": "object", "required": ["message"], "properties": {"message": {"type": "string"}}},
    "ollama": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
}
_PARAMETER = re.compile(r"\{(\w+)(?::[^}]*)?\}")


def document(routes: tuple[Route, ...], version: str) -> dict[str, Any]:
    """OpenAPI 3.1 of every route."""
    types = {kind for route in routes for kind in (route.body, route.answer) if kind is not None}
    _, schemas = msgspec.json.schema_components(sorted(types, key=lambda t: t.__name__), ref_template=SCHEMAS)
    schemas |= {_error(dialect): schema for dialect, schema in ERRORS.items()}
    paths: dict[str, Any] = {}
    for route in routes:
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Theodolite", "version": version, "description": "Embeddings and relevance scores."},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "The answer."}
    if route.answer is not None:
        good["content"] = {"application/json": {"schema": _ref(route.answer.__name__)}}
    bad = {"description": "What was wrong.", "content": {"application/json": {"schema": _ref(_error(route.dialect))}}}
    operation: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}_{route.path}").strip("_"),
        "summary": route.about,
        "description": inspect.getdoc(route.handler) or "",
        "tags": [route.dialect],
        "responses": {"200": good, "default": bad},
    }
    if names := _PARAMETER.findall(route.path):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _ref(route.body.__name__)}},
        }
    if not route.public:
        operation["security"] = [{"key": []}, {}]
    return operation


def _ref(name: str) -> dict[str, str]:
    return {"$ref": SCHEMAS.format(name=name)}


def _error(dialect: str) -> str:
    return f"{dialect.capitalize()}Error"


STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
code,pre{font-family:ui-monospace,monospace;font-size:.9em}
table{border-collapse:collapse;width:100%;margin:.5rem 0 1.5rem}
th,td{text-align:left;padding:.25rem .75rem .25rem 0;vertical-align:top;border-bottom:1px solid #8886}
h2{margin-top:2.5rem}h3{margin:1.25rem 0 .25rem}
"""


def page(found: dict[str, Any]) -> str:
    """The document as one HTML page without any script or outside asset."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>Theodolite: HTTP API</title><style>{STYLE}</style><h1>HTTP API</h1>",
        f"<p>Version {html.escape(found['info']['version'])}.",
        "<a href='/openapi.json'>OpenAPI document</a>. <a href='/'>Try it</a>.</p>",
    ]
    by_tag: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    for tag, operations in by_tag.items():
        parts.append(f"<h2>{html.escape(tag)}</h2>")
        for method, path, operation in operations:
            parts.append(
                f"<h3><code>{method} {html.escape(path)}</code></h3><p>{html.escape(operation['summary'])}</p>"
            )
            if "requestBody" in operation:
                name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[-1]
                parts.append(_fields(found["components"]["schemas"][name]))
    return "".join(parts)


def _fields(schema: dict[str, Any]) -> str:
    rows = []
    for name, field in schema.get("properties", {}).items():
        kinds = [kind.get("type", "") for kind in field.get("anyOf", [field]) if kind.get("type") != "null"]
        kind = " or ".join(dict.fromkeys(kind for kind in kinds if kind)) or "any"
        about = html.escape(field.get("description", ""))
        rows.append(f"<tr><td><code>{html.escape(name)}</code><td>{html.escape(kind)}<td>{about}")
    return f"<table><tr><th scope=col>Field<th scope=col>Type<th scope=col>Meaning{''.join(rows)}</table>"
