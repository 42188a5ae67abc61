"""Nemotron-3-Embed: a Ministral 3 decoder without its causal mask, mean pooled.

The Llama 4 attention scale of each position counts from 0, as there is one pass and no cache.
"""

from __future__ import annotations

import dataclasses

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite.checkpoint import Checkpoint
from theodolite.errors import Unsupported
from theodolite.hookspecs import hookimpl
from theodolite.nn import masks
from theodolite.nn.decoder import Config, Decoder
from theodolite.values import Batch, Fit, Profile

ROTATION = ("rope_parameters", "rope_scaling")
DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1_000_000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}
"""What the reference takes where config.json says nothing."""


def settings(checkpoint: Checkpoint) -> Config:
    """Read config.json.

    :raises CheckpointError: for a missing key.
    :raises Unsupported: for options that are not served.
    """
    given = {key: value for key, value in checkpoint.config.items() if value is not None}
    rotates = any(key in given for key in ROTATION)
    defaults = {key: value for key, value in DEFAULTS.items() if key not in ROTATION or not rotates}
    config = Config.of(defaults | given, windowed=bool(given.get("layer_types")))
    window = given.get("sliding_window")
    if window is not None and not given.get("layer_types"):
        # the reference narrows every layer then, and counts a bidirectional window inclusively
        return dataclasses.replace(config, windows=(int(window) + 1,) * config.num_hidden_layers)
    return config


@hookimpl
def detect(checkpoint: Checkpoint) -> Profile | None:
    if checkpoint.model_type != "ministral3":
        return None
    if checkpoint.config.get("is_causal") is not False:
        if checkpoint.pooling_folder is None:
            return None  # with a causal mask it is a text generator
        raise Unsupported(f"{checkpoint.path}: Ministral 3 embedders need is_causal: false in config.json")
    config = settings(checkpoint)
    return Profile(
        family="ministral3",
        fit=Fit.EXACT,
        vocab_size=config.vocab_size,
        dim=config.hidden_size,
        normalize=checkpoint.normalize,
    )


@hookimpl
def build(checkpoint: Checkpoint) -> mlx_nn.Module:
    return Decoder(settings(checkpoint))


@hookimpl
def sanitize(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    bare = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
    return {name: tensor for name, tensor in bare.items() if not name.startswith("lm_head.")}


@hookimpl
def forward(model: Decoder, batch: Batch) -> mx.array:
    return model(batch.input_ids, masks.padding(batch.attention_mask))
