"""The EmbeddingGemma family (Vera et al. 2025): bidirectional Gemma 3, mean pooling, two Dense projections."""

from __future__ import annotations

import re
from typing import Any

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite import pooling
from theodolite.checkpoint import Checkpoint
from theodolite.errors import Unsupported
from theodolite.hookspecs import hookimpl
from theodolite.values import Batch, Fit, Pooling, Profile
from theodolite_gemma3.model import Config, EmbeddingGemma

FOLDER = re.compile(r"^(\d+)_Dense\.linear\.")
FOLDED = re.compile(r"^dense\.(\d+)\.")
DROPPED = re.compile(r"^lm_head\.|(^|\.)rotary_emb\.")
TRAINED_WIDTHS = (768, 512, 256, 128)


def text_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """The text model's settings, which ``model_type: gemma3`` nests."""
    return checkpoint.config.get("text_config") or checkpoint.config


@hookimpl
def detect(checkpoint: Checkpoint) -> Profile | None:
    if checkpoint.model_type not in ("gemma3_text", "gemma3"):
        return None
    settings = text_config(checkpoint)
    if settings.get("use_bidirectional_attention") is not True:
        if checkpoint.pooling_folder is None:
            return None  # a text generator
        raise Unsupported(f"{checkpoint.path}: gemma3 embedders need use_bidirectional_attention: true in config.json")
    config = Config.of(settings)
    widths = dense_widths(checkpoint)
    dim = widths[-1] if widths else config.hidden_size
    return Profile(
        family="gemma3",
        fit=Fit.EXACT,
        vocab_size=config.vocab_size,
        dim=dim,
        normalize=checkpoint.normalize,
        modules=frozenset({"Dense"}),
        matryoshka=tuple(width for width in TRAINED_WIDTHS if dim == TRAINED_WIDTHS[0]),
    )


def dense_widths(checkpoint: Checkpoint) -> list[int]:
    """out_features of each projection, in order: rows are never packed by quantization.

    :raises Unsupported: for a projection with an activation.
    """
    for module in checkpoint.modules:
        # sentence-transformers takes Tanh where the module's settings name none
        act = str(module.config.get("activation_function") or ("Tanh" if module.config else "Identity"))
        if module.name == "Dense" and not act.endswith("Identity"):
            raise Unsupported(f"{checkpoint.path / module.path}: Dense with activation {act} is not supported")
    tensors = sanitize(checkpoint.weights())
    stems = sorted(name for name in tensors if FOLDED.match(name) and name.endswith(".weight"))
    return [tensors[name].shape[0] for name in stems]


@hookimpl
def build(checkpoint: Checkpoint) -> mlx_nn.Module:
    return EmbeddingGemma(Config.of(text_config(checkpoint)), dense_widths(checkpoint))


@hookimpl
def sanitize(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    folders = sorted({int(found[1]) for name in weights if (found := FOLDER.match(name))})
    ranks = {number: rank for rank, number in enumerate(folders)}

    def renamed(name: str) -> str:
        name = re.sub(r"^(language_model\.)?(model\.)?", "", name)
        return FOLDER.sub(lambda found: f"dense.{ranks[int(found[1])]}.", name)

    bare = {renamed(name): tensor for name, tensor in weights.items()}
    return {name: tensor for name, tensor in bare.items() if not DROPPED.search(name)}


@hookimpl
def forward(model: EmbeddingGemma, batch: Batch) -> mx.array:
    return model(batch)


@hookimpl
def pool(model: EmbeddingGemma, hidden: mx.array, batch: Batch, mode: Pooling) -> mx.array:
    return model.project(pooling.pool(hidden, batch.attention_mask, mode))
