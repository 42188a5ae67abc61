"""Nemotron-3-Embed: a Ministral 3 decoder without its causal mask, mean pooled.

The Llama 4 attention scale of each position counts from 0, as there is one pass and no cache.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite.checkpoint import Checkpoint
from theodolite.hookspecs import hookimpl
from theodolite.nn import masks
from theodolite.nn.decoder import Config, Decoder
from theodolite.values import Batch, Fit, Profile


@hookimpl
def detect(checkpoint: Checkpoint) -> Profile | None:
    if checkpoint.model_type != "ministral3" or checkpoint.config.get("is_causal") is not False:
        return None  # with a causal mask it is a text generator
    config = Config.of(checkpoint.config)
    return Profile(
        family="ministral3",
        fit=Fit.EXACT,
        vocab_size=config.vocab_size,
        dim=config.hidden_size,
        normalize=checkpoint.normalize,
    )


@hookimpl
def build(checkpoint: Checkpoint) -> mlx_nn.Module:
    return Decoder(Config.of(checkpoint.config))


@hookimpl
def sanitize(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    bare = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
    return {name: tensor for name, tensor in bare.items() if not name.startswith("lm_head.")}


@hookimpl
def forward(model: Decoder, batch: Batch) -> mx.array:
    return model(batch.input_ids, masks.padding(batch.attention_mask))
