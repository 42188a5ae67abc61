"""The dialect of Ollama: /api/embed, and /api/tags and /api/version that its clients ask first."""

from __future__ import annotations

import time
from typing import Any

from aiohttp import web

from theodolite.errors import RequestError
from theodolite.values import Task
from theodolite_server import jsons
from theodolite_server.routes import ops
from theodolite_server.routes.common import Route, answer, context, cut_headers, loaded, parse
from theodolite_server.routes.embeddings import vectors
from theodolite_server.schema import OllamaEmbedRequest

TAG = ":latest"


async def embed(request: web.Request) -> web.StreamResponse:
    """Vectors for texts."""
    start = time.perf_counter_ns()
    here, wanted = context(request), await parse(request, OllamaEmbedRequest)
    values = [wanted.input] if isinstance(wanted.input, str) else wanted.input
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise RequestError('"input" must be a string or a list of strings')
    served = await loaded(here, Task.EMBED, (wanted.model or "").removesuffix(TAG) or None)
    served.engine.check(wanted.dimensions, None)
    if not values:
        raise RequestError("input must not be empty")
    cut = "refuse" if wanted.truncate is False else "right"
    made = await vectors(here, served, values, dimensions=wanted.dimensions, cut=cut)

    def body() -> dict[str, Any]:
        return {
            "model": wanted.model or served.id,
            "embeddings": [vector.tolist() for vector in made.vectors],
            "total_duration": time.perf_counter_ns() - start,
            "load_duration": 0,
            "prompt_eval_count": made.prompt_tokens,
        }

    return await answer(request, body, cut_headers(made.truncated))


async def tags(request: web.Request) -> web.Response:
    """The served models."""
    served = context(request).models.served
    return jsons.response({"models": [{"name": s.id + TAG, "model": s.id + TAG} for s in served]})


async def version(request: web.Request) -> web.Response:
    """The server's version."""
    return jsons.response({"version": ops.version()})


ROUTES = [
    Route("POST", "/api/embed", embed, "Vectors for texts.", "ollama", OllamaEmbedRequest),
    Route("GET", "/api/tags", tags, "The served models.", "ollama"),
    Route("GET", "/api/version", version, "The server's version.", "ollama"),
]
