"""Attention masks, described once per batch and written out only by the kernels that need them written out.

Blocked positions are -inf and open ones 0, never a large finite number: in float16 that overflows, and 0 * -inf is NaN.
"""

from __future__ import annotations

import mlx.core as mx


class Mask:
    """Which keys a query may see.

    ``attention_mask`` is ``[B, L]``, 1 for a real token; ``causal`` blocks keys after the query; ``window`` blocks keys
    with ``|q - k| >= window``. A query that would see nothing (padding far from any real token) sees itself, so that no
    row of the softmax is empty: an empty row is NaN, and reaches real rows in the next layer.
    """

    def __init__(self, attention_mask: mx.array, *, causal: bool = False, window: int | None = None) -> None:
        self.attention_mask = attention_mask
        self.causal = causal
        self.window = window
        self._written: dict[mx.Dtype, mx.array] = {}

    def additive(self, dtype: mx.Dtype = mx.float32) -> mx.array:
        """The whole mask, 0 or -inf: ``[B, 1, 1, L]`` for padding alone, else ``[B, 1, L, L]``."""
        if dtype not in self._written:
            self._written[dtype] = self.block(0, self.attention_mask.shape[1], dtype)
        return self._written[dtype]

    def block(self, first: int, last: int, dtype: mx.Dtype = mx.float32, *, keys: slice | None = None) -> mx.array:
        """The mask of the queries ``first..last`` only, over the ``keys`` given: ``[B, 1, 1 | last - first, K]``."""
        keys = keys or slice(0, self.attention_mask.shape[1])
        real = self.attention_mask[:, None, None, keys] != 0  # [B, 1, 1, K]
        if not self.causal and self.window is None:
            empty = mx.logical_not((self.attention_mask != 0).any(axis=1))[:, None, None, None]
            return mx.where(mx.logical_or(real, empty), 0.0, -mx.inf).astype(dtype)
        query = mx.arange(first, last)[:, None]  # [Q, 1]
        key = mx.arange(keys.start, keys.stop)[None]  # [1, K]
        seen = query == query
        if self.causal:
            seen = mx.logical_and(seen, key <= query)
        if self.window is not None:
            seen = mx.logical_and(seen, mx.abs(query - key) < self.window)
        padding = (self.attention_mask[:, first:last] == 0)[:, None, :, None]  # [B, 1, Q, 1]
        seen = mx.logical_or(mx.logical_and(seen, real), mx.logical_and(padding, query == key))
        return mx.where(seen, 0.0, -mx.inf).astype(dtype)  # [B, 1, Q, K]


def padding(attention_mask: mx.array) -> Mask:
    """Every query sees every real key."""
    return Mask(attention_mask)


def causal(attention_mask: mx.array) -> Mask:
    """Every query sees the real keys up to itself."""
    return Mask(attention_mask, causal=True)


def window(attention_mask: mx.array, size: int) -> Mask:
    """Every query sees the real keys with ``|q - k| < size``."""
    return Mask(attention_mask, window=size)
