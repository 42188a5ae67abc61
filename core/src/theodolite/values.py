"""The values that flow through the stages, in the order in which they appear.

``Checkpoint`` -> detect -> `Profile`; `Item` -> prompt -> `Prompt` -> tokenize -> `Row` -> pad -> `Batch` -> forward,
pool -> `Embeddings` | `Scores`. All are frozen; no stage reaches back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import mlx.core as mx
    from PIL.Image import Image


class Task(Enum):
    """What the checkpoint is loaded for."""

    EMBED = "embed"
    RERANK = "rerank"


class Fit(IntEnum):
    """How closely a family looked before it claimed a checkpoint; the highest fit is elected."""

    MODEL_TYPE = 10
    ARCHITECTURE = 20
    EXACT = 30
    """Looked at flags beyond the architecture's name, such as ``is_causal``."""
    OVERRIDE = 40
    """A third party replaces a stock family on purpose."""


class Pooling(Enum):
    """How the hidden states of a row become one vector."""

    CLS = "cls"
    MEAN = "mean"
    MAX = "max"
    LASTTOKEN = "lasttoken"


FLAGS = ("pooling_fixed", "normalize", "multi_vector", "images", "instruction", "masked")
COUNTS = ("vocab_size", "dim", "max_positions", "width", "type_vocab_size", "batch_size")


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Every fact that a family declares about a checkpoint it claims."""

    family: str
    """The name of the family's entry point."""
    fit: Fit
    vocab_size: int
    """Rows of the token table; an id past it is refused before it reaches an array and reads foreign memory."""
    dim: int
    """Width of the answer's vectors (of each row, for multi-vector families); ignored for rerankers."""
    task: Task = Task.EMBED
    kind: str | None = None
    """Rerankers: ``sequence_classifier``, ``generative_text`` or ``generative_vl``."""
    pooling: Pooling = Pooling.MEAN
    """Used where the checkpoint has no ``1_Pooling/config.json`` and the user asks for nothing."""
    pooling_fixed: bool = False
    """True if the family pools in its own way: neither the checkpoint nor the user can choose."""
    normalize: bool = True
    multi_vector: bool = False
    """One vector per token (late interaction, MaxSim) instead of one per input."""
    images: bool = False
    no_images: str | None = None
    """Why this checkpoint takes no images, where its family does; told to whoever sends one."""
    instruction: bool = False
    """True if the family's prompt uses the ``instruction`` of a request."""
    named_prompts: Literal["prefix", "instruction"] = "prefix"
    """What the checkpoint's named prompts are: text before every text, or instructions (of a chat template)."""
    max_positions: int | None = None
    """Real tokens that an absolute position table can hold; None for rotary positions."""
    width: int | None = None
    """Pad every row to this many tokens, instead of the longest row of the batch."""
    padding: Literal["right", "left"] = "right"
    type_vocab_size: int | None = None
    """Rows of the model's segment table, None where it reads no ``token_type_ids``."""
    masked: bool = True
    """False for families that attend to padding by training (SigLIP)."""
    batch_size: int | None = None
    """Rows per forward pass unless the user says otherwise; None for the engine's default."""
    modules: frozenset[str] = frozenset()
    """sentence-transformers modules that the family applies beyond Transformer, Pooling and Normalize (``Dense``)."""
    matryoshka: tuple[int, ...] = ()
    """Widths that the checkpoint was trained to be truncated to, where known."""

    def __post_init__(self) -> None:
        """Refuse values of another kind: many are a config.json's, and would fail far from here, or not at all."""
        for name, kind in {"fit": Fit, "task": Task, "pooling": Pooling, **dict.fromkeys(FLAGS, bool)}.items():
            if not isinstance(value := getattr(self, name), kind):
                raise TypeError(f"Profile.{name} is {value!r}, expected a {kind.__name__}")
        for name in COUNTS:
            value = getattr(self, name)
            unused = (value is None and name not in ("vocab_size", "dim")) or (
                name == "dim" and self.task is Task.RERANK
            )
            if not unused and (type(value) is not int or value < 1):
                raise TypeError(f"Profile.{name} is {value!r}, expected a whole number of 1 or more")


@dataclass(frozen=True, slots=True)
class TextItem:
    """A text, embedded as it is sent."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenItem:
    """Token ids, used verbatim: no special token is added."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ImageItem:
    """An image (RGB, as `theodolite.images.read` gives it), with an optional text beside it."""

    image: Image
    text: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """A query and one document, scored together by a reranker."""

    query: TextItem | ImageItem
    document: TextItem | ImageItem


Item = TextItem | TokenItem | ImageItem | Pair


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What a family wants tokenized for one item.

    Only ``text`` and ``pair`` may be truncated. ``prefix`` and ``suffix`` are tokenized apart and always survive; image
    placeholders in them are already expanded, so that token counts are right before padding.
    """

    text: str = ""
    pair: str | None = None
    prefix: str = ""
    suffix: str = ""
    special_tokens: bool = True
    """Whether the tokenizer's own template ([CLS] ... [SEP]) is put around the text."""
    literal: bool = False
    """True if special tokens spelled inside ``text`` are plain text, as a caller's text inside a template must be."""
    ids: tuple[int, ...] | None = None
    """For prompts that are tokenized by the family itself; used verbatim, everything else but ``image`` is ignored."""
    image: Any = None
    """Whatever the family's ``forward`` needs of the image; handed through untouched.

    A multi-vector family may give it ``cells``, ``[R, C]`` integers: which vector of the answer shows each cell of the
    image, in reading order. `theodolite heatmap` draws by it.
    """
    prompt_tokens: int | None = None
    """For prompts with ``ids``: tokens that count for ``usage.prompt_tokens``, where that is not their number."""
    truncated: int = 0
    """Tokens that the family itself had to cut, for prompts with ``ids``."""


@dataclass(frozen=True, slots=True)
class Row:
    """One tokenized input, not yet padded."""

    input_ids: tuple[int, ...]
    token_type_ids: tuple[int, ...] | None = None
    image: Any = None
    prompt_tokens: int = 0
    """Tokens that count for ``usage.prompt_tokens``."""
    truncated: int = 0
    """Tokens that were cut to fit ``max_length``."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows padded to one length, on the device."""

    input_ids: mx.array
    """``[B, L]`` int32."""
    attention_mask: mx.array
    """``[B, L]`` int32, 1 for a real token, 0 for padding."""
    token_type_ids: mx.array | None = None
    """``[B, L]`` int32; None unless the tokenizer's template gives them."""
    images: tuple[Any, ...] = ()
    """One entry per row, None for a row without an image."""

    @property
    def image(self) -> Any | None:
        """What the prompt of a lone row holds as its image, None for texts: such a row is alone in its batch."""
        return self.images[0] if self.images else None


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Vectors in the order of the inputs."""

    vectors: np.ndarray | list[np.ndarray]
    """``[N, D]`` float32, or for multi-vector models a list of ``[L, K]`` float32 arrays."""
    prompt_tokens: int
    truncated: int = 0
    """Tokens cut over all inputs."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if isinstance(self.vectors, list):
            raise ValueError("multi-vector embeddings are a list of [L, K] arrays; use .vectors")
        return np.array(self.vectors, dtype=dtype, copy=copy)

    def __len__(self) -> int:
        return len(self.vectors)


@dataclass(frozen=True, slots=True)
class Scores:
    """Relevance of each document, in the order of the documents."""

    scores: np.ndarray
    """``[N]`` float64: probabilities in [0, 1], or logits where raw scores were asked for."""
    prompt_tokens: int
    kind: str
    truncated: int = 0

    def ranking(self) -> list[int]:
        """Document indices, most relevant first; ties by ascending index."""
        return sorted(range(len(self.scores)), key=lambda i: (-self.scores[i], i))
