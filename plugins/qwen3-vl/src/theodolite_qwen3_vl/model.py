"""Qwen3-VL: the vision tower, and a Qwen3 decoder with interleaved M-RoPE whose first layers take in DeepStack's."""

from __future__ import annotations

import re
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite.checkpoint import Checkpoint
from theodolite.errors import CheckpointError
from theodolite.nn import decoder, qwen_vision, vision
from theodolite.values import Batch
from theodolite_qwen3_vl import vision as tower

PATCHES = "visual.patch_embed.proj.weight"
ROPE_BASE = 500_000.0
RENAMES = [
    (re.compile(r"^model\.(?=(language_model|visual)\.)"), ""),
    (re.compile(r"^language_model\.(?=lm_head\.)"), ""),
    (re.compile(r"^language_model\.model\."), "language_model."),
    (re.compile(r"^vision_tower\."), "visual."),
]
"""Hugging Face says model.language_model and model.visual, an mlx conversion language_model.model and vision_tower."""


@dataclass(frozen=True)
class Config:
    """Both halves of config.json."""

    text: decoder.Config
    vision: tower.Config

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Config:
        """Read config.json.

        :raises CheckpointError: where a part is missing.
        """
        config = checkpoint.config
        for key in ("text_config", "vision_config"):
            if not isinstance(config.get(key), dict):
                raise CheckpointError(f"{checkpoint.path / 'config.json'}: {key} is missing")
        if not isinstance(config.get("image_token_id"), int):
            raise CheckpointError(f"{checkpoint.path / 'config.json'}: image_token_id should be a token id")
        # the reference interleaves whatever mrope_interleaved says
        text = decoder.Config.of(config["text_config"], qk_norm=True, rope_base=ROPE_BASE, rope_interleaved=True)
        return cls(text, tower.Config.of(config["vision_config"]))

    def check(self, checkpoint: Checkpoint) -> None:
        """Refuse halves that do not fit each other.

        :raises CheckpointError: naming what does not.
        """
        where, given, taken = checkpoint.path / "config.json", self.vision.out_hidden_size, self.text.hidden_size
        qwen_vision.check(self.text, where)
        if given != taken:
            raise CheckpointError(f"{where}: the tower gives {given} features a token, the decoder takes {taken}")


class Qwen3VL(mlx_nn.Module):
    """Token ids and images to hidden states ``[B, L, D]``."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.visual = tower.Visual(config.vision)
        self.language_model = decoder.Decoder(config.text)

    def __call__(self, batch: Batch) -> mx.array:
        x = self.language_model.embed_tokens(batch.input_ids)  # [B, L, D]
        image: qwen_vision.Vision | None = batch.image
        mask = self.language_model.mask(batch.attention_mask)
        if image is None:
            return self.language_model(x, mask)
        features = [self.visual(patches) for patches in image.images]
        tokens = mx.concatenate([tokens for tokens, _ in features])
        deep = [mx.concatenate(list(parts)) for parts in zip(*(parts for _, parts in features), strict=True)]
        nothing = mx.zeros_like(x)
        return self.language_model(
            vision.place(x, image.slots, tokens),
            mask,
            mx.array(image.positions[:, None]),  # [3, 1, L]
            {i: vision.place(nothing, image.slots, layer) for i, layer in enumerate(deep)},
        )


def renamed(checkpoint: Checkpoint, weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """The tensors under the names of `Qwen3VL`, and those of the head under ``lm_head``."""
    found = {}
    for name, tensor in weights.items():
        for pattern, into in RENAMES:
            name = pattern.sub(into, name)
        found[name] = tensor
    if PATCHES in found:
        channels = tower.Config.of(checkpoint.config["vision_config"]).channels
        found[PATCHES] = qwen_vision.flat_filter(found[PATCHES], channels)
    return found
