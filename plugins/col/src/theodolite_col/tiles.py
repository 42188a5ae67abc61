"""Idefics3's pages: the longest edge to one size, cut into square tiles, and the whole page as one more tile."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from theodolite.checkpoint import Checkpoint
from theodolite.errors import CheckpointError
from theodolite.nn import vit
from theodolite.pixels import FILE, LANCZOS, Pixels

if TYPE_CHECKING:
    from PIL.Image import Image

LARGEST = 4096
FAKE, IMAGE, GLOBAL = "<fake_token_around_image>", "<image>", "<global-img>"


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
        """Read preprocessor_config.json.

        :raises CheckpointError: where it is missing, or cuts tiles of another size than the tower has positions for.
        """
        if not checkpoint.has(FILE):
            raise CheckpointError(f"{checkpoint.path / FILE} is missing; it says how a page is cut into tiles")
        settings, tower = checkpoint.json(FILE), vit.Config.of(checkpoint.config["vision_config"])
        tile = (settings.get("max_image_size") or {}).get("longest_edge", 364)
        if tile != tower.image_size:
            raise CheckpointError(
                f"{checkpoint.path / FILE} cuts tiles of {tile} pixels, the tower takes {tower.image_size}"
            )
        return cls(
            pixels=Pixels.of(checkpoint, settings, LANCZOS),
            tile=tile,
            longest_edge=(settings.get("size") or {}).get("longest_edge", 4 * tile),
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
