"""The compiled operations with the signatures of a kernels table.

An operation of the extension gives None for what it does not compute (another dtype than float32, an empty array, an
odd shape); then MLX's own does.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import mlx.core as mx  # before the extension, which is linked against its library

from theodolite.nn import kernels as tables
from theodolite_cpu import _ops

if TYPE_CHECKING:
    from theodolite.nn.masks import Mask

ACTS = {None: 0, "gelu": 1, "gelu_tanh": 2, "silu": 3, "relu": 4, "tanh": 5, "quick_gelu": 6}

setup = _ops.setup
bf16: bool = _ops.bf16()
"""Whether this processor multiplies bfloat16."""


def linear(x: mx.array, weight: mx.array, bias: mx.array | None = None, act: str | None = None) -> mx.array:
    if (panels := packed(weight)) is not None:
        y = _ops.packed_linears(x, [panels], [bias], ACTS[act], None)
        return tables.linear(x, weight, bias, act) if y is None else y[0]
    y = _ops.linear(x, weight.astype(x.dtype), bias, ACTS[act])
    return tables.linear(x, weight, bias, act) if y is None else y


def linears(
    x: mx.array, layers: Sequence[tuple[mx.array, mx.array | None]], head_dim: int | None = None
) -> list[mx.array]:
    panels = [packed(weight) for weight, _ in layers]
    if panels and None not in panels:
        biases = [bias for _, bias in layers]
        made: list[mx.array] | None = _ops.packed_linears(x, panels, biases, ACTS[None], head_dim)
        if made is not None:
            return made
    each = [linear(x, weight, bias) for weight, bias in layers]
    return each if head_dim is None else [tables.split_heads(y, head_dim) for y in each]


class Packed:
    """A weight that was used and its panels, or that it has none; both end with the weight.

    Decided at the first use, and anew only when the weight was written to: packed and plain products round
    differently, and a repeated request must give the same numbers.
    """

    lock = threading.Lock()
    known: ClassVar[dict[int, Packed]] = {}

    def __init__(self, weight: mx.array) -> None:
        key = id(weight)
        self.weight = weakref.ref(weight, lambda _: Packed.known.pop(key, None))
        self.panels: _ops.PackedWeight | None = _ops.pack(weight)

    def fits(self, weight: mx.array) -> bool:
        return self.panels is None or self.panels.stands_for(weight)


def packed(weight: mx.array) -> _ops.PackedWeight | None:
    """The panels of a weight, where the extension has tiles for this processor."""
    if (entry := Packed.known.get(id(weight))) is None or not entry.fits(weight):
        with Packed.lock:
            if (entry := Packed.known.get(id(weight))) is None or not entry.fits(weight):
                entry = Packed.known[id(weight)] = Packed(weight)
    return entry.panels


def activation(x: mx.array, name: str) -> mx.array:
    y = _ops.activation(x, ACTS[name])
    return tables.activation(x, name) if y is None else y


def gated(gate: mx.array, up: mx.array, act: str) -> mx.array:
    y = _ops.gated(gate, up, ACTS[act])
    return tables.gated(gate, up, act) if y is None else y


def attention(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Mask | None) -> mx.array:
    if mask is None:
        o = _ops.attention(q, k, v, scale, None, False, 0)
    else:
        o = _ops.attention(q, k, v, scale, mask.attention_mask, mask.causal, mask.window or 0)
    return tables.attention(q, k, v, scale, mask) if o is None else o


def layer_norm(x: mx.array, weight: mx.array | None, bias: mx.array | None, eps: float) -> mx.array:
    y = _ops.layer_norm(x, None, weight, bias, eps)
    return tables.layer_norm(x, weight, bias, eps) if y is None else y


def add_layer_norm(
    x: mx.array, residual: mx.array, weight: mx.array | None, bias: mx.array | None, eps: float
) -> mx.array:
    y = _ops.layer_norm(x, residual, weight, bias, eps)
    return tables.add_layer_norm(x, residual, weight, bias, eps) if y is None else y


def rms_norm(x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
    y = _ops.rms_norm(x, weight, eps)
    return tables.rms_norm(x, weight, eps) if y is None else y


def rope(x: mx.array, freqs: mx.array) -> mx.array:
    y = _ops.rope(x, freqs)
    return tables.rope(x, freqs) if y is None else y
