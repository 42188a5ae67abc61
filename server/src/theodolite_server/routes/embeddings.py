"""POST /v1/embeddings: the OpenAI dialect, in the specification's order of checks."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from theodolite.embedder import Embedder
from theodolite.errors import RequestError
from theodolite.values import Embeddings, Item, Task, TextItem, TokenItem
from theodolite_server import media
from theodolite_server.models import Served
from theodolite_server.routes.common import Context, Route, answer, context, cut_headers, loaded, packed, parse
from theodolite_server.schema import EmbeddingEntry, EmbeddingsRequest, EmbeddingsResponse, Usage

FORMATS = ("float", "base64")
SHAPE = '"{}" must be a string, a list of strings, a list of token ids, a list of such lists, or a list of parts'


async def embeddings(request: web.Request) -> web.Response:
    """Vectors for texts, token ids and images."""
    here, wanted = context(request), await parse(request, EmbeddingsRequest)
    given = wanted.content if wanted.input is None else wanted.input
    if given is None:
        raise RequestError('"input" must be provided')
    values = as_list(given)
    served = await loaded(here, Task.EMBED, wanted.model)
    as_base64 = encoding(wanted.encoding_format) == "base64"
    served.engine.check(wanted.dimensions, wanted.embd_normalize)
    if not values:
        raise RequestError("input is an empty token list")
    made = await vectors(
        here,
        served,
        values,
        prompt_name=wanted.prompt_name,
        input_type=wanted.input_type,
        instruction=wanted.instruction,
        dimensions=wanted.dimensions,
        embd_normalize=wanted.embd_normalize,
        cut="refuse" if wanted.truncate is False else "right",
    )
    return await answer(request, lambda: response(served, made, as_base64), cut_headers(made.truncated))


async def vectors(
    here: Context,
    served: Served,
    values: list[Any],
    *,
    prompt_name: str | None = None,
    input_type: str | None = None,
    instruction: str | None = None,
    **options: Any,
) -> Embeddings:
    """Check inputs one by one, then embed them: what the embedding routes of every dialect do."""
    items: list[Any] = [check(value, i, served) for i, value in enumerate(values)]
    embedder: Embedder = served.engine
    if prompt_name is None and input_type is not None:
        prompt_name = embedder.prompt_for(input_type, instruction)
    # an image that is not fetched yet passes through: prompts go before texts only
    items, used = embedder.prompted(items, prompt_name, instruction)

    async def load() -> list[Item]:
        return await with_images(here, items)

    return await here.service.embed(served, load, instruction=used, **options)


def as_list(given: Any, name: str = "input") -> list[Any]:
    """The inputs one by one: a text or one list of token ids is a list of one.

    :raises RequestError: for a value of none of the five shapes.
    """
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list):
        raise RequestError(SHAPE.format(name))
    if all(type(value) is str for value in given):
        return given
    if all(type(value) is int for value in given):
        return [given]
    if all(isinstance(value, list) for value in given):
        for i, ids in enumerate(given):
            if not all(type(value) is int for value in ids):
                raise RequestError(f"{name}[{i}] must be a list of token ids (whole numbers)")
        return given
    if all(isinstance(value, dict) for value in given):
        return given
    raise RequestError(SHAPE.format(name))


def encoding(name: str | None) -> str:
    """The encoding format; null and blank mean float."""
    chosen = (name or "").strip() or "float"
    if chosen not in FORMATS:
        raise RequestError(f"encoding_format {chosen!r} is not supported; it must be 'float' or 'base64'")
    return chosen


def check(value: Any, i: int, served: Served) -> Item | tuple[str, str, str]:
    """One input as an item; an image, which is not fetched yet, as its URL, where it stood, and a text beside it."""
    profile = served.engine.profile
    if isinstance(value, str):
        return text(value, i)
    if isinstance(value, list):
        if not value:
            raise RequestError(f"input[{i}] is an empty token list")
        for token in value:
            if token < 0:
                raise RequestError(f"input[{i}] contains the negative token id {token}")
            if token >= profile.vocab_size:
                raise RequestError(f"input[{i}] contains token id {token}, which is >= vocab_size {profile.vocab_size}")
        return TokenItem(tuple(value))
    match value.get("type"):
        case "text":
            if not isinstance(value.get("text"), str):
                raise RequestError(f'input[{i}] is a text part, so its "text" must be a string')
            return text(value["text"], i)
        case "image_url":
            url = media.url_of(value.get("image_url"), f"input[{i}].image_url")
            if not profile.images:
                raise RequestError(served.engine.refuse_image(f"input[{i}]"))
            beside = value.get("text")
            return url, f"input[{i}]", beside if isinstance(beside, str) else ""
        case kind:
            raise RequestError(f"input[{i}] has type {kind!r}; it must be 'text' or 'image_url'")


def text(value: str, i: int) -> TextItem:
    if not value:
        raise RequestError(f"input[{i}] is an empty string")
    return TextItem(value)


async def with_images(here: Context, items: list[Any]) -> list[Item]:
    """The items with their images read.

    :raises RequestError: for too many images, or one that cannot be read.
    """
    if sum(isinstance(item, tuple) for item in items) > media.MOST:
        raise RequestError(f"a request may hold at most {media.MOST} images")
    return [await here.media.load(*item) if isinstance(item, tuple) else item for item in items]


def response(served: Served, made: Embeddings, as_base64: bool) -> EmbeddingsResponse:
    """The OpenAI answer."""
    rows = []
    for i, vector in enumerate(made.vectors):
        shape = list(vector.shape) if as_base64 and vector.ndim == 2 else None
        rows.append(EmbeddingEntry(index=i, embedding=packed(vector) if as_base64 else vector.tolist(), shape=shape))
    return EmbeddingsResponse("list", rows, served.id, Usage(made.prompt_tokens, made.prompt_tokens))


ROUTES = [
    Route("POST", path, embeddings, "Vectors for texts, token ids and images.", "openai", EmbeddingsRequest,
          EmbeddingsResponse)
    for path in ("/v1/embeddings", "/embeddings")
]  # fmt: skip
