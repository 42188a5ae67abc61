"""What embedders and rerankers share: a loaded checkpoint that turns rows into pooled numbers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from theodolite import limits, loading, pooling, registry, sentence_transformers, settings, tokenize
from theodolite.checkpoint import Checkpoint
from theodolite.errors import BrokenPlugin, InvalidResult, RequestError, Unsupported
from theodolite.nn import kernels
from theodolite.values import ImageItem, Item, Pair, Pooling, Row, Task, TextItem

if TYPE_CHECKING:
    import mlx.nn as nn

    from theodolite.registry import Family, Registry
    from theodolite.values import Profile

BATCH_TOKENS = 16_384
"""Most padded tokens of one forward pass; a batch of long rows holds fewer of them."""
PASS_TOKENS = 32
"""What a forward pass costs by itself, counted in tokens: padding is taken where it is cheaper than another pass."""
CACHE_LIMIT = 128 * 1024 * 1024
"""Bytes of freed buffers that MLX may keep; every new length makes new sizes, so without a bound it only grows."""
AHEAD = 256 * 1024 * 1024
"""Bytes in a forward pass above which MLX on a CPU makes no further arrays before others are done with. It allocates
when it schedules, up to a hundred operations ahead: of a long text that is many layers' hidden states at once."""
POOLING_NAMES = {"last": Pooling.LASTTOKEN, **{mode.value: mode for mode in Pooling}}
log = logging.getLogger("theodolite")

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may say about loading; None leaves it to the checkpoint."""

    family: str | None = None
    dtype: str = "auto"
    max_length: int | None = None
    pooling: str | None = None
    """``mean``, ``cls``, ``last`` or ``max``."""
    kernels: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in limits.DTYPES:
            raise RequestError(f"dtype must be one of {', '.join(limits.DTYPES)}, got {self.dtype!r}")
        check_whole("max_length", self.max_length)


def check_whole(name: str, value: Any, least: int = 1, most: int | None = None, where: str = "") -> None:
    """Refuse an argument that is no whole number in a range; None is left to the checkpoint.

    :raises RequestError: naming the argument and its range.
    """
    number = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if value is None or (number and least <= value <= (value if most is None else most)):
        return
    wanted = f"{least} or more" if most is None else f"between {least} and {most}{where}"
    raise RequestError(f"{name} must be {'' if number else 'a whole number, '}{wanted}, got {value!r}")


class Engine:
    """A checkpoint loaded for one task. Loading and `forward` belong on one thread; `encode` may run on any."""

    def __init__(self, checkpoint: Checkpoint, task: Task, options: Options, plugins: Registry | None = None) -> None:
        self.checkpoint = checkpoint
        self.family: Family = (plugins or registry.installed()).elect(checkpoint, task, options.family)
        self.profile: Profile = self.family.profile
        sentence_transformers.check(checkpoint, self.profile)
        self.pooling = resolve_pooling(checkpoint, self.profile, options.pooling)
        self.max_length = limits.max_length(checkpoint, self.profile, options.max_length)
        self.tokenizer = tokenize.Tokenizer(checkpoint)
        tokenize.check_segments(self.tokenizer, self.profile)
        self._filler = tokenize.filler(self.tokenizer, self.profile)
        self._check_room()
        kernels.choose(options.kernels)
        mx.set_cache_limit(CACHE_LIMIT)
        self.model: nn.Module = loading.model(self.family, checkpoint, options.dtype)

    @property
    def label(self) -> str:
        """What the checkpoint is called."""
        return self.checkpoint.label

    def encode(self, items: Sequence[Item], instruction: str | None = None) -> list[Row]:
        """Prompt and tokenize items; needs no model. Any thread.

        :raises RequestError: for an item that is empty, not of this model's kind, or outside its vocabulary.
        """
        prompts = []
        for i, item in enumerate(items):
            if isinstance(item, TextItem) and not item.text:
                raise RequestError(f"input[{i}] is an empty string")
            if isinstance(item, ImageItem) and not self.profile.images:
                raise RequestError(self.refuse_image(f"input[{i}]"))
            prompts.append(self.family.prompt(self.checkpoint, item, instruction, self.tokenizer, self.max_length))
        return tokenize.rows(self.tokenizer, prompts, self.max_length, self.profile.vocab_size)

    def refuse_image(self, where: str) -> str:
        """The message for an image that this checkpoint does not take."""
        why = f": {self.profile.no_images}" if self.profile.no_images else ""
        return f"{where} is an image, but the loaded {self._what} does not accept images{why}"

    @property
    def _what(self) -> str:
        return "embedding model" if self.profile.task is Task.EMBED else "reranker"

    def batches(self, rows: Sequence[Row], batch_size: int, batch_tokens: int = BATCH_TOKENS) -> Iterator[list[int]]:
        """Cut rows into micro-batches, longest first: indices of at most ``batch_size`` rows and ``batch_tokens``
        padded tokens. A row with an image goes alone, as positions and vision features are per sequence.
        """
        yield from ([i] for i, row in enumerate(rows) if row.image is not None)
        texts = [i for i, row in enumerate(rows) if row.image is None]
        texts.sort(key=lambda i: -len(rows[i].input_ids))
        widths = [self.profile.width or len(rows[i].input_ids) for i in texts]
        for part in cut(widths, batch_size, batch_tokens):
            yield texts[part]

    def forward(self, rows: Sequence[Row]) -> np.ndarray:
        """One forward pass: ``[B, D]``, ``[B, L, K]`` or ``[B]`` float32, not normalized. On the model's thread.

        :raises InvalidResult: if any number is not finite.
        """
        batch = tokenize.batch(rows, self.profile, self._filler)
        hidden = self.family.forward(self.model, batch).astype(mx.float32)
        pooled = self.family.pool(self.model, hidden, batch, self.pooling).astype(mx.float32)
        self._check_shape(tuple(pooled.shape), len(rows), batch.input_ids.shape[1])
        answer = _computed(pooled)
        if not np.isfinite(answer).all():
            raise InvalidResult(f"{self._what.removesuffix(' model')} inference returned an invalid numeric result")
        return answer

    def _check_room(self) -> None:
        """A template that leaves no room for a pair is a fault of the load, not of every request after it."""
        if self.profile.task is Task.RERANK:
            try:
                self.encode([Pair(TextItem("a"), TextItem("a"))])
            except RequestError as error:
                raise Unsupported(f"{self.checkpoint.path}: {error}") from None

    def _check_shape(self, shape: tuple[int, ...], rows: int, length: int) -> None:
        wanted: tuple[int, ...]
        if self.profile.task is Task.RERANK:
            wanted = (rows,)
        elif self.profile.multi_vector:
            wanted = (rows, length, self.profile.dim)
        else:
            wanted = (rows, self.profile.dim)
        if shape != wanted:
            raise BrokenPlugin(f"family {self.family.plugin} pooled to {list(shape)}, its profile says {list(wanted)}")

    def run(
        self,
        rows: Sequence[Row],
        batch_size: int,
        progress: Progress | None = None,
        batch_tokens: int = BATCH_TOKENS,
    ) -> list[np.ndarray]:
        """Every row's answer, in order, trimmed to its real tokens where it has one vector per token.

        :raises RequestError: for a batch that holds nothing.
        """
        check_whole("batch_size", batch_size)
        answers: list[Any] = [None] * len(rows)
        done = 0
        for indices in self.batches(rows, batch_size, batch_tokens):
            batch = [rows[i] for i in indices]
            pooled = self.forward(batch)
            for i, row, answer in zip(indices, batch, pooled, strict=True):
                if self.profile.multi_vector:
                    real = len(row.input_ids)
                    answer = answer[-real:] if self.profile.padding == "left" else answer[:real]
                answers[i] = answer
            done += len(indices)
            if progress is not None:
                progress(done, len(rows))
        return answers


def _computed(pooled: mx.array) -> np.ndarray:
    if kernels.device() != "cpu":
        return np.array(pooled)
    with _bounded:
        return np.array(pooled)


class _Bounded:
    """MLX's memory limit during forward passes: it is one for the process, and passes of two models may overlap."""

    def __init__(self) -> None:
        self._lock, self._running, self._before = threading.Lock(), 0, 0

    def __enter__(self) -> None:
        with self._lock:
            before = mx.set_memory_limit(mx.get_active_memory() + AHEAD)
            if not self._running:
                self._before = before
            self._running += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._running -= 1
            if not self._running:
                mx.set_memory_limit(self._before)


_bounded = _Bounded()


def cut(widths: Sequence[int], batch_size: int, batch_tokens: int) -> list[slice]:
    """Cut rows, longest first, where passes and padding together cost least (`PASS_TOKENS`)."""
    if len(widths) == 1:
        return [slice(0, 1)]
    wide, count = np.asarray(widths, np.int64), len(widths)
    least = np.zeros(count + 1, np.int64)  # what the first so many rows cost
    begins = np.zeros(count + 1, np.int64)  # and where their last batch begins
    for end in range(1, count + 1):
        starts = np.arange(max(0, end - batch_size), end)
        padded = wide[starts] * (end - starts)
        starts = starts[(padded <= batch_tokens) | (starts == end - 1)]  # one row is a batch, however long
        costs = least[starts] + wide[starts] * (end - starts) + PASS_TOKENS
        least[end], begins[end] = costs.min(), starts[costs.argmin()]
    parts, end = [], count
    while end > 0:
        parts.append(slice(int(begins[end]), end))
        end = int(begins[end])
    return parts[::-1]


def resolve_pooling(checkpoint: Checkpoint, profile: Profile, asked: str | None = None) -> Pooling:
    """The pooling that is used: the user's, the environment's, the checkpoint's, the family's.

    :raises Unsupported: for one that is unknown, or that this checkpoint's family cannot obey.
    """
    source, variable = settings.source("EMBEDDING_POOLING"), settings.read("EMBEDDING_POOLING")
    fixed = profile.pooling_fixed or profile.multi_vector or profile.task is Task.RERANK
    if fixed:
        if asked is not None:
            raise Unsupported(f"--pooling {asked}: family {profile.family!r} pools in its own way on this checkpoint")
        if variable is not None:
            log.warning("%s=%s is ignored: family %r pools in its own way", source, variable, profile.family)
        return profile.pooling
    own = pooling.read(checkpoint)
    choice = asked or variable
    if choice is None:
        return own or profile.pooling
    if choice not in POOLING_NAMES:
        what = "pooling" if asked else source
        raise Unsupported(f"{what}: {choice!r} is not supported (supported: {', '.join(sorted(POOLING_NAMES))})")
    if asked is None:
        log.warning("pooling %s is set by %s", variable, source)
    return POOLING_NAMES[choice]
