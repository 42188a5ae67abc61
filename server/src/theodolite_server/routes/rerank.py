"""POST /v1/rerank and its aliases: the cohere and Jina dialects, in the specification's order of checks."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from theodolite.errors import RequestError
from theodolite.values import ImageItem, Item, Pair, Scores, Task, TextItem
from theodolite_server import jsons, media
from theodolite_server.models import Served
from theodolite_server.routes.common import DIALECT, Context, Route, answer, context, cut_headers, loaded, raw
from theodolite_server.schema import RerankEntry, RerankRequest, RerankResponse, Usage

Side = TextItem | tuple[str, str, str]
"""A text, or an image that is not fetched yet: its URL, where it stood, and the text beside it."""


async def rerank(request: web.Request) -> web.StreamResponse:
    """Relevance of documents for a query."""
    body = await raw(request)
    wanted = jsons.decode(body, RerankRequest)
    if wanted.documents is None and request.path == "/rerank" and _has_texts(body):
        from theodolite_server.routes import tei

        request[DIALECT] = "tei"
        return await tei.rerank(request, body)
    here = context(request)
    served, scores = await scored(here, wanted)
    as_object = here.config.rerank_documents == "object"
    return await answer(request, lambda: response(served, wanted, scores, as_object), cut_headers(scores.truncated))


def _has_texts(body: bytes) -> bool:
    found = jsons.decode(body, dict)
    return found.get("texts") is not None


async def scored(here: Context, wanted: RerankRequest) -> tuple[Served, Scores]:
    """Check a request and run it.

    :raises RequestError: in the specification's order: shapes, model, top_n, instruction, items.
    """
    if wanted.query is None:
        raise RequestError('"query" must be provided')
    if not isinstance(wanted.query, (str, dict)):
        raise RequestError('"query" must be a string')
    documents = wanted.documents
    if not isinstance(documents, list) or not documents or not all(isinstance(d, (str, dict)) for d in documents):
        raise RequestError('"documents" must be a non-empty string array')
    served = await loaded(here, Task.RERANK, wanted.model)
    if wanted.top_n is not None and wanted.top_n < 1:
        raise RequestError(f"top_n must be at least 1, got {wanted.top_n}")
    instruction = served.engine.instruction(wanted.instruction)
    query = check(wanted.query, "query", served)
    sides = [check(document, f"documents[{i}]", served) for i, document in enumerate(documents)]

    async def pairs() -> list[Item]:
        if sum(isinstance(side, tuple) for side in (query, *sides)) > media.MOST:
            raise RequestError(f"a request may hold at most {media.MOST} images")
        first = await load(here, query)
        return [Pair(first, await load(here, side)) for side in sides]

    scores = await here.service.rank(
        served,
        pairs,
        instruction=instruction,
        raw_scores=bool(wanted.raw_scores),
        cut="refuse" if wanted.truncate is False else "right",
    )
    return served, scores


def check(value: str | dict[str, Any], where: str, served: Served) -> Side:
    """A query or document: a text, an object with a text, an image, or both; image wins over image_url."""
    given = {"text": value} if isinstance(value, str) else value
    text = given.get("text") if given.get("text") is not None else ""
    image = given.get("image") if given.get("image") is not None else given.get("image_url")
    if not isinstance(text, str):
        raise RequestError(f"{where}.text must be a string")
    if image is not None:
        url = media.url_of(image, f"{where}.image")
        if not served.engine.profile.images:
            raise RequestError(served.engine.refuse_image(where))
        return url, where, text
    if not text.strip():
        raise RequestError(f"{where} is empty: it needs a text or an image")
    return TextItem(text)


async def load(here: Context, side: Side) -> TextItem | ImageItem:
    return await here.media.load(*side) if isinstance(side, tuple) else side


def order(scores: Scores, top_n: int | None) -> list[int]:
    """Indices of the documents that are answered, most relevant first, ties by ascending index."""
    return scores.ranking()[:top_n]


def echo(document: str | dict[str, Any], as_object: bool) -> Any:
    """The document as it was sent, or as the object that some clients insist on."""
    return {"text": document} if as_object and isinstance(document, str) else document


def response(served: Served, wanted: RerankRequest, scores: Scores, as_object: bool) -> RerankResponse:
    """The answer, with documents where they were asked for."""
    results = [
        RerankEntry(
            index=i,
            relevance_score=float(scores.scores[i]),
            document=echo(wanted.documents[i], as_object) if wanted.return_documents else None,
        )
        for i in order(scores, wanted.top_n)
    ]
    return RerankResponse("list", served.id, results, Usage(scores.prompt_tokens, scores.prompt_tokens))


ROUTES = [
    Route("POST", path, rerank, "Relevance of documents for a query.", "openai", RerankRequest, RerankResponse)
    for path in ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking")
]
