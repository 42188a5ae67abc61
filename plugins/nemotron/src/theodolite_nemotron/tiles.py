"""InternVL's dynamic tiling, with the area-aware choice of a grid that Llama-Nemotron-VL-Embed ships."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from theodolite.checkpoint import Checkpoint
from theodolite.errors import CheckpointError, Unsupported
from theodolite.nn import vit
from theodolite.pixels import BICUBIC, Pixels

if TYPE_CHECKING:
    from PIL.Image import Image

FILE = "processor_config.json"
ENOUGH_AREA = 0.6
"""A grid that has this share of the image's own pixels counts as large enough."""


@dataclass(frozen=True, kw_only=True)
class Processor:
    """Cuts an image into square tiles, and adds the whole image as one more where it was cut."""

    pixels: Pixels
    tile: int
    most: int
    thumbnail: bool

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Processor:
        """Read processor_config.json, and config.json where that is silent.

        :raises Unsupported: for a way of tiling or scaling that is not served.
        :raises CheckpointError: where the tiles are of another size than the tower has positions for.
        """
        config, own = checkpoint.config, checkpoint.json(FILE)

        def read(key: str, default: Any, other: str | None = None) -> Any:
            value = own.get(key)
            return config.get(other or key, default) if value is None else value

        for key, value, served in (
            ("norm_type", own.get("norm_type", "siglip"), "siglip"),
            ("keep_aspect_ratio", read("keep_aspect_ratio", False), False),
        ):
            if value != served:
                raise Unsupported(f"{checkpoint.path / FILE}: {key} {value!r} is not supported, only {served!r}")
        tile = read("image_size", 512, "force_image_size")
        if tile != (size := vit.Config.of(config["vision_config"]).image_size):
            raise CheckpointError(f"{checkpoint.path / FILE} cuts tiles of {tile} pixels, the tower takes {size}")
        return cls(
            pixels=Pixels(resample=BICUBIC),
            tile=tile,
            most=read("max_input_tiles", 6) if read("dynamic_image_size", True) else 1,
            thumbnail=read("use_thumbnail", True),
        )

    def __call__(self, image: Image) -> np.ndarray:
        """Tiles in reading order, then the thumbnail: ``[T, tile, tile, 3]`` float32."""
        tile = self.tile
        columns, rows = self.grid(*image.size)
        sheet = self.pixels.resize(image, columns * tile, rows * tile)
        corners = ((c * tile, r * tile) for r in range(rows) for c in range(columns))
        tiles = [sheet.crop((x, y, x + tile, y + tile)) for x, y in corners]
        if self.thumbnail and len(tiles) > 1:
            tiles.append(self.pixels.resize(image, tile, tile))
        return np.stack([self.pixels.numbers(piece) for piece in tiles])

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Columns and rows that fit the image's ratio best; of equals the one with fewer tiles."""
        grids = {
            (c, r)
            for n in range(1, self.most + 1)
            for c in range(1, n + 1)
            for r in range(1, n + 1)
            if c * r <= self.most
        }

        def value(grid: tuple[int, int]) -> float:
            # many grids tie but for rounding, so the order of the operations is the published one
            ratio, wanted = width / height, grid[0] / grid[1]
            area = grid[0] * grid[1] * self.tile**2 / (width * height)
            return min(area, ENOUGH_AREA) * min(wanted / ratio, ratio / wanted)

        return max(sorted(grids, key=lambda grid: grid[0] * grid[1]), key=value)  # max keeps the first of equals
