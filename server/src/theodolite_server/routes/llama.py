"""The dialect of llama-server: the native /embedding, /tokenize, /detokenize."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from theodolite.errors import RequestError
from theodolite.values import Task
from theodolite_server import jsons
from theodolite_server.routes import tei
from theodolite_server.routes.common import (
    DIALECT,
    Route,
    answer,
    check_ids,
    context,
    cut_headers,
    first,
    loaded,
    parse,
    raw,
)
from theodolite_server.routes.embeddings import as_list, vectors
from theodolite_server.schema import EmbeddingsRequest, LlamaDetokenizeRequest, LlamaTokenizeRequest


async def embedding(request: web.Request) -> web.StreamResponse:
    """Vectors as a bare array of ``{index, embedding: [[...]]}``."""
    here, wanted = context(request), await parse(request, EmbeddingsRequest)
    given = wanted.input if wanted.content is None else wanted.content
    if given is None:
        raise RequestError('"content" or "input" must be provided')
    values = as_list(given)
    served = await loaded(here, Task.EMBED, wanted.model)
    served.engine.check(wanted.dimensions, wanted.embd_normalize)
    if not values:
        raise RequestError("input is an empty token list")
    made = await vectors(
        here,
        served,
        values,
        instruction=wanted.instruction,
        dimensions=wanted.dimensions,
        embd_normalize=wanted.embd_normalize,
        cut="refuse" if wanted.truncate is False else "right",
    )

    def body() -> list[dict[str, Any]]:
        rows = (vector if vector.ndim == 2 else vector[None] for vector in made.vectors)
        return [{"index": i, "embedding": row.tolist()} for i, row in enumerate(rows)]

    return await answer(request, body, cut_headers(made.truncated))


async def tokenize(request: web.Request) -> web.StreamResponse:
    """Token ids of ``content``; with ``inputs`` instead, TEI's route of the same name."""
    body = await raw(request)
    if jsons.decode(body, dict).get("inputs") is not None:
        request[DIALECT] = "tei"
        return await tei.tokenize(request, body)
    wanted = jsons.decode(body, LlamaTokenizeRequest)
    tokenizer = (await first(context(request))).engine.tokenizer
    parts = wanted.content if isinstance(wanted.content, list) else [wanted.content or ""]
    if not all(type(part) in (str, int) for part in parts):
        raise RequestError('"content" must be a string, or a list of strings and token ids')
    check_ids([[part for part in parts if isinstance(part, int)]], tokenizer)
    literal = wanted.parse_special is False

    def make() -> dict[str, Any]:
        ids: list[int] = []
        for part in parts:
            ids += [part] if isinstance(part, int) else tokenizer.encode(part, special_tokens=False, literal=literal)
        if wanted.add_special:
            ids = [*tokenizer.leading, *ids, *tokenizer.trailing]
        return {"tokens": [_piece(tokenizer, i) for i in ids] if wanted.with_pieces else ids}

    return await answer(request, make)


def _piece(tokenizer: Any, token: int) -> dict[str, Any]:
    text = tokenizer.backend.decode([token], skip_special_tokens=False)
    if "\ufffd" not in text:
        return {"id": token, "piece": text}
    spelled = tokenizer.token_of(token) or ""
    single = [_BYTES[character] for character in spelled if character in _BYTES]
    return {"id": token, "piece": single if len(single) == len(spelled) else list(text.encode())}


def _byte_characters() -> dict[str, int]:
    """How byte-level tokenizers spell each byte: printable ones as they are, the others from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_characters()


async def detokenize(request: web.Request) -> web.StreamResponse:
    """The text of token ids, special tokens kept."""
    wanted = await parse(request, LlamaDetokenizeRequest)
    tokenizer, tokens = (await first(context(request))).engine.tokenizer, wanted.tokens or []
    check_ids([tokens], tokenizer)
    return await answer(request, lambda: {"content": tokenizer.backend.decode(tokens, skip_special_tokens=False)})


ROUTES = [
    Route("POST", "/embedding", embedding, "Vectors as llama-server answers them.", "openai", EmbeddingsRequest),
    Route("POST", "/tokenize", tokenize, "Token ids, or with inputs TEI's tokens.", "openai", LlamaTokenizeRequest),
    Route("POST", "/detokenize", detokenize, "The text of token ids.", "openai", LlamaDetokenizeRequest),
]
