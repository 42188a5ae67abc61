"""Pieces that the Qwen2.5-VL and Qwen3-VL towers share: patch filter, two-dimensional rotary positions, attention.

Wang et al. 2024 (Qwen2-VL), Bai et al. 2025 (Qwen2.5-VL, Qwen3-VL). Patches come in merge order: those that become one
visual token follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import mlx.nn as mlx_nn
import numpy as np

from theodolite.errors import CheckpointError
from theodolite.nn import decoder, layers, rope
from theodolite.nn.layers import Linear
from theodolite.pixels import Patches

THETA = 10_000.0


class PatchEmbed(mlx_nn.Module):
    """A convolution whose stride is its size, which is one product per patch."""

    def __init__(self, patch: int, hidden_size: int, *, bias: bool) -> None:
        super().__init__()
        self.proj = Linear(patch, hidden_size, bias=bias)

    def __call__(self, pixels: mx.array) -> mx.array:
        return self.proj(pixels)


def flat_filter(weight: mx.array, channels: int) -> mx.array:
    """A stored patch filter as a matrix ``[D, channels * frames * P * P]``.

    Hugging Face keeps torch's ``[D, channels, frames, P, P]``, an mlx conversion has the channels last; read as one
    another they load and mean nothing. Anything else is left for the shape check.
    """
    if weight.ndim == 5 and weight.shape[1] != channels and weight.shape[-1] == channels:
        weight = weight.transpose(0, 4, 1, 2, 3)
    return weight.reshape(weight.shape[0], -1)


def patch_positions(patches: Patches) -> np.ndarray:
    """Row and column of every patch in merge order: ``[N, 2]``."""
    m = patches.merge
    rows, columns = np.mgrid[0 : patches.rows, 0 : patches.columns]
    both = np.stack([rows, columns], axis=-1).reshape(patches.rows // m, m, patches.columns // m, m, 2)
    return both.swapaxes(1, 2).reshape(-1, 2)


def rotation(positions: np.ndarray, head_dim: int) -> tuple[mx.array, mx.array]:
    """Cosines and sines of the tower's rotary positions: half the angles from the row, half from the column.

    ``[N, 2]`` -> twice ``[1, 1, N, head_dim / 2]``.
    """
    frequencies = THETA ** -(np.arange(0, head_dim // 2, 2) / (head_dim // 2))  # [head_dim / 4]
    angles = (positions[:, :, None] * frequencies).reshape(len(positions), -1)[None, None]
    return mx.array(np.cos(angles).astype(np.float32)), mx.array(np.sin(angles).astype(np.float32))


class Attention(mlx_nn.Module):
    """Attention of patches over patches: over all of them, or within groups of equal windows."""

    def __init__(self, hidden_size: int, heads: int) -> None:
        super().__init__()
        self.qkv = Linear(hidden_size, 3 * hidden_size)
        self.proj = Linear(hidden_size, hidden_size)
        self._heads = heads

    def __call__(
        self, x: mx.array, cos_sin: tuple[mx.array, mx.array], windows: Sequence[tuple[int, int]] | None = None
    ) -> mx.array:
        """``[N, D]`` -> ``[N, D]``.

        :param cos_sin: cosines and sines of `rotation`.
        :param windows: (count, patches) of each group of windows, one group after the other; None for all of ``x``.
        """
        n, width = x.shape
        q, k, v = self.qkv(x).reshape(n, 3, self._heads, -1).transpose(1, 2, 0, 3)[:, None]  # [1, H, N, D / H]
        # angles in float32 whatever the weights are, as the references have them
        q, k = (rope.rotate(t.astype(mx.float32), *cos_sin).astype(t.dtype) for t in (q, k))
        scale = (width // self._heads) ** -0.5
        parts, first = [], 0
        for count, size in windows or [(1, n)]:
            span = slice(first, first + count * size)
            # [1, H, count * size, D / H] -> [count, H, size, D / H]
            cut = (t[0, :, span].reshape(self._heads, count, size, -1).swapaxes(0, 1) for t in (q, k, v))
            o = layers.attention(*cut, scale=scale, mask=None)
            parts.append(o.reshape(count * size, width))
            first = span.stop
        return self.proj(parts[0] if len(parts) == 1 else mx.concatenate(parts))


def token_positions(ids: Sequence[int], image_token: int, images: Sequence[Patches]) -> np.ndarray:
    """M-RoPE positions (time, row, column) of a row of tokens: ``[3, L]``.

    Text counts on in all three. An image stands still in time, spans rows and columns from where the text stopped, and
    the text after it goes on beyond its longer side.
    """
    left = iter(images)
    parts: list[np.ndarray] = []
    position, i = 0, 0
    while i < len(ids):
        if ids[i] != image_token or (image := next(left, None)) is None:
            parts.append(np.full((3, 1), position))
            position, i = position + 1, i + 1
            continue
        rows, columns = image.grid
        where = np.stack(np.broadcast_arrays(0, *np.mgrid[0:rows, 0:columns])).reshape(3, -1)
        parts.append(where + position)
        position, i = position + max(rows, columns), i + image.tokens
    return np.concatenate(parts, axis=1)


def check(text: decoder.Config, where: Path) -> None:
    """Refuse a decoder whose M-RoPE sections do not cover its frequencies.

    :raises CheckpointError: naming them.
    """
    sections, wanted = text.rope.sections, text.head_dim // 2
    if sections is None or sum(sections.sizes) != wanted:
        found = None if sections is None else list(sections.sizes)
        raise CheckpointError(f"{where}: mrope_section {found} should be three numbers that sum to {wanted}")


def expand(ids: Sequence[int], image_token: int, images: Sequence[Patches]) -> list[int]:
    """Every image placeholder repeated once per visual token of its image.

    :raises CheckpointError: if there are not as many placeholders as images.
    """
    if (found := list(ids).count(image_token)) != len(images):
        raise CheckpointError(
            f"config.json: image token {image_token} stands {found} times in a prompt with {len(images)} images; "
            "the tokenizer, the chat template and config.json do not fit together"
        )
    left = iter(images)
    return [j for i in ids for j in ([i] * next(left).tokens if i == image_token else [i])]


@dataclass(frozen=True, eq=False)
class Vision:
    """The images of one row, and where the row's tokens stand."""

    images: tuple[Patches, ...]
    slots: np.ndarray
    """Indices of the visual tokens in the row: ``[T]``."""
    positions: np.ndarray
    """M-RoPE positions of every token: ``[3, L]``."""


def vision(ids: Sequence[int], image_token: int, images: Sequence[Patches]) -> Vision | None:
    """What a row of expanded ``ids`` shows; None for a row without images."""
    if not images:
        return None
    slots = np.flatnonzero(np.asarray(ids) == image_token)
    return Vision(tuple(images), slots, token_positions(ids, image_token, images))
