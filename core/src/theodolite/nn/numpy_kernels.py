"""Kernels for a CPU without a compiler: products through the BLAS that NumPy ships.

MLX's wheel for Linux computes float32 products with a reference BLAS, ten times slower than the OpenBLAS in NumPy's
wheel, and activations a number at a time. The arrays share memory, so nothing is copied on the way in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from theodolite.nn import kernels as tables
from theodolite.nn.kernels import Kernels

if TYPE_CHECKING:
    from theodolite.nn.masks import Mask

PRIORITY = 10
SCORES = 1024 * 1024
"""Scores of attention held at once, as many as stay in a cache (4 MB)."""
BLOCK = 16 * 1024
"""Numbers that an activation takes at a time, so that its dozen steps find them in a cache."""
ERF = (
    (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05, -7.34990630326855e-04,
     -2.95459980854025e-03, -1.60960333262415e-02),
    (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03, -1.42647390514189e-02),
)  # fmt: skip
"""Numerator and denominator of erf(x) / x in x squared on [-4, 4], beyond which erf is 1 in float32; from XLA."""


def erf(x: np.ndarray) -> np.ndarray:
    """The error function, within 4e-7."""
    x = np.clip(x, -4, 4)
    square = x * x
    above, below = (np.full_like(x, first) for first, *_ in ERF)
    for sums, (_, *rest) in zip((above, below), ERF, strict=True):
        for coefficient in rest:
            sums *= square
            sums += np.float32(coefficient)
    above *= x
    above /= below
    return above


def times_sigmoid(x: np.ndarray, of: np.ndarray) -> np.ndarray:
    """``x * sigmoid(of)``; overwrites ``of``."""
    np.negative(of, out=of)
    np.exp(of, out=of)
    of += 1
    return np.divide(x, of, out=of)


def gelu(x: np.ndarray) -> np.ndarray:
    y = erf(x * np.float32(0.5**0.5))
    y += 1
    y *= x
    y *= np.float32(0.5)
    return y


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """0.5 (1 + tanh u) is sigmoid(2 u)."""
    return times_sigmoid(x, np.float32(2 * (2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x * x * x))


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": lambda x: times_sigmoid(x, x.copy()),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "quick_gelu": lambda x: times_sigmoid(x, np.float32(1.702) * x),
}


def kernels(device: str) -> Kernels | None:
    if not usable(device):
        return None
    return Kernels(
        name="numpy", priority=PRIORITY, linear=linear, attention=attention, activation=activation, gated=gated
    )


def usable(device: str) -> bool:
    return device == "cpu" and sys.platform == "linux"


def linear(x: mx.array, weight: mx.array, bias: mx.array | None = None, act: str | None = None) -> mx.array:
    """`theodolite.nn.kernels.linear` for float32, whatever the weight is stored in; other types go to MLX."""
    if x.dtype != mx.float32:
        return tables.linear(x, weight, bias, act)
    weight = weight.astype(mx.float32)
    rows = np.asarray(x).reshape(-1, x.shape[-1])
    product = rows @ np.asarray(weight).T
    if bias is not None:
        product += np.asarray(bias.astype(mx.float32))
    if act:
        _activate(product, act)
    return mx.array(product).reshape(*x.shape[:-1], weight.shape[0])


def activation(x: mx.array, name: str) -> mx.array:
    """`theodolite.nn.kernels.activation` for float32."""
    if x.dtype != mx.float32:
        return tables.activation(x, name)
    y = np.array(x, order="C")
    _activate(y, name)
    return mx.array(y)


def gated(gate: mx.array, up: mx.array, act: str) -> mx.array:
    """`theodolite.nn.kernels.gated` for float32."""
    if gate.dtype != mx.float32 or up.dtype != mx.float32 or gate.shape != up.shape:
        return tables.gated(gate, up, act)
    y = np.array(gate, order="C")
    _activate(y, act)
    y *= np.asarray(up)
    return mx.array(y)


def _activate(x: np.ndarray, name: str) -> None:
    """In place, block by block."""
    flat, function = x.reshape(-1), ACTIVATIONS[name]
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, flat.size, BLOCK):
            flat[first : first + BLOCK] = function(flat[first : first + BLOCK])


def attention(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Mask | None) -> mx.array:
    """`theodolite.nn.kernels.attention` for float32 over one sequence; the rest goes to MLX."""
    plain = all(x.dtype == mx.float32 and x.size for x in (q, k, v))
    covered = mask is None or mask.attention_mask.shape == (q.shape[0], q.shape[2])
    if not (plain and covered) or q.shape[2] != k.shape[2] or q.shape[0] != k.shape[0] or q.shape[1] % k.shape[1]:
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
    return tables.join_heads(mx.array(out.reshape(batch, heads, length, -1)))
