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


def require(config: dict[str, Any], *names: str) -> None:
    """Refuse a configuration that lacks a key.

    :raises CheckpointError: naming the first.
    """
    for name in names:
        if config.get(name) is None:
            raise CheckpointError(f"config.json: {name} is missing")


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
