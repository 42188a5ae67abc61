"""The kernels table of the compiled extension, or the reason why there is none."""

from __future__ import annotations

import json
import threading
import weakref
from functools import cache
from importlib import metadata, resources
from typing import TYPE_CHECKING, Any, ClassVar

import mlx.core as mx  # before the extension, which is linked against its library

from theodolite.hookspecs import hookimpl
from theodolite.nn import kernels as tables
from theodolite.nn.kernels import Kernels

if TYPE_CHECKING:
    from theodolite.nn.masks import Mask

PRIORITY = 20
PACKED_BYTES = 384 * 1024 * 1024
"""Most memory for packed copies of weights. They pay for small models, above all with short texts: a large model's
weights come from memory anyway, and are packed in passing."""
ACTS = {None: 0, "gelu": 1, "gelu_tanh": 2, "silu": 3, "relu": 4, "tanh": 5, "quick_gelu": 6}


@cache
def load() -> tuple[Any, str | None]:
    """The extension, or None and the reason: it was not built, or for another MLX, or it does not load here."""
    record = resources.files("theodolite_cpu").joinpath("build.json")
    if not record.is_file():
        return None, "the extension was not built"
    built = json.loads(record.read_text())
    if built["reason"] is not None:
        return None, f"the extension was not built: {built['reason']}"
    found = metadata.version("mlx")
    if built["mlx"].split(".")[:2] != found.split(".")[:2]:
        return None, f"the extension was built for MLX {built['mlx']}, MLX {found} is installed; install it again"
    try:
        import scipy_openblas32

        from theodolite_cpu import _ops

        _ops.setup(f"{scipy_openblas32.get_lib_dir()}/lib{scipy_openblas32.get_library()}.so")
    except Exception as error:  # a missing symbol or library says so in its own words
        return None, f"the extension does not load: {error}"
    return _ops, None


def reason() -> str | None:
    """Why there are no fast kernels here, None where there are."""
    return load()[1]


@hookimpl
def kernels(device: str) -> Kernels | str | None:
    if device != "cpu":
        return None
    if (why := reason()) is not None:
        return f"cpu: {why}"
    return Kernels(
        name="cpu",
        priority=PRIORITY,
        linear=linear,
        activation=activation,
        gated=gated,
        attention=attention,
        layer_norm=layer_norm,
        rms_norm=rms_norm,
        add_layer_norm=add_layer_norm,
        rope=rope,
    )


def ours(*arrays: mx.array | None) -> bool:
    """Whether the extension computes these: float32, and not empty."""
    return all(a is None or (a.dtype == mx.float32 and a.size > 0) for a in arrays)


def linear(x: mx.array, weight: mx.array, bias: mx.array | None = None, act: str | None = None) -> mx.array:
    if not ours(x, weight, bias):
        return tables.linear(x, weight, bias, act)
    if (panels := packed(weight)) is not None:
        return load()[0].packed_linear(x, panels, weight.shape[0], bias, ACTS[act])
    return load()[0].linear(x, weight, bias, ACTS[act])


class Packed:
    """A weight that was used and its packed copy, or that it has none; both end with the weight.

    Decided at the first use and for good: packed and plain products round differently, and a repeated request must
    give the same numbers.
    """

    held = 0
    lock = threading.RLock()  # a weight may end while another is packed
    known: ClassVar[dict[int, Packed]] = {}

    def __init__(self, weight: mx.array) -> None:
        key = id(weight)
        self.panels: mx.array | None = None
        self.size = 0
        self.weight = weakref.ref(weight, lambda _: self.forget(key))
        size = -(-weight.shape[0] // load()[0].PANEL) * load()[0].PANEL * weight.shape[1] * weight.itemsize
        if Packed.held + size <= PACKED_BYTES:
            self.panels = load()[0].pack(weight)
            mx.eval(self.panels)  # another thread may use it next
            self.size = size
            Packed.held += size

    def forget(self, key: int) -> None:
        with Packed.lock:
            Packed.known.pop(key, None)
            Packed.held -= self.size


def packed(weight: mx.array) -> mx.array | None:
    """The packed copy of a weight, where the extension has tiles for this processor and there is room for one."""
    if not load()[0].tiles():
        return None
    if (entry := Packed.known.get(id(weight))) is None:
        with Packed.lock:
            if (entry := Packed.known.get(id(weight))) is None:
                entry = Packed.known[id(weight)] = Packed(weight)
    return entry.panels


def activation(x: mx.array, name: str) -> mx.array:
    return load()[0].activation(x, ACTS[name]) if ours(x) else tables.activation(x, name)


def gated(gate: mx.array, up: mx.array, act: str) -> mx.array:
    return load()[0].gated(gate, up, ACTS[act]) if ours(gate, up) else tables.gated(gate, up, act)


def attention(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Mask | None) -> mx.array:
    if not ours(q, k, v) or q.shape[2:] != k.shape[2:] or k.shape != v.shape or scale <= 0:
        return tables.attention(q, k, v, scale, mask)
    if mask is None:
        return load()[0].attention(q, k, v, scale, None, False, 0)
    return load()[0].attention(q, k, v, scale, mask.attention_mask, mask.causal, mask.window or 0)


def layer_norm(x: mx.array, weight: mx.array | None, bias: mx.array | None, eps: float) -> mx.array:
    if not ours(x, weight, bias):
        return tables.layer_norm(x, weight, bias, eps)
    return load()[0].layer_norm(x, None, weight, bias, eps)


def add_layer_norm(
    x: mx.array, residual: mx.array, weight: mx.array | None, bias: mx.array | None, eps: float
) -> mx.array:
    if not ours(x, residual, weight, bias) or x.shape != residual.shape:
        return tables.add_layer_norm(x, residual, weight, bias, eps)
    return load()[0].layer_norm(x, residual, weight, bias, eps)


def rms_norm(x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
    return load()[0].rms_norm(x, weight, eps) if ours(x, weight) else tables.rms_norm(x, weight, eps)


def rope(x: mx.array, freqs: mx.array, traditional: bool = False) -> mx.array:
    if traditional or not ours(x, freqs) or x.shape[-1] != 2 * freqs.shape[0]:
        return tables.rope(x, freqs, traditional)
    return load()[0].rope(x, freqs)
