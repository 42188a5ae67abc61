"""The NumPy kernels' activations and gates against the formulas in float64."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest

from theodolite.nn import kernels, numpy_kernels

EXACT = {
    "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "relu": lambda x: max(x, 0.0),
    "tanh": math.tanh,
    "quick_gelu": lambda x: x / (1 + math.exp(-1.702 * x)),
}


@pytest.mark.parametrize("name", kernels.ACTIVATIONS)
def test_activations_are_as_exact_as_float32_allows(name: str) -> None:
    x = np.linspace(-40, 40, 40_001).astype(np.float32)
    exact = np.array([EXACT[name](t) for t in x.astype(np.float64)])
    found = np.array(numpy_kernels.activation(mx.array(x), name))
    assert (np.abs(found - exact) / np.maximum(1, np.abs(x))).max() <= 4 * np.finfo(np.float32).eps
    far = np.array(numpy_kernels.activation(mx.array([-1e4, 1e4, np.nan]), name))
    assert np.isnan(far[2])
    if name != "tanh":
        np.testing.assert_array_equal(far[:2], [0, 1e4])


@pytest.mark.parametrize("name", kernels.ACTIVATIONS)
def test_odd_layouts_are_not_written_to_and_not_mixed_up(name: str) -> None:
    whole = mx.random.normal((6, 5, 40), key=mx.random.key(1))
    before = np.array(whole)
    gate, up = (half.swapaxes(0, 1) for half in mx.split(whole, 2, axis=-1))
    np.testing.assert_allclose(
        np.array(numpy_kernels.activation(gate, name)), np.array(kernels.activation(gate, name)), atol=1e-6
    )
    np.testing.assert_allclose(
        np.array(numpy_kernels.gated(gate, up, name)), np.array(kernels.gated(gate, up, name)), atol=2e-6
    )
    np.testing.assert_array_equal(np.array(whole), before)


def test_a_fused_activation_is_the_same_as_one_afterwards() -> None:
    x, weight, bias = (mx.random.normal(shape, key=mx.random.key(i)) for i, shape in enumerate([(7, 9), (5, 9), (5,)]))
    for name in kernels.ACTIVATIONS:
        fused = numpy_kernels.linear(x, weight, bias, name)
        np.testing.assert_allclose(np.array(fused), np.array(kernels.linear(x, weight, bias, name)), atol=2e-6)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_other_types_go_to_mlx(dtype: mx.Dtype) -> None:
    x = mx.ones((2, 8), dtype)
    assert numpy_kernels.activation(x, "gelu").dtype == dtype
    assert numpy_kernels.gated(x, x, "silu").dtype == dtype
