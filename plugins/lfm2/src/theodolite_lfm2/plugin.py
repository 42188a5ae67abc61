"""The LFM2.5-Embedding family: a bidirectional hybrid, pooled at the start token."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite.checkpoint import Checkpoint
from theodolite.errors import Unsupported
from theodolite.hookspecs import hookimpl
from theodolite.values import Batch, Fit, Pooling, Profile
from theodolite_lfm2.model import Config, Lfm2


@hookimpl
def detect(checkpoint: Checkpoint) -> Profile | None:
    named = checkpoint.architecture == "Lfm2BidirectionalModel"
    if checkpoint.model_type not in ("lfm2", "lfm2_bidirectional"):
        return None
    if not named and checkpoint.model_type != "lfm2_bidirectional":
        if checkpoint.pooling_folder is None:
            return None  # causal: a text generator
        raise Unsupported(f"{checkpoint.path}: LFM2 embedders need the architecture Lfm2BidirectionalModel")
    if any(module.name == "Dense" for module in checkpoint.modules) or (checkpoint.path / "1_Dense").is_dir():
        raise Unsupported(
            f"{checkpoint.path}: this is a ColBERT late-interaction checkpoint (1_Dense), one vector per token; "
            "the LFM2 family serves the single-vector LFM2.5-Embedding only"
        )
    config = Config.of(checkpoint.config)
    return Profile(
        family="lfm2",
        fit=Fit.ARCHITECTURE,
        vocab_size=config.vocab_size,
        dim=config.hidden_size,
        pooling=Pooling.CLS,
        normalize=checkpoint.normalize,
    )


@hookimpl
def build(checkpoint: Checkpoint) -> mlx_nn.Module:
    return Lfm2(Config.of(checkpoint.config))


@hookimpl
def sanitize(checkpoint: Checkpoint, weights: dict[str, mx.array]) -> dict[str, mx.array]:
    taps = Config.of(checkpoint.config).conv_taps
    bare = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
    return {
        # Conv1d's [D, 1, taps] becomes the channels-last [D, taps, 1] of mlx conversions
        name: tensor.swapaxes(1, 2) if tensor.ndim == 3 and tensor.shape[1:] == (1, taps) else tensor
        for name, tensor in bare.items()
        if not name.startswith("lm_head.")
    }


@hookimpl
def forward(model: Lfm2, batch: Batch) -> mx.array:
    return model(batch)
