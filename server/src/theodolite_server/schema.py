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
    prompt_name: Annotated[str | None, Meta(description="One of the checkpoint's own prompts.")] = None
    input_type: Annotated[str | None, Meta(description="query or document: the checkpoint's prompt for it.")] = None
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


class TeiOptions(Struct):
    """What TEI's embedding routes have in common."""

    truncate: Annotated[bool | None, Meta(description="false refuses an input that is too long.")] = None
    truncation_direction: Annotated[str | None, Meta(description="Right (the default) or Left.")] = None
    prompt_name: Annotated[str | None, Meta(description="One of the checkpoint's prompts.")] = None


class TeiEmbedRequest(TeiOptions):
    """POST /embed, and POST / with inputs."""

    inputs: Annotated[Any, _shaped(INPUT, "A text, texts, or token ids.")] = None
    normalize: bool | None = None
    dimensions: int | None = None


class TeiRerankRequest(Struct):
    """POST /rerank with texts, and POST / with a query."""

    query: str | None = None
    texts: list[str] | None = None
    raw_scores: bool | None = None
    return_text: bool | None = None
    top_n: int | None = None
    truncate: bool | None = None
    truncation_direction: str | None = None


class Sentences(Struct):
    """One sentence, and those it is compared with."""

    source_sentence: str
    sentences: list[str]


class TeiSimilarityRequest(Struct):
    """POST /similarity."""

    inputs: Sentences | None = None
    parameters: TeiOptions | None = None


class TeiTokenizeRequest(Struct):
    """POST /tokenize with inputs."""

    inputs: Annotated[Any, _shaped(TEXT_OR_TEXTS, "A text or texts.")] = None
    add_special_tokens: bool | None = None
    prompt_name: str | None = None


class TeiDecodeRequest(Struct):
    """POST /decode."""

    ids: Annotated[Any, _shaped({"anyOf": [IDS, {"type": "array", "items": IDS}]}, "Token ids.")] = None
    skip_special_tokens: bool | None = None


class LlamaTokenizeRequest(Struct):
    """POST /tokenize with content."""

    content: Annotated[Any, _shaped({"anyOf": [{"type": "string"}, {"type": "array"}]}, "Text, or text and ids.")] = (
        None
    )
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class LlamaDetokenizeRequest(Struct):
    """POST /detokenize."""

    tokens: list[int] | None = None


class CohereRerankRequest(RerankRequest):
    """POST /v2/rerank."""

    max_tokens_per_doc: Annotated[int | None, Meta(description="Ignored: the pair is cut to max_length.")] = None


class CohereEmbedRequest(Struct):
    """POST /v2/embed, /v1/embed."""

    model: str | None = None
    texts: list[str] | None = None
    images: Annotated[list[str] | None, Meta(description="Data URIs or URLs.")] = None
    inputs: Annotated[list[dict[str, Any]] | None, Meta(description='Objects with "content": typed parts.')] = None
    input_type: Annotated[str | None, Meta(description="The checkpoint's prompt for it, if it has one.")] = None
    embedding_types: Annotated[list[str] | None, Meta(description="float, base64.")] = None
    output_dimension: int | None = None
    truncate: Annotated[str | None, Meta(description="END (the default), START or NONE.")] = None


class OllamaEmbedRequest(Struct):
    """POST /api/embed."""

    model: str | None = None
    input: Annotated[Any, _shaped(TEXT_OR_TEXTS, "A text or texts.")] = None
    truncate: bool | None = None
    dimensions: int | None = None
