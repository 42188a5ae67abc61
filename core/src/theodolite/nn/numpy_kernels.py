"""Kernels for a CPU without a compiler: products through the BLAS that NumPy ships.

MLX's wheel for Linux computes float32 products with a reference BLAS, ten times slower than the OpenBLAS in NumPy's
wheel. The arrays share memory, so nothing is copied on the way in.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from theodolite.hookspecs import hookimpl
from theodolite.nn import kernels as tables
from theodolite.nn.kernels import Kernels

if TYPE_CHECKING:
    from theodolite.nn.masks import Mask

PRIORITY = 10
SCORES = 1024 * 1024
"""Scores of attention held at once, as many as stay in a cache (4 MB)."""


@hookimpl
def kernels(device: str) -> Kernels | None:
    return Kernels(name="numpy", priority=PRIORITY, linear=linear, attention=attention) if usable(device) else None


def usable(device: str) -> bool:
    return device == "cpu" and sys.platform == "linux"


def linear(x: mx.array, weight: mx.array, bias: mx.array | None = None, act: str | None = None) -> mx.array:
    """`theodolite.nn.kernels.linear` for float32; other types go to MLX."""
    if x.dtype != mx.float32 or weight.dtype != mx.float32:
        return tables.linear(x, weight, bias, act)
    rows = np.asarray(x).reshape(-1, x.shape[-1])
    product = rows @ np.asarray(weight).T
    if bias is not None:
        product += np.asarray(bias)
    y = mx.array(product).reshape(*x.shape[:-1], weight.shape[0])
    return tables.active.activation(y, act) if act else y


def attention(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Mask | None) -> mx.array:
    """`theodolite.nn.kernels.attention` for float32 over one sequence; the rest goes to MLX."""
    if q.dtype != mx.float32 or q.shape[2] != k.shape[2]:
        return tables.attention(q, k, v, scale, mask)
    batch, heads, length, width = q.shape
    groups = k.shape[1]
    queries = np.asarray(q).reshape(batch * groups, heads // groups, length, width)
    keys, values = (np.asarray(t).reshape(batch * groups, 1, length, -1) for t in (k, v))
    out = np.empty((*queries.shape[:-1], values.shape[-1]), np.float32)
    for rows, seen in tables.spans(length, mask):
        added = None if mask is None else np.asarray(mask.block(rows.start, rows.stop, keys=seen))  # [B, 1, 1 | Q, K]
        step = max(1, SCORES // (heads // groups * (rows.stop - rows.start) * (seen.stop - seen.start)))
        for first in range(0, batch * groups, step):
            some = slice(first, first + step)
            scores = queries[some, :, rows] @ keys[some, :, seen].swapaxes(-1, -2)  # [n, H / KV, Q, K]
            scores *= scale
            if added is not None:
                scores += added[np.arange(batch * groups)[some] // groups]
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=-1, keepdims=True)
            np.matmul(scores, values[some, :, seen], out=out[some, :, rows])
    return mx.array(out.reshape(batch, heads, length, -1))
