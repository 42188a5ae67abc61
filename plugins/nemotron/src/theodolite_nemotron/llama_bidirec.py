"""Bidirectional Llama (LLM2Vec, BehnamGhader et al. 2024): a Llama decoder without its causal mask, mean pooled."""

from __future__ import annotations

import re

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite.checkpoint import Checkpoint
from theodolite.errors import Unsupported
from theodolite.hookspecs import hookimpl
from theodolite.nn import masks
from theodolite.nn.decoder import Config, Decoder
from theodolite.values import Batch, Fit, Profile

PREFIX = re.compile(r"^(language_model\.)?(model\.)?")
DROPPED = re.compile(r"^lm_head\.|(^|\.)(rotary_emb\.inv_freq|position_ids)$")


@hookimpl
def detect(checkpoint: Checkpoint) -> Profile | None:
    named = checkpoint.model_type == "llama_bidirec" or checkpoint.architecture == "LlamaBidirectionalModel"
    flagged = checkpoint.config.get("use_bidirectional_attention") is True
    if checkpoint.model_type not in ("llama_bidirec", "llama"):
        return None
    if not (named or flagged):
        if checkpoint.pooling_folder is None:
            return None  # a plain Llama is a text generator
        raise Unsupported(f"{checkpoint.path}: Llama embedders need use_bidirectional_attention: true in config.json")
    config = Config.of(checkpoint.config)
    return Profile(
        family="llama-bidirec",
        fit=Fit.ARCHITECTURE,
        vocab_size=config.vocab_size,
        dim=config.hidden_size,
        normalize=checkpoint.normalize,
    )


@hookimpl
def build(checkpoint: Checkpoint) -> mlx_nn.Module:
    return Decoder(Config.of(checkpoint.config))


@hookimpl
def sanitize(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    bare = {PREFIX.sub("", name): tensor for name, tensor in weights.items()}
    return {name: tensor for name, tensor in bare.items() if not DROPPED.search(name)}


@hookimpl
def forward(model: Decoder, batch: Batch) -> mx.array:
    return model(batch.input_ids, masks.padding(batch.attention_mask))
