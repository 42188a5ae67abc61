"""The request bodies. One type per route; the OpenAPI document is made from them. None is absent, in all of them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

TEXT_OR_TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
URL = {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"url": {"type": "string"}}}]}
PART = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "type": {"type": "string", "enum": ["text", "image_url"]},
        "text": {"type": "string"},
        "image_url": URL,
    },
}
INPUT = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        IDS,
        {"type": "array", "items": IDS},
        {"type": "array", "items": PART},
    ]
}
SIDE = {
    "anyOf": [
        {"type": "string"},
        {"type": "object", "properties": {"text": {"type": "string"}, "image": URL, "image_url": URL}},
    ]
}


def _shaped(schema: dict[str, Any], about: str) -> Meta:
    return Meta(description=about, extra_json_schema=schema)


Input = Annotated[Any, _shaped(INPUT, "A text, texts, token ids, lists of token ids, or typed parts.")]
Side = Annotated[Any, _shaped(SIDE, "A text, or an object with text, image or image_url.")]
Sides = Annotated[Any, _shaped({"type": "array", "items": SIDE, "minItems": 1}, "The documents, in any number.")]


class EmbeddingsRequest(Struct):
    """POST /v1/embeddings, /embeddings."""

    input: Input = None
    content: Annotated[Any, _shaped(INPUT, "llama-server's name for input.")] = None
    model: str | None = None
    encoding_format: Annotated[str | None, Meta(description="float (the default) or base64.")] = None
    dimensions: Annotated[int | None, Meta(description="Keep the first components and normalize again.")] = None
    instruction: Annotated[str | None, Meta(description="For families whose prompt has a place for one.")] = None
    embd_normalize: Annotated[int | None, Meta(description="-1 none, 0 int16, 1 taxicab, 2 euclidean, p-norm.")] = None
    truncate: Annotated[bool | None, Meta(description="false refuses an input that is too long.")] = None
    user: Annotated[Any, Meta(description="Ignored.")] = None


class RerankRequest(Struct):
    """POST /v1/rerank, /rerank, /v1/reranking, /reranking; also /v2/rerank."""

    query: Side = None
    documents: Sides = None
    model: str | None = None
    top_n: Annotated[int | None, Meta(description="Keep the best n, at least 1.")] = None
    return_documents: bool | None = None
    instruction: Annotated[str | None, Meta(description="Generative rerankers only.")] = None
    raw_scores: Annotated[bool | None, Meta(description="Logits instead of probabilities.")] = None
    truncate: Annotated[bool | None, Meta(description="false refuses a pair that is too long.")] = None
    user: Annotated[Any, Meta(description="Ignored.")] = None


class Usage(Struct):
    """Real tokens, special tokens included."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingEntry(Struct, omit_defaults=True, kw_only=True):
    """One vector (or one list of vectors), in the order of the inputs."""

    object: str = msgspec.field(default_factory=lambda: "embedding")
    index: int
    embedding: Any
    shape: list[int] | None = None
    """Multi-vector models in base64 mode: ``[tokens, width]``."""


class EmbeddingsResponse(Struct):
    """Answer of /v1/embeddings."""

    object: str
    data: list[EmbeddingEntry]
    model: str
    usage: Usage


class RerankEntry(Struct, omit_defaults=True, kw_only=True):
    """One document: where it stood, and how relevant it is."""

    index: int
    relevance_score: float
    document: Any = None


class RerankResponse(Struct):
    """Answer of /v1/rerank, most relevant first."""

    object: str
    model: str
    results: list[RerankEntry]
    usage: Usage
