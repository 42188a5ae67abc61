"""Keys of config.json: read alike by all families, refused by name."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest

from theodolite.errors import CheckpointError, Unsupported
from theodolite.nn import kernels, keys, numpy_kernels


def test_every_activation_has_a_kernel() -> None:
    assert set(keys.ACTIVATIONS.values()) <= set(kernels.ACTIVATIONS) == set(numpy_kernels.ACTIVATIONS)


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


FORMULAS = {
    "gelu": gelu,
    "gelu_fast": gelu_tanh,
    "gelu_new": gelu_tanh,
    "gelu_python": gelu,
    "gelu_pytorch_tanh": gelu_tanh,
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relu": lambda x: np.maximum(x, 0),
    "silu": silu,
    "swish": silu,
}
"""As transformers' activations.py defines them."""


@pytest.mark.parametrize("name", keys.ACTIVATIONS)
def test_a_name_means_what_transformers_means(name: str) -> None:
    x = np.linspace(-4, 4, 97)
    found = kernels.ACTIVATIONS[keys.ACTIVATIONS[name]](mx.array(x.astype(np.float32)))
    np.testing.assert_allclose(np.array(found), FORMULAS[name](x), atol=2e-6)


def test_the_first_name_that_is_set() -> None:
    config = {"hidden_activation": None, "hidden_act": "gelu_new"}
    assert keys.activation(config, "hidden_activation", "hidden_act", default="gelu") == "gelu_tanh"
    assert keys.activation({}, "hidden_act", default="silu") == "silu"
    with pytest.raises(Unsupported, match="hidden_act 'mish'"):
        keys.activation({"hidden_act": "mish"}, "hidden_act", default="gelu")


def test_a_missing_key() -> None:
    with pytest.raises(CheckpointError, match="hidden_size is missing"):
        keys.require({"vocab_size": 1, "hidden_size": None}, "vocab_size", "hidden_size")


@pytest.mark.parametrize(("kinds", "message"), [(["full_attention"], "names 1 layers"), (["conv", "conv"], "'conv'")])
def test_layers_that_do_not_fit(kinds: list[str], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        keys.layer_types({"num_hidden_layers": 2, "layer_types": kinds})


@pytest.mark.parametrize(("heads", "shared"), [(4, 3), (2, 4)])
def test_heads_that_cannot_share_their_keys(heads: int, shared: int) -> None:
    with pytest.raises(CheckpointError, match=f"num_attention_heads {heads} is no multiple"):
        keys.key_value_heads({"num_attention_heads": heads, "num_key_value_heads": shared})


@pytest.mark.parametrize("value", [0, -1, True, "4", 4.0])
def test_counts_are_whole_numbers(value: object) -> None:
    with pytest.raises(CheckpointError, match="num_attention_heads should be a whole number"):
        keys.count({"num_attention_heads": value}, "num_attention_heads", 12)
