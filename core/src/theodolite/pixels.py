"""From an RGB image to the numbers a vision tower takes: NumPy and Pillow only, any thread.

Pillow's filters are the ones the references use (bicubic for Qwen-VL and Nemotron, Lanczos for Idefics3); torchvision's
antialiased filters differ from them by a rounding step per pixel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from theodolite.errors import CheckpointError, RequestError, Unsupported

if TYPE_CHECKING:
    from PIL.Image import Image

    from theodolite.checkpoint import Checkpoint

FILE, COMBINED = "preprocessor_config.json", "processor_config.json"
BICUBIC, LANCZOS = 3, 1
"""Filters by Pillow's numbers, as ``resample`` has them."""
WORST_RATIO = 200
"""Of the longer side to the shorter: beyond this the Qwen-VL processors refuse a picture."""


def settings(checkpoint: Checkpoint) -> tuple[Path, dict[str, Any]] | None:
    """The image processor's settings and their file, None where there are none.

    transformers 5 puts them into processor_config.json, under ``image_processor``, and takes those first.
    """
    combined = checkpoint.json(COMBINED).get("image_processor")
    if isinstance(combined, dict):
        return checkpoint.path / COMBINED, combined
    return (checkpoint.path / FILE, checkpoint.json(FILE)) if checkpoint.has(FILE) else None


def required_settings(checkpoint: Checkpoint, what: str) -> tuple[Path, dict[str, Any]]:
    """`settings`, where there have to be some.

    :param what: what they say.
    :raises CheckpointError: where there are none.
    """
    found = settings(checkpoint)
    if found is None:
        raise CheckpointError(f"{checkpoint.path / FILE} is missing; it says {what}")
    return found


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """How pixels are resized and scaled: the settings that all image processors have."""

    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    scale: float = 1 / 255
    resample: int = BICUBIC

    @classmethod
    def of(cls, where: Path, settings: dict[str, Any], defaults: Pixels) -> Pixels:
        """Read an image processor's settings.

        :param where: the file they stand in.
        :param defaults: what the family's processor takes where they are silent.
        :raises Unsupported: for a step that is switched off; the towers were trained with all of them.
        """
        for key in ("do_resize", "do_rescale", "do_normalize"):
            if settings.get(key) is False:
                raise Unsupported(f"{where}: {key}: false is not supported")
        keys = {"image_mean": "mean", "image_std": "std", "rescale_factor": "scale", "resample": "resample"}
        given = {name: settings[key] for key, name in keys.items() if settings.get(key) is not None}
        for key in ("image_mean", "image_std"):
            if keys[key] in given:
                given[keys[key]] = _triple(where, key, given[keys[key]])
        return replace(defaults, **given)

    def resize(self, image: Image, width: int, height: int) -> Image:
        """The image at another size; as it is where the size is its own."""
        from PIL.Image import Resampling

        return image if image.size == (width, height) else image.resize((width, height), Resampling(self.resample))

    def numbers(self, image: Image) -> np.ndarray:
        """``(pixel * scale - mean) / std``: ``[H, W, 3]`` float32."""
        scaled = np.asarray(image, np.float32) * np.float32(self.scale)
        numbers: np.ndarray = (scaled - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        return numbers


QWEN = Pixels(mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711), resample=BICUBIC)
"""The Qwen2-VL processor's own numbers, which are CLIP's (Radford et al. 2021)."""


def _triple(where: Path, key: str, value: Any) -> tuple[float, ...]:
    if not isinstance(value, list) or len(value) != 3 or not all(isinstance(v, (int, float)) for v in value):
        raise CheckpointError(f"{where}: {key} should be three numbers, not {value!r}")
    return tuple(float(v) for v in value)


@dataclass(frozen=True, eq=False)
class Patches:
    """One image as a Qwen-VL tower takes it."""

    pixels: np.ndarray
    """``[rows * columns, channels * frames * patch * patch]`` float32; the patches of a merged token are neighbours."""
    rows: int
    columns: int
    """The grid, in patches; both are multiples of ``merge``."""
    merge: int

    @property
    def tokens(self) -> int:
        """Visual tokens: ``merge * merge`` patches become one."""
        return self.rows * self.columns // self.merge**2

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of visual tokens."""
        return self.rows // self.merge, self.columns // self.merge


@dataclass(frozen=True, kw_only=True)
class QwenProcessor:
    """The Qwen2-VL image processor, which Qwen2.5-VL and Qwen3-VL use too."""

    pixels: Pixels
    patch_size: int
    merge_size: int
    frames: int
    min_pixels: int
    max_pixels: int

    @classmethod
    def of(cls, checkpoint: Checkpoint, vision: dict[str, Any], patch_size: int) -> QwenProcessor:
        """Read the image processor's settings. Pixel bounds: min_pixels and max_pixels before size.

        :param vision: the tower's settings in config.json.
        :param patch_size: the family's, where the files name none.
        :raises CheckpointError: where file and tower disagree about the patches.
        """
        where, settings = required_settings(checkpoint, "how large an image may be")
        found = {
            "patch_size": settings.get("patch_size") or patch_size,
            "merge_size": settings.get("merge_size") or 2,
            "temporal_patch_size": settings.get("temporal_patch_size") or 2,
        }
        wanted = {
            "patch_size": vision.get("patch_size") or patch_size,
            "merge_size": vision.get("spatial_merge_size") or 2,
            "temporal_patch_size": vision.get("temporal_patch_size") or 2,
        }
        for key, value in wanted.items():
            if found[key] != value:
                raise CheckpointError(f"{where} says {key} {found[key]}, config.json says {value}")
        size = settings.get("size") or {}
        low = settings.get("min_pixels") or size.get("shortest_edge") or size.get("min_pixels") or 56 * 56
        high = settings.get("max_pixels") or size.get("longest_edge") or size.get("max_pixels") or 28 * 28 * 1280
        return cls(
            pixels=Pixels.of(where, settings, QWEN),
            patch_size=found["patch_size"],
            merge_size=found["merge_size"],
            frames=found["temporal_patch_size"],
            min_pixels=low,
            max_pixels=high,
        )

    def __call__(self, image: Image) -> Patches:
        """Resize, scale and cut one image.

        :raises RequestError: for an image that is more than 200 times as long as it is wide.
        """
        width, height = self.size(*image.size)
        numbers = self.pixels.numbers(self.pixels.resize(image, width, height))  # [H, W, C]
        p, m = self.patch_size, self.merge_size
        rows, columns = height // p, width // p
        cut = numbers.reshape(rows // m, m, p, columns // m, m, p, -1)
        cut = cut.transpose(0, 3, 1, 4, 6, 2, 5)[:, :, :, :, :, None]  # [R, C, m, m, channels, 1, p, p]
        cut = np.broadcast_to(cut, (*cut.shape[:5], self.frames, p, p))  # a still image fills every frame
        return Patches(np.ascontiguousarray(cut).reshape(rows * columns, -1), rows, columns, m)

    def size(self, width: int, height: int) -> tuple[int, int]:
        """The size at which a tower sees an image: whole tokens, near its ratio, within the pixel bounds."""
        if max(width, height) > WORST_RATIO * min(width, height):
            raise RequestError(
                f"the image is {width} x {height} pixels; its sides may not differ by more than {WORST_RATIO} times"
            )
        step = self.patch_size * self.merge_size
        w, h = round(width / step) * step, round(height / step) * step  # Python's round: a half goes to even
        if w * h > self.max_pixels:
            shrink = math.sqrt(width * height / self.max_pixels)
            w, h = (max(step, math.floor(side / shrink / step) * step) for side in (width, height))
        elif w * h < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (width * height))
            w, h = (math.ceil(side * grow / step) * step for side in (width, height))
        return w, h
