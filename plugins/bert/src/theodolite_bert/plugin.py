"""The BERT family: what it claims, how it loads, how it runs."""

from __future__ import annotations

import re

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite.checkpoint import Checkpoint
from theodolite.hookspecs import hookimpl
from theodolite.values import Batch, Fit, Profile
from theodolite_bert.model import Bert, Config

MODEL_TYPES = {"bert", "xlm-roberta"}
ARCHITECTURES = {"BertModel", "XLMRobertaModel", "BertForMaskedLM", "XLMRobertaForMaskedLM"}
OLD_NORM = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""As checkpoints that came from TensorFlow have it, google-bert's own among them."""
PREFIX = re.compile(r"^(bert|roberta|model)\.")
DROPPED = re.compile(r"^(pooler|cls|lm_head)\.|(^|\.)position_ids$")


@hookimpl
def detect(checkpoint: Checkpoint) -> Profile | None:
    if checkpoint.model_type not in MODEL_TYPES:
        return None
    config = Config.of(checkpoint.config)
    return Profile(
        family="bert",
        fit=Fit.ARCHITECTURE if checkpoint.architecture in ARCHITECTURES else Fit.MODEL_TYPE,
        vocab_size=config.vocab_size,
        dim=config.hidden_size,
        normalize=checkpoint.normalize,
        type_vocab_size=config.type_vocab_size,
        max_positions=config.max_position_embeddings - config.first_position,
    )


@hookimpl
def build(checkpoint: Checkpoint) -> mlx_nn.Module:
    return Bert(Config.of(checkpoint.config))


def new_name(name: str) -> str:
    """A tensor's name with the norms' parameters as they are called today."""
    for old, new in OLD_NORM.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


@hookimpl
def sanitize(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    renamed = {new_name(PREFIX.sub("", name)): tensor for name, tensor in weights.items()}
    return {name: tensor for name, tensor in renamed.items() if not DROPPED.search(name)}


@hookimpl
def forward(model: Bert, batch: Batch) -> mx.array:
    return model(batch)
