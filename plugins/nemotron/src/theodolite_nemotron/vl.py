"""Llama-Nemotron-VL-Embed: SigLIP tiles, pixel shuffle and a connector, and Llama attending both ways, mean pooled."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx
import mlx.nn as mlx_nn
import numpy as np

from theodolite import nn
from theodolite.checkpoint import Checkpoint
from theodolite.errors import CheckpointError, RequestError, Unsupported
from theodolite.hookspecs import hookimpl
from theodolite.nn import decoder, masks, vision, vit
from theodolite.values import Batch, Fit, ImageItem, Item, Pooling, Profile, Prompt
from theodolite_nemotron.tiles import Processor

if TYPE_CHECKING:
    from theodolite.tokenize import Tokenizer

DOCUMENT = "passage: <img>{}</img> "
CONTEXT = "<IMG_CONTEXT>"
SERVED = {"select_layer": -1, "ps_version": "v2", "pre_feature_reduction": False}
"""What the connector's settings must be, where config.json names them."""
DROPPED = re.compile(r"^vision_model\.vision_model\.head\.|^language_model\.lm_head\.|(^|\.)(position_ids|inv_freq)$")


@dataclass(frozen=True, eq=False)
class Tiles:
    """An image cut into tiles, and where its visual tokens stand in the row."""

    pixels: np.ndarray
    """``[T, tile, tile, 3]``."""
    slots: np.ndarray


@dataclass(frozen=True)
class Config:
    """The parts of config.json."""

    text: decoder.Config
    tower: vit.Config
    side: int
    """``side * side`` patches become one visual token."""
    image_token: int

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Config:
        """Read config.json.

        :raises CheckpointError: where a part is missing.
        :raises Unsupported: for a connector that is not served.
        """
        config, where = checkpoint.config, checkpoint.path / "config.json"
        for key, served in SERVED.items():
            if config.get(key, served) != served:
                raise Unsupported(f"{where}: {key} {config[key]!r} is not supported, only {served!r}")
        for key, kind in (("llm_config", dict), ("vision_config", dict), ("img_context_token_id", int)):
            if not isinstance(config.get(key), kind):
                raise CheckpointError(f"{where}: {key} is missing")
        return cls(
            text=decoder.Config.of(config["llm_config"]),
            tower=vit.Config.of(config["vision_config"]),
            side=round(1 / config.get("downsample_ratio", 0.5)),
            image_token=config["img_context_token_id"],
        )


class NemotronVL(mlx_nn.Module):
    """Token ids and tiles to hidden states ``[B, L, D]``."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        wide, width = config.tower.hidden_size * config.side**2, config.text.hidden_size
        self.vision_model = vit.VisionTower(config.tower)
        self.mlp1 = [nn.LayerNorm(wide), nn.Linear(wide, width), mlx_nn.GELU(), nn.Linear(width, width)]
        self.language_model = decoder.Decoder(config.text)
        self._side = config.side

    def image_features(self, pixels: np.ndarray, dtype: mx.Dtype) -> mx.array:
        """Visual tokens of all tiles, one after the other: ``[T, tile, tile, 3]`` -> ``[T * n, D]``."""
        norm, up, _, out = self.mlp1
        x = vision.pixel_shuffle(vision.by_tile(self.vision_model, pixels, dtype), self._side)
        x = out(up(norm(x), act="gelu"))
        return x.reshape(-1, x.shape[-1])

    def __call__(self, batch: Batch) -> mx.array:
        x = self.language_model.embed_tokens(batch.input_ids)  # [B, L, D]
        tiles: Tiles | None = batch.image
        if tiles is not None:
            x = vision.place(x, tiles.slots, self.image_features(tiles.pixels, x.dtype))
        return self.language_model(x, masks.padding(batch.attention_mask))


@hookimpl
def detect(checkpoint: Checkpoint) -> Profile | None:
    if checkpoint.model_type != "llama_nemotron_vl":
        return None
    text = Config.of(checkpoint).text
    return Profile(
        family="nemotron-vl",
        fit=Fit.ARCHITECTURE if checkpoint.architecture == "LlamaNemotronVLModel" else Fit.MODEL_TYPE,
        vocab_size=text.vocab_size,
        dim=text.hidden_size,
        pooling=Pooling.MEAN,
        normalize=checkpoint.config.get("normalize") is not False,
        images=True,
    )


@hookimpl
def build(checkpoint: Checkpoint) -> mlx_nn.Module:
    Processor.of(checkpoint)  # a folder that cannot see is refused now, not at the first image
    return NemotronVL(Config.of(checkpoint))


@hookimpl
def sanitize(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    kept = {name: tensor for name, tensor in weights.items() if not DROPPED.search(name)}
    kept = {name.replace("vision_model.vision_model.", "vision_model.", 1): tensor for name, tensor in kept.items()}
    return vit.channels_first(kept)


@hookimpl
def prompt(checkpoint: Checkpoint, item: Item, tokenizer: Tokenizer, limit: int) -> Prompt | None:
    if not isinstance(item, ImageItem):
        return None
    if item.text:
        raise RequestError("this model takes an image or a text, not both in one input")
    config = Config.of(checkpoint)
    pixels = Processor.of(checkpoint)(item.image)
    tokens = len(pixels) * (pixels.shape[1] // config.tower.patch_size // config.side) ** 2
    ids = tokenizer.encode(DOCUMENT.format(CONTEXT * tokens))
    if len(ids) > limit:
        raise RequestError(f"the image needs {len(ids)} tokens, max_length is {limit}")
    return Prompt(ids=tuple(ids), image=Tiles(pixels, vision.slots(ids, config.image_token, tokens)))


@hookimpl
def forward(model: NemotronVL, batch: Batch) -> mx.array:
    return model(batch)
