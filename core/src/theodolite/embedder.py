"""Vectors for texts, token ids and images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from theodolite import limits, sentence_transformers
from theodolite.engine import Engine, Progress, check_whole
from theodolite.errors import RequestError
from theodolite.values import Embeddings, ImageItem, Item, Row, TextItem, TokenItem

if TYPE_CHECKING:
    from PIL.Image import Image

EPSILON = 1e-9
INT16_SCALE = 32760.0
"""llama-server scales the largest component to this under ``--embd-normalize 0``."""

QUERY = ("query", "search_query", "retrieval-query")
DOCUMENT = ("document", "passage", "search_document", "retrieval-document")
INPUT_TYPES = {**dict.fromkeys(QUERY, QUERY), **dict.fromkeys(DOCUMENT, DOCUMENT)}
"""What clients call a query and a document, and the names that checkpoints give their prompts for them."""

Input = str | Sequence[int] | Item | Any


class Embedder(Engine):
    """A loaded embedding checkpoint. Make one with `theodolite.load`."""

    @property
    def dim(self) -> int:
        """Width of a vector (of each row, for multi-vector models)."""
        return self.profile.dim

    @property
    def multi_vector(self) -> bool:
        """Whether an input gives one vector per token, to be compared by `theodolite.maxsim`."""
        return self.profile.multi_vector

    @property
    def prompts(self) -> dict[str, str]:
        """The checkpoint's own prompts by name."""
        return sentence_transformers.prompts(self.checkpoint)

    def embed(
        self,
        inputs: Sequence[Input],
        *,
        instruction: str | None = None,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        embd_normalize: int | None = None,
        batch_size: int | None = None,
        progress: Progress | None = None,
    ) -> Embeddings:
        """Embed texts, token-id lists or images (PIL), in order.

        :param instruction: used by families whose prompt has a place for one, ignored by the others.
        :param prompt_name: one of `prompts`, put before every text, or used as the instruction by chat templates.
        :param dimensions: keep the first components only, and normalize again.
        :param embd_normalize: -1 none, 0 largest component to 32760, 1 taxicab, 2 euclidean, above that the p-norm.
        :returns: vectors ``[N, D]`` float32, or a list of ``[L, K]`` for multi-vector models.
        :raises RequestError: for an input or argument that cannot be served.
        :raises InvalidResult: if the model gives a number that is not finite.
        """
        if isinstance(inputs, str):
            raise RequestError("inputs should be a list of texts, not one text")
        if not (given := listed("inputs", inputs)):
            raise RequestError("inputs should not be empty")
        self.check(dimensions, embd_normalize)
        check_whole("batch_size", batch_size)
        items, instruction = self.prompted([as_item(value) for value in given], prompt_name, instruction)
        rows = self.encode(items, instruction)
        vectors = self.run(rows, batch_size or self.profile.batch_size or limits.EMBED_BATCH, progress)
        return self.finish(rows, vectors, dimensions=dimensions, embd_normalize=embd_normalize)

    def embed_query(self, text: str, *, instruction: str | None = None, **options: Any) -> np.ndarray:
        """Embed one search query with the checkpoint's own ``query`` prompt, where it has one."""
        name = self.prompt_for("query", instruction)
        vector: np.ndarray = self.embed([text], prompt_name=name, instruction=instruction, **options).vectors[0]
        return vector

    def embed_document(self, text: str, *, instruction: str | None = None, **options: Any) -> np.ndarray:
        """Embed one document with the checkpoint's own ``document`` prompt, where it has one."""
        name = self.prompt_for("document", instruction)
        vector: np.ndarray = self.embed([text], prompt_name=name, instruction=instruction, **options).vectors[0]
        return vector

    def prompt_for(self, input_type: str, instruction: str | None = None) -> str | None:
        """The name of the checkpoint's own prompt for what an input is, None where it has none.

        :param input_type: ``query``, ``document``, as clients spell them, or a prompt's name in any case.
        :param instruction: what the user gives; where the family has a place for it, it stands instead of the prompt.
        """
        if instruction and self.profile.instruction:
            return None
        wanted = INPUT_TYPES.get(input_type.lower(), (input_type.lower(),))
        return next((name for kind in wanted for name in self.prompts if name.lower() == kind), None)

    def prompted(
        self, items: Sequence[Item], prompt_name: str | None, instruction: str | None
    ) -> tuple[list[Item], str | None]:
        """Items and instruction with one of the checkpoint's prompts: before every text, or as the instruction.

        :raises RequestError: if the checkpoint has no prompt of that name, or both would be put before a text.
        """
        if prompt_name is None:
            return list(items), instruction
        before = sentence_transformers.prompt(self.checkpoint, prompt_name)
        if self.profile.named_prompts == "instruction":
            return list(items), instruction or before
        if instruction and self.profile.instruction:
            raise RequestError(f"an instruction and the prompt {prompt_name!r} both stand before a text; give one")
        return [TextItem(before + item.text) if isinstance(item, TextItem) else item for item in items], instruction

    def check(self, dimensions: int | None, embd_normalize: int | None) -> None:
        """Refuse arguments that no vector of this model can satisfy.

        :raises RequestError: naming the argument and its range.
        """
        check_whole("dimensions", dimensions, most=self.dim, where=" for this model")
        check_whole("embd_normalize", embd_normalize, least=-1, most=limits.LARGEST_NORM)

    def finish(
        self,
        rows: Sequence[Row],
        vectors: Sequence[np.ndarray],
        *,
        dimensions: int | None = None,
        embd_normalize: int | None = None,
    ) -> Embeddings:
        """Normalize, truncate to ``dimensions`` and count. Needs no model; any thread."""
        norm = embd_normalize if embd_normalize is not None else (2 if self.profile.normalize else -1)
        parts = vectors if self.multi_vector else [np.stack(vectors)]  # [N, D]
        done = [normalize(part if dimensions is None else part[..., :dimensions], norm) for part in parts]
        tokens, cut = sum(row.prompt_tokens for row in rows), sum(row.truncated for row in rows)
        return Embeddings(done if self.multi_vector else done[0], tokens, cut)


def listed(name: str, values: Any) -> list[Any]:
    """A list, a tuple, an array of NumPy's or whatever else holds values in an order.

    :raises RequestError: for one value, or for several in no order.
    """
    if isinstance(values, (str, bytes, bytearray, memoryview, Mapping, Set)) or not hasattr(values, "__iter__"):
        raise RequestError(f"{name} should be a list, not {type(values).__name__}")
    if isinstance(values, np.ndarray) and values.ndim == 0:
        raise RequestError(f"{name} should be a list, not one value")
    return list(values)


def as_item(value: Input) -> Item:
    """An input of the Python API as an item: a str, a sequence of token ids, a PIL image, or an item already."""
    if isinstance(value, str):
        return TextItem(value)
    if isinstance(value, ImageItem):
        return value if getattr(value.image, "mode", None) == "RGB" else replace(value, image=_rgb(value.image))
    if isinstance(value, (TextItem, TokenItem)):
        return value
    if hasattr(value, "getbands"):  # a PIL image, without importing PIL for texts
        return ImageItem(_rgb(value))
    if isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (bytes, bytearray, memoryview)):
        ids = listed("a list of token ids", value)
        if ids and all(isinstance(i, (int, np.integer)) and not isinstance(i, bool) for i in ids):
            return TokenItem(tuple(int(i) for i in ids))
    raise RequestError(f"an input should be a text, a list of token ids or an image, not {type(value).__name__}")


def _rgb(image: Any) -> Image:
    from theodolite import images

    try:
        return images.to_rgb(image)
    except OSError as error:  # Pillow decodes at first use
        raise RequestError(f"the image cannot be decoded: {error}") from None


def normalize(vectors: np.ndarray, p: int) -> np.ndarray:
    """Scale the last axis: -1 not at all, 0 its largest component to 32760, else to p-norm 1. Zeros stay zeros."""
    if p < 0:
        return vectors
    if p == 2:
        size = np.sqrt(np.einsum("...d,...d->...", vectors, vectors, dtype=np.float64))[..., None]
        return (vectors / np.maximum(size, EPSILON)).astype(np.float32)
    wide = vectors.astype(np.float64)
    if p == 0:
        size = np.abs(wide).max(axis=-1, keepdims=True) / INT16_SCALE
    else:
        largest = np.maximum(np.abs(wide).max(axis=-1, keepdims=True), np.finfo(np.float64).tiny)
        size = largest * ((np.abs(wide) / largest) ** p).sum(axis=-1, keepdims=True) ** (1 / p)
    return (wide / np.maximum(size, EPSILON)).astype(np.float32)
