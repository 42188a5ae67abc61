"""Health, models, properties, metrics: what operators and clients ask about the server itself."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from aiohttp import web

from theodolite.errors import NotLoaded
from theodolite.values import Task
from theodolite_server import jsons
from theodolite_server.errors import Loading
from theodolite_server.models import Served
from theodolite_server.routes.common import Route, context

OWNER = "theodolite"
CAPABILITY = {Task.EMBED: "embedding", Task.RERANK: "rerank"}
CHAT = "chat model is not loaded: this server embeds and reranks; see /v1/embeddings and /v1/rerank"


def version() -> str:
    return metadata.version("theodolite-server")


async def health(request: web.Request) -> web.Response:
    """Readiness: 200 once every model of the command line is loaded."""
    if not context(request).models.ready:
        raise Loading("Loading model")
    return jsons.response({"status": "ok"})


async def live(request: web.Request) -> web.Response:
    """Liveness: 200 as long as the event loop turns."""
    return jsons.response({"status": "ok"})


async def models(request: web.Request) -> web.Response:
    """The served models, in OpenAI's form and in Ollama's."""
    served = context(request).models.served
    ollama = [{"name": s.id, "model": s.id, "capabilities": [CAPABILITY[s.task]]} for s in served]
    return jsons.response({"models": ollama, "object": "list", "data": [entry(s) for s in served]})


async def model(request: web.Request) -> web.Response:
    """One served model."""
    name = request.match_info["name"]
    for served in context(request).models.served:
        if name in served.names:
            return jsons.response(entry(served))
    raise web.HTTPNotFound


def entry(served: Served) -> dict[str, Any]:
    """One model as /v1/models lists it; what is known only after loading is absent until then."""
    meta: dict[str, Any] = {"family": None, **served.facts}
    if served.worker is not None:
        engine = served.engine
        meta |= {
            "family": engine.profile.family,
            "n_vocab": engine.profile.vocab_size,
            "n_ctx": engine.max_length,
            "n_ctx_train": engine.checkpoint.config.get("max_position_embeddings"),
            "n_embd": engine.profile.dim if served.task is Task.EMBED else None,
            "kind": engine.profile.kind,
        }
    return {
        "id": served.id,
        "aliases": list(served.aliases),
        "tags": [],
        "object": "model",
        "created": served.created,
        "owned_by": OWNER,
        "meta": {key: value for key, value in meta.items() if value is not None},
        "capabilities": [CAPABILITY[served.task]],
    }


async def props(request: web.Request) -> web.Response:
    """What was resolved, not what was asked for."""
    here = context(request)
    first = {task: next((s for s in here.models.served if s.task is task), None) for task in Task}
    main = first[Task.EMBED] or first[Task.RERANK]
    engine = main.engine if main is not None and main.worker is not None else None
    capabilities: dict[str, Any] = {"generation": False, "serving_mode": _mode(first)}
    if (embedder := first[Task.EMBED]) is not None:
        capabilities["embedding"] = embedding(embedder, here.config.embd_normalize)
    if (reranker := first[Task.RERANK]) is not None:
        kind = reranker.engine.profile.kind if reranker.worker is not None else None
        capabilities["reranking"] = {"model": reranker.id} | ({"kind": kind} if kind else {})
    tokenizer = engine.tokenizer if engine else None
    return jsons.response(
        {
            "default_generation_settings": {"params": {}, "n_ctx": engine.max_length if engine else 0},
            "total_slots": here.config.embedding_queue_depth,
            "model_alias": main.id if main else "",
            "model_path": main.asked if main else "",
            "model_ftype": str(engine.checkpoint.config.get("torch_dtype") or "") if engine else "",
            "modalities": {"vision": bool(engine and engine.profile.images), "audio": False},
            "endpoint_slots": False,
            "endpoint_props": False,
            "endpoint_metrics": True,
            "chat_template": "",
            "bos_token": _spelled(tokenizer, "leading"),
            "eos_token": _spelled(tokenizer, "trailing"),
            "build_info": f"theodolite-server {version()}",
            "is_sleeping": False,
            "capabilities": capabilities,
        }
    )


def _mode(first: dict[Task, Served | None]) -> str:
    return "+".join(CAPABILITY[task] for task, served in first.items() if served is not None)


def _spelled(tokenizer: Any, side: str) -> str:
    ids = getattr(tokenizer, side) if tokenizer is not None else ()
    return (tokenizer.token_of(ids[0]) or "") if ids else ""


def embedding(served: Served, norm: int | None) -> dict[str, Any]:
    """The embedder's resolved options."""
    if served.worker is None:
        return {"model": served.id}
    engine = served.engine
    checkpoint_norm = 2 if engine.profile.normalize else -1
    return {
        "model": served.id,
        "dim": engine.profile.dim,
        "pooling": engine.pooling.value,
        "embd_normalize": checkpoint_norm if norm is None else norm,
        "multi_vector": engine.profile.multi_vector,
        "max_length": engine.max_length,
    }


async def set_props(request: web.Request) -> web.Response:
    """Properties cannot be changed."""
    raise NotLoaded("properties are set by the command line only and cannot be changed on a running server")


async def chat(request: web.Request) -> web.Response:
    """Chat is not served here."""
    raise NotLoaded(CHAT)


async def metrics(request: web.Request) -> web.Response:
    """Prometheus' exposition format."""
    here = context(request)
    body = await here.service.off(here.metrics.text, here.models)
    return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


ROUTES = [
    Route("GET", "/health", health, "Readiness: 503 while loading.", public=True),
    Route("GET", "/v1/health", health, "Readiness: 503 while loading.", public=True),
    Route("GET", "/livez", live, "Liveness.", public=True),
    Route("GET", "/readyz", health, "Readiness: 503 while loading.", public=True),
    Route("GET", "/models", models, "The served models."),
    Route("GET", "/v1/models", models, "The served models."),
    Route("GET", "/v1/models/{name:.+}", model, "One served model."),
    Route("GET", "/props", props, "Resolved properties."),
    Route("POST", "/props", set_props, "Answers 501."),
    Route("GET", "/metrics", metrics, "Prometheus metrics."),
    *(
        Route("POST", path, chat, "Answers 501: chat is not served.")
        for path in ("/v1/chat/completions", "/chat/completions", "/v1/completions", "/completion", "/completions")
    ),
]
