"""What people look at: the page at /, the documentation at /docs, and the OpenAPI document."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from aiohttp import web

from theodolite_server import jsons, openapi
from theodolite_server.routes import ops
from theodolite_server.routes.common import ROUTE_TABLE, Route

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


@cache
def _home() -> str:
    return (resources.files("theodolite_server") / "page.html").read_text(encoding="utf-8")


def _page(text: str) -> web.Response:
    return web.Response(text=text, content_type="text/html", charset="utf-8", headers=HEADERS)


def _document(request: web.Request) -> dict[str, Any]:
    return openapi.document(request.app[ROUTE_TABLE], ops.version())


async def home(request: web.Request) -> web.Response:
    """A page to try the server on."""
    return _page(_home())


async def docs(request: web.Request) -> web.Response:
    """The routes and their fields, for people."""
    return _page(openapi.page(_document(request)))


async def document(request: web.Request) -> web.Response:
    """The routes and their fields, for programs."""
    return jsons.response(_document(request))


ROUTES = [
    Route("GET", "/", home, "A page to try the server on.", public=True),
    Route("GET", "/docs", docs, "Every route and field, for people.", public=True),
    Route("GET", "/openapi.json", document, "The OpenAPI document.", public=True),
]
