"""Keys of config.json that families read alike; what is not served is refused by name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from theodolite.errors import CheckpointError, Unsupported

FULL, SLIDING = "full_attention", "sliding_attention"
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Hugging Face's names of activations, and those of `theodolite.nn.kernels.ACTIVATIONS`."""


def count(config: dict[str, Any], name: str, default: int | None = None, least: int = 1) -> int:
    """A whole number of ``least`` or more.

    :param default: where there is none; None where there has to be one.
    :raises CheckpointError: for another value, or one that is missing.
    """
    value = default if config.get(name) is None else config[name]
    if value is None:
        raise CheckpointError(f"config.json: {name} is missing")
    if type(value) is not int or value < least:
        raise CheckpointError(f"config.json: {name} should be a whole number of {least} or more, not {value!r}")
    return value


def require(config: dict[str, Any], *names: str) -> None:
    """Refuse a configuration that lacks a `count`."""
    for name in names:
        count(config, name)


def key_value_heads(config: dict[str, Any]) -> int:
    """``num_key_value_heads``, as many as there are heads where it is not given (GQA, Ainslie et al. 2023).

    :raises CheckpointError: if the heads cannot share them evenly.
    """
    heads = count(config, "num_attention_heads")
    shared = count(config, "num_key_value_heads", heads)
    if heads % shared:
        raise CheckpointError(
            f"config.json: num_attention_heads {heads} is no multiple of num_key_value_heads {shared}"
        )
    return shared


def activation(config: dict[str, Any], *names: str, default: str) -> str:
    """The kernels' name of the activation that the first of ``names`` gives.

    :param default: Hugging Face's name, where none of them is there.
    :raises Unsupported: for one that is not served.
    """
    name, act = next(((name, config[name]) for name in names if config.get(name)), (names[0], default))
    if act not in ACTIVATIONS:
        raise Unsupported(f"config.json: {name} {act!r} is not supported (supported: {', '.join(ACTIVATIONS)})")
    return ACTIVATIONS[act]


def layer_types(config: dict[str, Any], served: Collection[str] = (FULL, SLIDING)) -> tuple[str, ...]:
    """``layer_types``, one per layer; empty where there are none.

    :raises Unsupported: for a kind of layer that is not served.
    :raises CheckpointError: where they are not one per layer.
    """
    kinds, count = tuple(config.get("layer_types") or ()), config["num_hidden_layers"]
    if unknown := set(kinds) - set(served):
        raise Unsupported(f"config.json: layer_types {min(unknown)!r} is not supported ({', '.join(served)} are)")
    if kinds and len(kinds) != count:
        raise CheckpointError(f"config.json: layer_types names {len(kinds)} layers, num_hidden_layers is {count}")
    return kinds
