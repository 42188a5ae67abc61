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

FOLDER = re.compile(r"^(\d+_Dense)\.linear\.")
SENTENCE = "sentence_embedding"
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

    :raises Unsupported: for a projection with an activation or a residual, or over anything but the pooled vector.
    """
    for module in (module for module in checkpoint.modules if module.name == "Dense"):
        settings = module.config
        for key in ("module_input_name", "module_output_name"):
            if (name := settings.get(key) or SENTENCE) != SENTENCE:
                raise Unsupported(f"{checkpoint.path / module.path}: Dense with {key} {name!r} is not supported")
        if settings.get("use_residual"):
            raise Unsupported(f"{checkpoint.path / module.path}: Dense with use_residual is not supported")
        # sentence-transformers takes Tanh where the module's settings name none
        act = str(settings.get("activation_function") or ("Tanh" if settings else "Identity"))
        if not act.endswith("Identity"):
            raise Unsupported(f"{checkpoint.path / module.path}: Dense with activation {act} is not supported")
    tensors = sanitize(checkpoint, checkpoint.weights())
    stems = sorted(name for name in tensors if FOLDED.match(name) and name.endswith(".weight"))
    return [tensors[name].shape[0] for name in stems]


@hookimpl
def build(checkpoint: Checkpoint) -> mlx_nn.Module:
    return EmbeddingGemma(Config.of(text_config(checkpoint)), dense_widths(checkpoint))


@hookimpl
def sanitize(checkpoint: Checkpoint, weights: dict[str, mx.array]) -> dict[str, mx.array]:
    listed = [module.path for module in checkpoint.modules]  # which run in this order, whatever their numbers

    def place(folder: str) -> tuple[int, int]:
        return listed.index(folder) if folder in listed else len(listed), int(folder.split("_")[0])

    folders = sorted({found[1] for name in weights if (found := FOLDER.match(name))}, key=place)
    ranks = {folder: rank for rank, folder in enumerate(folders)}

    def renamed(name: str) -> str:
        name = re.sub(r"^(language_model\.)?(model\.)?", "", name)
        return FOLDER.sub(lambda found: f"dense.{ranks[found[1]]}.", name)

    bare = {renamed(name): tensor for name, tensor in weights.items()}
    return {name: tensor for name, tensor in bare.items() if not DROPPED.search(name)}


@hookimpl
def forward(model: EmbeddingGemma, batch: Batch) -> mx.array:
    return model(batch)


@hookimpl
def pool(model: EmbeddingGemma, hidden: mx.array, batch: Batch, mode: Pooling) -> mx.array:
    return model.project(pooling.pool(hidden, batch.attention_mask, mode))
