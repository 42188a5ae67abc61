"""What lies between a vision tower and a decoder, for every family that has both."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np

from theodolite.errors import CheckpointError


def pixel_shuffle(x: mx.array, side: int) -> mx.array:
    """Join every ``side * side`` block of a square of patches into one (InternVL, Idefics3).

    ``[T, N, D]`` -> ``[T, N / side^2, side^2 * D]``: rows of the block outermost, then columns, then features.
    """
    tiles, count, width = x.shape
    edge = round(count**0.5) // side
    x = x.reshape(tiles, edge, side, edge, side, width).swapaxes(2, 3)
    return x.reshape(tiles, edge * edge, side * side * width)


def by_tile(tower: Callable[[mx.array], mx.array], tiles: np.ndarray, dtype: mx.Dtype) -> mx.array:
    """A tower's states of ``[T, H, W, 3]`` pixels, tile by tile: a page has 17, and all at once take gigabytes."""
    return mx.concatenate([tower(mx.array(tile[None]).astype(dtype)) for tile in tiles])


def slots(ids: Sequence[int], image_token: int, tokens: int) -> np.ndarray:
    """Where an image's tokens stand in a row of ids: ``[T]``.

    :raises CheckpointError: if there are not as many as the image has ``tokens``.
    """
    found = np.flatnonzero(np.asarray(ids) == image_token)
    if len(found) != tokens:
        raise CheckpointError(
            f"config.json: image token {image_token} stands {len(found)} times in a prompt of {tokens} visual tokens; "
            "the tokenizer and config.json do not fit together"
        )
    return found


def place(embeddings: mx.array, slots: np.ndarray, features: mx.array) -> mx.array:
    """Put visual tokens ``[T, D]`` into the ``slots`` ``[T]`` of a row of embeddings ``[1, L, D]``."""
    placed = mx.array(embeddings)
    placed[0, mx.array(slots.astype(np.int32))] = features.astype(embeddings.dtype)
    return placed
