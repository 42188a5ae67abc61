"""The dialect of cohere: /v2/rerank, /v2/embed, /v1/embed."""

from __future__ import annotations

import uuid
from typing import Any

from aiohttp import web

from theodolite.errors import RequestError
from theodolite.values import Embeddings, Task
from theodolite_server.routes import embeddings
from theodolite_server.routes import rerank as jina
from theodolite_server.routes.common import Route, answer, context, cut_headers, loaded, packed, parse
from theodolite_server.schema import CohereEmbedRequest, CohereRerankRequest
from theodolite_server.service import Cut

TYPES = ("float", "base64")
CUTS: dict[str, Cut] = {"END": "right", "START": "left", "NONE": "refuse"}


def _meta(version: str, units: dict[str, int]) -> dict[str, Any]:
    return {"api_version": {"version": version}, "billed_units": units}


async def rerank(request: web.Request) -> web.StreamResponse:
    """Relevance of documents for a query; a document is echoed as an object."""
    wanted = await parse(request, CohereRerankRequest)
    _, scores = await jina.scored(context(request), wanted)
    results = [
        {"index": i, "relevance_score": float(scores.scores[i])}
        | ({"document": jina.echo(wanted.documents[i], as_object=True)} if wanted.return_documents else {})
        for i in jina.order(scores, wanted.top_n)
    ]
    body = {"id": str(uuid.uuid4()), "results": results, "meta": _meta("2", {"search_units": 1})}
    return await answer(request, lambda: body, cut_headers(scores.truncated))


async def embed(request: web.Request) -> web.StreamResponse:
    """Vectors by type (v2), or as an array (v1 without types)."""
    here, wanted = context(request), await parse(request, CohereEmbedRequest)
    values = _values(wanted)
    served = await loaded(here, Task.EMBED, wanted.model)
    served.engine.check(wanted.output_dimension, None)
    types = wanted.embedding_types or ["float"]
    if unknown := [name for name in types if name not in TYPES]:
        raise RequestError(f"embedding_types {unknown[0]!r} is not supported (supported: {', '.join(TYPES)})")
    cut = CUTS.get((wanted.truncate or "END").upper())
    if cut is None:
        raise RequestError(f"truncate must be NONE, START or END, got {wanted.truncate!r}")
    made = await embeddings.vectors(
        here, served, values, input_type=wanted.input_type, dimensions=wanted.output_dimension, cut=cut
    )
    by_type = request.path.startswith("/v2") or wanted.embedding_types is not None
    version = "2" if request.path.startswith("/v2") else "1"

    def body() -> dict[str, Any]:
        return {
            "id": str(uuid.uuid4()),
            "embeddings": {name: _typed(made, name) for name in types} if by_type else _typed(made, "float"),
            "texts": [value for value in values if isinstance(value, str)],
            "response_type": "embeddings_by_type" if by_type else "embeddings_floats",
            "meta": _meta(version, {"input_tokens": made.prompt_tokens}),
        }

    return await answer(request, body, cut_headers(made.truncated))


def _typed(made: Embeddings, name: str) -> list[Any]:
    return [packed(vector) if name == "base64" else vector.tolist() for vector in made.vectors]


def _values(wanted: CohereEmbedRequest) -> list[Any]:
    given = [name for name in ("texts", "images", "inputs") if getattr(wanted, name)]
    if len(given) != 1:
        raise RequestError("exactly one of texts, images and inputs must be given, and not empty")
    if wanted.texts:
        return list(wanted.texts)
    if wanted.images:
        return [{"type": "image_url", "image_url": {"url": url}} for url in wanted.images]
    return [_joined(value, i) for i, value in enumerate(wanted.inputs or [])]


def _joined(value: dict[str, Any], i: int) -> Any:
    """The parts of one input as one: its texts, or its image with its texts beside it."""
    parts = value.get("content")
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
        raise RequestError(f'inputs[{i}].content must be a list of parts, each with a "type"')
    texts = [part["text"] for part in parts if part.get("type") == "text" and isinstance(part.get("text"), str)]
    images = [part for part in parts if part.get("type") == "image_url"]
    if len(texts) + len(images) != len(parts) or len(images) > 1:
        raise RequestError(f"inputs[{i}].content may hold texts and at most one image_url")
    text = "\n".join(texts)
    return {**images[0], "text": text} if images else text


ROUTES = [
    Route("POST", "/v2/rerank", rerank, "Relevance of documents.", "cohere", CohereRerankRequest),
    Route("POST", "/v2/embed", embed, "Vectors by type.", "cohere", CohereEmbedRequest),
    Route("POST", "/v1/embed", embed, "Vectors as an array, or by type.", "cohere", CohereEmbedRequest),
]
