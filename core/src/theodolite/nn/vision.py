"""What lies between a vision tower and a decoder, for every family that has both."""

from __future__ import annotations

import mlx.core as mx
import numpy as np


def pixel_shuffle(x: mx.array, side: int) -> mx.array:
    """Join every ``side * side`` block of a square of patches into one (InternVL, Idefics3).

    ``[T, N, D]`` -> ``[T, N / side^2, side^2 * D]``: rows of the block outermost, then columns, then features.
    """
    tiles, count, width = x.shape
    edge = round(count**0.5) // side
    x = x.reshape(tiles, edge, side, edge, side, width).swapaxes(2, 3)
    return x.reshape(tiles, edge * edge, side * side * width)


def place(embeddings: mx.array, slots: np.ndarray, features: mx.array) -> mx.array:
    """Put visual tokens ``[T, D]`` into the ``slots`` ``[T]`` of a row of embeddings ``[1, L, D]``."""
    placed = mx.array(embeddings)
    placed[0, mx.array(slots.astype(np.int32))] = features.astype(embeddings.dtype)
    return placed
