"""The operations that dominate a forward pass, replaceable as a table by a plugin (hook ``kernels``).

A family never calls ``mx.fast`` itself; the layers of `theodolite.nn` call the table in use, so that a faster table
speeds up every family at once. The table is chosen once, when the first model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite import settings
from theodolite.errors import TheodoliteError

if TYPE_CHECKING:
    from theodolite.nn.masks import Mask
    from theodolite.registry import Plugin

    Offered = tuple[dict[str, "Kernels"], tuple[Plugin, ...], list[str]]

QUERY_BLOCK = 1024
"""Queries per block where a long row's scores would not fit in memory at once."""

ACTIVATIONS: dict[str, Callable[[mx.array], mx.array]] = {
    "gelu": mlx_nn.gelu,  # the exact form, by erf
    "gelu_tanh": mlx_nn.gelu_approx,
    "silu": mlx_nn.silu,
    "relu": mlx_nn.relu,
    "tanh": mx.tanh,
    "quick_gelu": mlx_nn.gelu_fast_approx,
}


def activation(x: mx.array, name: str) -> mx.array:
    """Apply an activation of `ACTIVATIONS` elementwise."""
    return ACTIVATIONS[name](x)


def linear(x: mx.array, weight: mx.array, bias: mx.array | None = None, act: str | None = None) -> mx.array:
    """``act(x @ weight.T + bias)``: ``[..., K]``, ``[N, K]``, ``[N]`` -> ``[..., N]``."""
    y = mx.addmm(bias, x, weight.T) if bias is not None else x @ weight.T
    return ACTIVATIONS[act](y) if act else y


def split_heads(x: mx.array, head_dim: int) -> mx.array:
    """``[B, L, H * head_dim]`` -> ``[B, H, L, head_dim]``."""
    return x.reshape(*x.shape[:-1], -1, head_dim).swapaxes(1, 2)


def join_heads(x: mx.array) -> mx.array:
    """``[B, H, L, D]`` -> ``[B, L, H * D]``."""
    return x.swapaxes(1, 2).flatten(2)


def gated(gate: mx.array, up: mx.array, act: str) -> mx.array:
    """``act(gate) * up``."""
    return ACTIVATIONS[act](gate) * up


def attention(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Mask | None) -> mx.array:
    """Scaled dot-product attention: ``[B, H, L, D]`` with keys and values ``[B, KV, L, D]`` -> ``[B, L, H * D]``.

    Long rows go block by block over the queries, so that neither a mask nor scores of ``[L, L]`` are in memory at once;
    a window looks only at the keys it can reach.
    """
    length = q.shape[2]
    if length <= QUERY_BLOCK:
        written = None if mask is None else mask.additive(q.dtype)
        return join_heads(mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=written))
    blocks = []
    for rows, keys in spans(length, mask):
        part = None if mask is None else mask.block(rows.start, rows.stop, q.dtype, keys=keys)
        block = mx.fast.scaled_dot_product_attention(
            q[:, :, rows], k[:, :, keys], v[:, :, keys], scale=scale, mask=part
        )
        if device() == "cpu":
            mx.eval(block)  # else the lazy graph keeps the scores of all blocks alive together
        blocks.append(block)
    return join_heads(mx.concatenate(blocks, axis=2))


def spans(length: int, mask: Mask | None) -> Iterator[tuple[slice, slice]]:
    """Blocks of queries, each with the keys that its queries may see."""
    for first in range(0, length, QUERY_BLOCK):
        last = min(first + QUERY_BLOCK, length)
        keys = slice(0, length)
        if mask is not None:
            low = 0 if mask.window is None else max(0, first - mask.window + 1)
            high = length if mask.window is None else min(length, last + mask.window - 1)
            keys = slice(low, min(high, last) if mask.causal else high)
        yield slice(first, last), keys


def layer_norm(x: mx.array, weight: mx.array | None, bias: mx.array | None, eps: float) -> mx.array:
    """LayerNorm over the last axis."""
    return mx.fast.layer_norm(x, weight, bias, eps)


def rms_norm(x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
    """RMSNorm over the last axis; ``weight`` multiplies as it is (Gemma adds its 1 beforehand)."""
    return mx.fast.rms_norm(x, weight, eps)


def add_layer_norm(
    x: mx.array, residual: mx.array, weight: mx.array | None, bias: mx.array | None, eps: float
) -> mx.array:
    """LayerNorm of ``x + residual``, as post-norm blocks end."""
    return mx.fast.layer_norm(x + residual, weight, bias, eps)


def rope(x: mx.array, freqs: mx.array) -> mx.array:
    """Rotate ``[B, H, L, D]`` by positions 0..L, with the wavelengths ``freqs`` ``[D / 2]`` of `mx.fast.rope`."""
    return mx.fast.rope(x, x.shape[-1], traditional=False, base=None, scale=1.0, offset=0, freqs=freqs)


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """A table of operations; those left out are the ones of this module, which are `mx.fast`'s."""

    name: str
    priority: int
    bf16: bool = False
    """Whether `linear` multiplies bfloat16 weights as such on this CPU, activations rounded alike, sums in float32."""
    linear: Callable[..., mx.array] = linear
    linears: Callable[..., list[mx.array]] | None = None
    """``linears(x, layers, head_dim)``: several (weight, bias) over the same rows at once, each result split into heads
    where ``head_dim`` is not None; None where that gains nothing over one `linear` each."""
    activation: Callable[[mx.array, str], mx.array] = activation
    gated: Callable[[mx.array, mx.array, str], mx.array] = gated
    attention: Callable[[mx.array, mx.array, mx.array, float, Mask | None], mx.array] = attention
    layer_norm: Callable[..., mx.array] = layer_norm
    rms_norm: Callable[..., mx.array] = rms_norm
    add_layer_norm: Callable[..., mx.array] = add_layer_norm
    rope: Callable[..., mx.array] = rope


DEFAULT = Kernels(name="default", priority=0)
active: Kernels = DEFAULT
"""The table in use. Read it as ``kernels.active``; `choose` sets it."""
_chosen = False


def device() -> str:
    """``"gpu"`` or ``"cpu"``: where MLX computes by default."""
    return "gpu" if mx.default_device() == mx.Device(mx.gpu) else "cpu"


def usable() -> Offered:
    """Every table that runs on this device, by name; the plugins that were asked; and why some have no table here."""
    from theodolite import registry
    from theodolite.nn import numpy_kernels

    own = (DEFAULT, numpy_kernels.kernels(device()))
    tables = {table.name: table for table in own if table is not None}
    plugins, reasons = [], []
    for plugin, answer in registry.ask("kernels", device=device()):
        match answer:
            case Kernels():
                tables[answer.name] = answer
            case str():
                reasons.append(answer)
            case wrong if wrong is not None:
                plugin = replace(plugin, error=f"kernels returned {registry.shown(wrong)}, expected Kernels or a str")
                registry.log.warning("%s: %s", plugin, plugin.error)
        plugins.append(plugin)
    return tables, tuple(plugins), reasons


def choose(name: str | None = None) -> Kernels:
    """The table of this process, chosen by `pick` at the first call; models that are loaded hold on to it.

    :raises TheodoliteError: as `pick`, or if ``name`` is another table than the one in use.
    """
    global active, _chosen
    if not _chosen:
        active, _chosen = pick(usable(), name), True
    elif name not in (None, active.name):
        other = pick(usable(), name)
        raise TheodoliteError(
            f"kernels {other.name!r} cannot be used beside {active.name!r}: all models of a process share one table"
        )
    return active


def pick(offered: Offered, name: str | None = None) -> Kernels:
    """Of `usable` tables the one called ``name`` (``--kernels``, THEODOLITE_KERNELS), or of the highest priority.

    :raises TheodoliteError: if there is no such table, or if two have the same highest priority.
    """
    tables, plugins, reasons = offered
    name = name or settings.read("KERNELS")
    if name is not None:
        if name not in tables:
            broken = "".join(f"; {p}: {p.error}" for p in plugins if p.error)
            broken += "".join(f"; {reason}" for reason in reasons)
            raise TheodoliteError(f"there are no kernels {name!r} here (usable: {', '.join(sorted(tables))}){broken}")
        return tables[name]
    best = max(table.priority for table in tables.values())
    [first, *others] = [table for table in tables.values() if table.priority == best]
    if others:
        names = ", ".join(sorted(table.name for table in (first, *others)))
        raise TheodoliteError(f"kernels {names} have the same priority; choose one with --kernels")
    return first
