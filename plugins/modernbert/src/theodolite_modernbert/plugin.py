"""The ModernBERT family: what it claims, how it loads, how it runs."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite.checkpoint import Checkpoint
from theodolite.hookspecs import hookimpl
from theodolite.values import Batch, Fit, Profile
from theodolite_modernbert.model import Config, ModernBert

ARCHITECTURES = {"ModernBertModel", "ModernBertForMaskedLM"}
TRUNK = ("embeddings.", "layers.", "final_norm.")


@hookimpl
def detect(checkpoint: Checkpoint) -> Profile | None:
    if checkpoint.model_type != "modernbert":
        return None
    config = Config.of(checkpoint.config)
    return Profile(
        family="modernbert",
        fit=Fit.ARCHITECTURE if checkpoint.architecture in ARCHITECTURES else Fit.MODEL_TYPE,
        vocab_size=config.vocab_size,
        dim=config.hidden_size,
        normalize=checkpoint.normalize,
    )


@hookimpl
def build(checkpoint: Checkpoint) -> mlx_nn.Module:
    return ModernBert(Config.of(checkpoint.config))


def renamed(weights: dict[str, mx.array], prefix: str = "") -> dict[str, mx.array]:
    """The trunk's tensors under ``prefix``, whether stored bare or as ``model.NAME``; others as they are."""
    bare = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
    return {prefix + name if name.startswith(TRUNK) else name: tensor for name, tensor in bare.items()}


@hookimpl
def sanitize(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    return {name: t for name, t in renamed(weights).items() if not name.startswith(("head.", "decoder."))}


@hookimpl
def forward(model: ModernBert, batch: Batch) -> mx.array:
    return model(batch)
