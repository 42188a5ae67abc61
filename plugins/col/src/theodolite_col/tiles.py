"""Idefics3's pages: the longest edge to one size, cut into square tiles, and the whole page as one more tile."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from theodolite.checkpoint import Checkpoint
from theodolite.errors import CheckpointError
from theodolite.nn import vit
from theodolite.pixels import LANCZOS, Pixels, required_settings

if TYPE_CHECKING:
    from PIL.Image import Image

LARGEST = 4096
LONGEST_EDGE = 1456
TOWER = {"hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32}
"""What Idefics3's vision configuration leaves out is not what SigLIP's does."""
FAKE, IMAGE, GLOBAL = "<fake_token_around_image>", "<image>", "<global-img>"


def tower_config(checkpoint: Checkpoint) -> vit.Config:
    """The settings of the vision tower in config.json."""
    return vit.Config.of(TOWER | checkpoint.config["vision_config"])


@dataclass(frozen=True, kw_only=True)
class Processor:
    """The Idefics3 image processor."""

    pixels: Pixels
    tile: int
    longest_edge: int
    split: bool
    side: int
    """A tile becomes ``side * side`` tokens."""

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Processor:
        """Read the image processor's settings.

        :raises CheckpointError: where they are missing, or cut tiles of another size than the tower has positions for.
        """
        where, settings = required_settings(checkpoint, "how a page is cut into tiles")
        tower = tower_config(checkpoint)
        tile = (settings.get("max_image_size") or {}).get("longest_edge", 364)
        if tile != tower.image_size:
            raise CheckpointError(f"{where} cuts tiles of {tile} pixels, the tower takes {tower.image_size}")
        size = settings.get("size") or {"longest_edge": LONGEST_EDGE}
        if not isinstance(size, dict) or "longest_edge" not in size:
            raise CheckpointError(f"{where}: size should have a longest_edge, it is {size}")
        return cls(
            pixels=Pixels.of(where, settings, Pixels(resample=LANCZOS)),
            tile=tile,
            longest_edge=size["longest_edge"],
            split=settings.get("do_image_splitting") is not False,
            side=tile // tower.patch_size // checkpoint.config.get("scale_factor", 2),
        )

    def __call__(self, image: Image) -> tuple[np.ndarray, tuple[int, int]]:
        """Tiles ``[T, tile, tile, 3]``, the whole page last, and how many rows and columns of tiles it was cut into.

        ``(0, 0)`` for a page that was not cut.
        """
        resize, tile = self.pixels.resize, self.tile
        image = resize(image, *self.longest(*image.size))
        sheets, rows, columns = [], 0, 0
        if self.split:
            image = resize(image, *self.whole_tiles(*image.size))
            if max(image.size) > tile:
                columns, rows = (edge // tile for edge in image.size)
                corners = ((c * tile, r * tile) for r in range(rows) for c in range(columns))
                sheets = [image.crop((x, y, x + tile, y + tile)) for x, y in corners]
        sheets.append(resize(image, tile, tile))
        return np.stack([self.pixels.numbers(sheet) for sheet in sheets]), (rows, columns)

    def longest(self, width: int, height: int) -> tuple[int, int]:
        """The size whose longest edge is `longest_edge`, upwards too; the other edge is made even."""
        edge, ratio = min(self.longest_edge, LARGEST), width / height
        if width >= height:
            other = int(edge / ratio)
            return edge, max(1, other + other % 2)
        other = int(edge * ratio)
        return max(1, other + other % 2), edge

    def whole_tiles(self, width: int, height: int) -> tuple[int, int]:
        """The size in whole tiles: the longer edge up to the next, the other by the ratio and then up too."""

        def up(edge: int) -> int:
            return math.ceil(edge / self.tile) * self.tile

        ratio = width / height
        if width >= height:
            return up(width), max(self.tile, up(int(up(width) / ratio)))
        return max(self.tile, up(int(up(height) * ratio))), up(height)

    def framed(self, rows: int, columns: int) -> str:
        """The placeholders of a page: every tile behind its marker, a line per row of tiles, the whole page last."""
        run = IMAGE * self.side**2
        lines = ["".join(f"{FAKE}<row_{r + 1}_col_{c + 1}>{run}" for c in range(columns)) + "\n" for r in range(rows)]
        return "".join(lines) + ("\n" if rows else "") + f"{FAKE}{GLOBAL}{run}{FAKE}"

    def cells(self, slots: np.ndarray, rows: int, columns: int) -> np.ndarray:
        """The token of each cell of the page, in reading order: those of the tiles, or of the whole page if uncut."""
        s = self.side
        if not rows:
            return slots.reshape(s, s)
        tiles = slots[: rows * columns * s * s].reshape(rows, columns, s, s)
        return tiles.swapaxes(1, 2).reshape(rows * s, columns * s)
