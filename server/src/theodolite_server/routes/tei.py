"""The dialect of text-embeddings-inference: /embed, /rerank with texts, /similarity, /tokenize, /decode, /info, /."""

from __future__ import annotations

from typing import Any

from aiohttp import web

import theodolite
from theodolite import sentence_transformers
from theodolite.errors import RequestError
from theodolite.values import Embeddings, Task
from theodolite_server import jsons
from theodolite_server.errors import Empty
from theodolite_server.models import Served
from theodolite_server.routes import ops
from theodolite_server.routes import rerank as jina
from theodolite_server.routes.common import (
    Context,
    Route,
    answer,
    check_ids,
    context,
    cut_headers,
    first,
    loaded,
    raw,
)
from theodolite_server.routes.embeddings import as_list, vectors
from theodolite_server.schema import (
    RerankRequest,
    TeiDecodeRequest,
    TeiEmbedRequest,
    TeiOptions,
    TeiRerankRequest,
    TeiSimilarityRequest,
    TeiTokenizeRequest,
)
from theodolite_server.service import THREADS, Cut

EMPTY = "`inputs` cannot be empty"


async def root(request: web.Request) -> web.StreamResponse:
    """The route that the body asks for: a query is ranked, sentences are compared, anything else is embedded."""
    body = await raw(request)
    keys = jsons.decode(body, dict)
    if keys.get("query") is not None:
        return await rerank(request, body)
    if isinstance(keys.get("inputs"), dict):
        return await _similarity(request, jsons.decode(body, TeiSimilarityRequest))
    return await _embed(request, jsons.decode(body, TeiEmbedRequest))


async def embed(request: web.Request) -> web.StreamResponse:
    """Vectors, as a bare array of arrays."""
    return await _embed(request, jsons.decode(await raw(request), TeiEmbedRequest))


async def _embed(request: web.Request, wanted: TeiEmbedRequest) -> web.StreamResponse:
    if wanted.inputs is None:
        raise RequestError('"inputs" must be provided')
    here = context(request)
    served = await loaded(here, Task.EMBED)
    served.engine.check(wanted.dimensions, None)
    made = await _vectors(here, served, as_list(wanted.inputs, "inputs"), wanted, wanted.dimensions, wanted.normalize)
    return await answer(request, lambda: [vector.tolist() for vector in made.vectors], _headers(made))


async def _vectors(
    here: Context,
    served: Served,
    values: list[Any],
    options: TeiOptions,
    dimensions: int | None = None,
    normalize: bool | None = None,
) -> Embeddings:
    if not values or any(value in ("", []) for value in values):
        raise Empty(EMPTY)
    return await vectors(
        here,
        served,
        values,
        prompt_name=options.prompt_name,
        dimensions=dimensions,
        embd_normalize=-1 if normalize is False else None,
        cut=cutting(options.truncate, options.truncation_direction),
    )


def _prompt(served: Served, name: str | None) -> str:
    return "" if name is None else sentence_transformers.prompt(served.checkpoint, name)


def cutting(truncate: bool | None, direction: str | None) -> Cut:
    """What happens to inputs that are too long."""
    side = (direction or "right").lower()
    if side not in ("left", "right"):
        raise RequestError(f"truncation_direction must be 'Left' or 'Right', got {direction!r}")
    return "refuse" if truncate is False else "left" if side == "left" else "right"


def _headers(made: Embeddings) -> dict[str, str]:
    return {"x-compute-type": "mlx", "x-compute-tokens": str(made.prompt_tokens), **cut_headers(made.truncated)}


async def rerank(request: web.Request, body: bytes) -> web.StreamResponse:
    """Scores of texts for a query, as a bare array, most relevant first."""
    wanted = jsons.decode(body, TeiRerankRequest)
    if not wanted.texts:
        raise Empty("`texts` cannot be empty")
    texts = wanted.texts
    if cutting(wanted.truncate, wanted.truncation_direction) == "left":
        raise RequestError("truncation_direction Left is not served for pairs: the longer side is cut at its end")
    asked = RerankRequest(
        query=wanted.query,
        documents=texts,
        top_n=wanted.top_n,
        raw_scores=wanted.raw_scores,
        truncate=wanted.truncate,
    )
    _, scores = await jina.scored(context(request), asked)
    results = [
        {"index": i, "score": float(scores.scores[i])} | ({"text": texts[i]} if wanted.return_text else {})
        for i in jina.order(scores, wanted.top_n)
    ]
    return await answer(request, lambda: results, cut_headers(scores.truncated))


async def similarity(request: web.Request) -> web.StreamResponse:
    """How alike one sentence and others are: cosine, or MaxSim for multi-vector models."""
    return await _similarity(request, jsons.decode(await raw(request), TeiSimilarityRequest))


async def _similarity(request: web.Request, wanted: TeiSimilarityRequest) -> web.StreamResponse:
    if wanted.inputs is None:
        raise RequestError('"inputs" must be provided')
    if not wanted.inputs.sentences:
        raise Empty("`inputs.sentences` cannot be empty")
    here = context(request)
    served = await loaded(here, Task.EMBED)
    values = [wanted.inputs.source_sentence, *wanted.inputs.sentences]
    made = await _vectors(here, served, values, wanted.parameters or TeiOptions())
    return await answer(
        request, lambda: theodolite.similarity(made.vectors[:1], made.vectors[1:])[0].tolist(), _headers(made)
    )


async def tokenize(request: web.Request, body: bytes) -> web.StreamResponse:
    """Tokens with their spelling and their place in the text."""
    wanted = jsons.decode(body, TeiTokenizeRequest)
    values = [wanted.inputs] if isinstance(wanted.inputs, str) else wanted.inputs
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise RequestError('"inputs" must be a string or a list of strings')
    if not values:
        raise Empty(EMPTY)
    here = context(request)
    served = await first(here)
    backend, before = served.engine.tokenizer.backend, _prompt(served, wanted.prompt_name)
    special = wanted.add_special_tokens is not False

    def make() -> list[list[dict[str, Any]]]:
        texts = [before + value for value in values]
        encoded = backend.encode_batch(texts, add_special_tokens=special)
        return [_tokens(text, encoding) for text, encoding in zip(texts, encoded, strict=True)]

    return await answer(request, make)


def _tokens(text: str, encoding: Any) -> list[dict[str, Any]]:
    tokens = []
    parts = zip(encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True)
    for token, spelled, special, (start, stop) in parts:
        entry = {"id": token, "text": spelled if special else text[start:stop], "special": bool(special)}
        tokens.append(entry if special else entry | {"start": start, "stop": stop})
    return tokens


async def decode(request: web.Request) -> web.StreamResponse:
    """Texts of token ids."""
    wanted = jsons.decode(await raw(request), TeiDecodeRequest)
    rows = as_list(wanted.ids, "ids") if wanted.ids else []
    if not rows:
        raise Empty("`ids` cannot be empty")
    if not all(isinstance(row, list) for row in rows):
        raise RequestError('"ids" must be a list of token ids or a list of such lists')
    tokenizer = (await first(context(request))).engine.tokenizer
    check_ids(rows, tokenizer)
    skip = wanted.skip_special_tokens is not False
    return await answer(request, lambda: tokenizer.backend.decode_batch(rows, skip_special_tokens=skip))


async def info(request: web.Request) -> web.Response:
    """The first model, in TEI's words."""
    here = context(request)
    served = await first(here)
    engine = served.engine
    if served.task is Task.EMBED:
        kind: dict[str, Any] = {"embedding": {"pooling": engine.pooling.value}}
    else:
        kind = {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}
    return jsons.response(
        {
            "model_id": served.checkpoint.name or served.id,
            "model_dtype": str(engine.checkpoint.config.get("torch_dtype") or "float32"),
            "model_type": kind,
            "max_concurrent_requests": here.config.embedding_queue_depth,
            "max_input_length": engine.max_length,
            "max_batch_tokens": here.config.max_batch_tokens,
            "auto_truncate": True,
            "tokenization_workers": THREADS,
            "version": ops.version(),
        }
    )


ROUTES = [
    Route("POST", "/", root, "What the body asks for: embed, rank or compare.", "tei", TeiEmbedRequest),
    Route("POST", "/embed", embed, "Vectors as a bare array.", "tei", TeiEmbedRequest),
    Route("POST", "/similarity", similarity, "One sentence against others.", "tei", TeiSimilarityRequest),
    Route("POST", "/decode", decode, "Texts of token ids.", "tei", TeiDecodeRequest),
    Route("GET", "/info", info, "The first model.", "tei"),
]
