"""The Qwen2.5-VL vision tower (Bai et al. 2025): attention within windows, and over the whole page in a few layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as mlx_nn
import numpy as np

from theodolite import nn
from theodolite.nn import keys, qwen_vision
from theodolite.pixels import Patches

EPS = 1e-6


@dataclass(frozen=True)
class Config:
    """The keys of config.json's vision_config that the tower reads."""

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    out_hidden_size: int
    patch: int
    """Numbers of one patch: channels * frames * P * P."""
    channels: int
    merge: int
    window: int
    """Side of a window, in visual tokens."""
    full_layers: frozenset[int]
    act: str

    @classmethod
    def of(cls, config: dict[str, Any]) -> Config:
        """Read vision_config.

        :raises Unsupported: for an activation that is not served.
        """
        channels = config.get("in_channels") or config.get("in_chans") or 3
        patch_size, merge = config.get("patch_size", 14), config.get("spatial_merge_size", 2)
        return cls(
            depth=config.get("depth", 32),
            hidden_size=config.get("hidden_size", 1280),
            intermediate_size=config.get("intermediate_size", 3420),
            num_heads=config.get("num_heads", 16),
            out_hidden_size=config.get("out_hidden_size", 2048),
            patch=channels * config.get("temporal_patch_size", 2) * patch_size**2,
            channels=channels,
            merge=merge,
            window=config.get("window_size", 112) // merge // patch_size,
            full_layers=frozenset(config.get("fullatt_block_indexes", (7, 15, 23, 31))),
            act=keys.activation(config, "hidden_act", default="silu"),
        )


class Block(mlx_nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(config.hidden_size, eps=EPS)
        self.norm2 = nn.RMSNorm(config.hidden_size, eps=EPS)
        self.attn = qwen_vision.Attention(config.hidden_size, config.num_heads)
        self.mlp = nn.GatedMLP(config.hidden_size, config.intermediate_size, config.act, bias=True)

    def __call__(
        self, x: mx.array, cos_sin: tuple[mx.array, mx.array], windows: list[tuple[int, int]] | None
    ) -> mx.array:
        x = x + self.attn(self.norm1(x), cos_sin, windows)
        return x + self.mlp(self.norm2(x))


class PatchMerger(mlx_nn.Module):
    """``merge * merge`` patches to one visual token."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._width = config.hidden_size * config.merge**2
        self.ln_q = nn.RMSNorm(config.hidden_size, eps=EPS)
        self.mlp = [nn.Linear(self._width, self._width), mlx_nn.GELU(), nn.Linear(self._width, config.out_hidden_size)]

    def __call__(self, x: mx.array) -> mx.array:
        x = self.ln_q(x).reshape(-1, self._width)  # [N / merge^2, merge^2 * D]
        return self.mlp[2](self.mlp[0](x, act="gelu"))


class Visual(mlx_nn.Module):
    """The tower: an image's patches to visual tokens ``[T, D]``."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.patch_embed = qwen_vision.PatchEmbed(config.patch, config.hidden_size, bias=False)
        self.blocks = [Block(config) for _ in range(config.depth)]
        self.merger = PatchMerger(config)
        self._config = config

    def __call__(self, patches: Patches) -> mx.array:
        unit = self._config.merge**2
        order, windows = by_window(patches.grid, self._config.window)
        patch_order = (order[:, None] * unit + np.arange(unit)).reshape(-1)
        where = qwen_vision.patch_positions(patches)[patch_order]
        cos_sin = qwen_vision.rotation(where, self._config.hidden_size // self._config.num_heads)
        groups = [(count, size * unit) for count, size in windows]
        x = self.patch_embed(mx.array(patches.pixels[patch_order]).astype(self.merger.ln_q.weight.dtype))  # [N, D]
        for index, block in enumerate(self.blocks):
            x = block(x, cos_sin, None if index in self._config.full_layers else groups)
        return self.merger(x)[mx.array(np.argsort(order).astype(np.int32))]


def by_window(grid: tuple[int, int], window: int) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """An order of visual tokens in which those of a window stand together, and windows of one size do.

    Windows at the right and lower edge are smaller, so there are at most four sizes, and each is one attention.

    :returns: the order ``[T]``, and (count, tokens) of each group of windows.
    """
    rows, columns = np.mgrid[0 : grid[0], 0 : grid[1]]
    across = -(-grid[1] // window)
    number = (rows // window * across + columns // window).reshape(-1)  # [T]
    sizes = np.bincount(number)
    order = np.lexsort((number, sizes[number]))
    kinds, counts = np.unique(sizes, return_counts=True)
    return order, [(int(count), int(kind)) for kind, count in zip(kinds, counts, strict=True)]
