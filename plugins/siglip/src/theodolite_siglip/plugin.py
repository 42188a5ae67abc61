"""The SigLIP family: what it claims, how it loads, how it runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite import pixels
from theodolite.checkpoint import Checkpoint
from theodolite.errors import CheckpointError, RequestError, Unsupported
from theodolite.hookspecs import hookimpl
from theodolite.nn import vit
from theodolite.pixels import BICUBIC, FILE, Pixels
from theodolite.values import Batch, Fit, ImageItem, Item, Pooling, Profile, Prompt
from theodolite_siglip.model import TEXT_ONLY, Config, Siglip

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

ARCHITECTURES = {"SiglipModel", "SiglipTextModel"}
DROPPED = re.compile(r"^logit_(scale|bias)$|(^|\.)position_ids$")
FLAT = re.compile(r"^(embeddings|encoder|final_layer_norm|head)\.")
"""Names in exports of the text tower alone that leave out ``text_model.``."""


@dataclass(frozen=True)
class Processor:
    """The SigLIP image processor: every picture is stretched to the tower's square."""

    pixels: Pixels
    side: int

    @classmethod
    def of(cls, checkpoint: Checkpoint, side: int) -> Processor:
        """Read the image processor's settings.

        :param side: of the images that the tower takes.
        :raises CheckpointError: where the file makes images of another size.
        :raises Unsupported: for a step that SigLIP's processor does not have.
        """
        where, settings = pixels.required_settings(checkpoint, "how pixels are scaled")
        if settings.get("do_center_crop"):
            raise Unsupported(f"{where}: do_center_crop is not supported for SigLIP")
        size = settings.get("size") or {"height": 224, "width": 224}
        if size not in (side, {"height": side, "width": side}):
            raise CheckpointError(f"{where}: size is {size}, the vision tower takes {side} x {side}")
        return cls(Pixels.of(where, settings, Pixels(resample=BICUBIC)), side)

    def __call__(self, image: Image) -> np.ndarray:
        """One image as ``[side, side, 3]`` float32."""
        return self.pixels.numbers(self.pixels.resize(image, self.side, self.side))


def no_images(checkpoint: Checkpoint, config: Config) -> str | None:
    """Why the checkpoint serves no images, None where it does."""
    if config.vision is None:
        return "this is an export of the text tower alone"
    if pixels.settings(checkpoint) is None:
        return f"image input needs {FILE}, which this checkpoint lacks"
    if (checkpoint.config.get("vision_config") or {}).get("vision_use_head") is False:
        return "its vision tower has no pooling head (vision_use_head: false)"
    return None


@hookimpl
def detect(checkpoint: Checkpoint) -> Profile | None:
    if checkpoint.model_type not in ("siglip", TEXT_ONLY):
        return None
    config = Config.of(checkpoint.config)
    reason = no_images(checkpoint, config)
    return Profile(
        family="siglip",
        fit=Fit.ARCHITECTURE if checkpoint.architecture in ARCHITECTURES else Fit.MODEL_TYPE,
        vocab_size=config.vocab_size,
        dim=config.projection_size,
        pooling=Pooling.LASTTOKEN,
        pooling_fixed=True,
        normalize=checkpoint.normalize,
        images=reason is None,
        no_images=reason,
        max_positions=config.max_position_embeddings,
        width=config.max_position_embeddings,
        masked=False,
    )


@hookimpl
def build(checkpoint: Checkpoint, profile: Profile) -> mlx_nn.Module:
    config = Config.of(checkpoint.config)
    if profile.images and config.vision is not None:
        Processor.of(checkpoint, config.vision.image_size)  # a file that does not fit is refused now
        if config.vision.hidden_size != config.projection_size:
            raise CheckpointError(
                f"{checkpoint.path}: texts become {config.projection_size} numbers and images "
                f"{config.vision.hidden_size}, so they share no space"
            )
    return Siglip(config, profile.images)


@hookimpl
def sanitize(checkpoint: Checkpoint, weights: dict[str, mx.array]) -> dict[str, mx.array]:
    config = Config.of(checkpoint.config)
    blind = no_images(checkpoint, config) is not None
    kept = {
        f"text_model.{name}" if FLAT.search(name) else name: tensor
        for name, tensor in weights.items()
        if not DROPPED.search(name) and not (blind and name.startswith("vision_model."))
    }
    return vit.channels_first(kept)


@hookimpl
def prompt(checkpoint: Checkpoint, item: Item) -> Prompt | None:
    if not isinstance(item, ImageItem):
        return None
    if item.text:
        raise RequestError("this model takes an image or a text, not both in one input")
    vision = Config.of(checkpoint.config).vision
    assert vision is not None  # images are refused before this for an export of the text tower
    pixels = Processor.of(checkpoint, vision.image_size)(item.image)
    return Prompt(ids=(0,), image=pixels, prompt_tokens=0)  # a row needs an id; the vision tower reads none


@hookimpl
def forward(model: Siglip, batch: Batch) -> mx.array:
    return model(batch)


@hookimpl
def pool(model: Siglip, hidden: mx.array, batch: Batch) -> mx.array:
    return model.pool(hidden, batch)
