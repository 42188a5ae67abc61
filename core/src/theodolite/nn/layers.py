"""Layers with the names and parameters of `mlx.nn`, computed by the kernels in use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite.nn import kernels

if TYPE_CHECKING:
    from theodolite.nn.masks import Mask


class Linear(mlx_nn.Linear):
    """``x @ weight.T + bias``, with an optional activation that the kernels may fuse."""

    def __call__(self, x: mx.array, act: str | None = None) -> mx.array:
        return kernels.active.linear(x, self["weight"], self.get("bias"), act)

    def to_quantized(self, *args: object, **kwargs: object) -> mlx_nn.Module:
        return QuantizedLinear.from_linear(self, *args, **kwargs)


class QuantizedLinear(mlx_nn.QuantizedLinear):
    """The quantized twin of `Linear`, on devices that compute with quantized weights."""

    def __call__(self, x: mx.array, act: str | None = None) -> mx.array:
        y = super().__call__(x)
        return kernels.active.activation(y, act) if act else y


def linears(x: mx.array, projections: Sequence[mlx_nn.Module], head_dim: int | None = None) -> list[mx.array]:
    """Each projection of the same ``x``, at once where the kernels in use have a way.

    :param head_dim: split each ``[B, L, H * head_dim]`` into heads, ``[B, H, L, head_dim]``.
    """
    at_once = kernels.active.linears
    if at_once is not None and all(type(each) is Linear for each in projections):
        return at_once(x, [(each["weight"], each.get("bias")) for each in projections], head_dim)
    made = [each(x) for each in projections]
    return made if head_dim is None else [kernels.split_heads(y, head_dim) for y in made]


class Embedding(mlx_nn.Embedding):
    """A table of rows; ids must have been checked, for a gather is not."""


class LayerNorm(mlx_nn.LayerNorm):
    """LayerNorm over the last axis; ``norm(x, residual)`` normalizes the sum."""

    def __call__(self, x: mx.array, residual: mx.array | None = None) -> mx.array:
        weight, bias = self.get("weight"), self.get("bias")
        if residual is not None:
            return kernels.active.add_layer_norm(x, residual, weight, bias, self.eps)
        return kernels.active.layer_norm(x, weight, bias, self.eps)


class RMSNorm(mlx_nn.RMSNorm):
    """RMSNorm over the last axis."""

    def __call__(self, x: mx.array) -> mx.array:
        return kernels.active.rms_norm(x, self["weight"], self.eps)


class GatedMLP(mlx_nn.Module):
    """The gated feed-forward block (Shazeer 2020): ``down(act(gate(x)) * up(x))``.

    :param act: the activation, by its name in `theodolite.nn.kernels.ACTIVATIONS`.
    """

    def __init__(self, width: int, inner: int, act: str, *, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = Linear(width, inner, bias=bias)
        self.up_proj = Linear(width, inner, bias=bias)
        self.down_proj = Linear(inner, width, bias=bias)
        self._act = act

    def __call__(self, x: mx.array) -> mx.array:
        gate, up = linears(x, (self.gate_proj, self.up_proj))
        return self.down_proj(gated(gate, up, self._act))


def gated(gate: mx.array, up: mx.array, act: str) -> mx.array:
    """``act(gate) * up``, with an activation by its name in `theodolite.nn.kernels.ACTIVATIONS`."""
    return kernels.active.gated(gate, up, act)


def begin(x: mx.array) -> None:
    """Have MLX begin with ``x`` while Python still describes what comes after it; waits for nothing.

    Worth a call after the first layer of a small encoder, whose other layers take Python a good part of the time that
    they take MLX for a short text. A stack of half a billion parameters gains nothing.
    """
    mx.async_eval(x)  # type: ignore[no-untyped-call]


def attention(q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: Mask | None) -> mx.array:
    """Scaled dot-product attention over ``[B, H, L, D]``, heads joined: ``[B, L, H * D]``.

    Keys and values may have fewer heads (GQA).
    """
    return kernels.active.attention(q, k, v, scale, mask)
