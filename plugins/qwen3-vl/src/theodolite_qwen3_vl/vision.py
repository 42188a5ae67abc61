"""The Qwen3-VL vision tower: interpolated position table, full attention, DeepStack (Meng et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as mlx_nn
import numpy as np

from theodolite import nn
from theodolite.errors import CheckpointError
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
    side: int
    """The position table is ``side * side`` rows."""
    deepstack: tuple[int, ...]
    """Layers whose states are also merged, for the first layers of the decoder."""
    act: str

    @classmethod
    def of(cls, config: dict[str, Any]) -> Config:
        """Read vision_config.

        :raises Unsupported: for an activation that is not served.
        :raises CheckpointError: for a position table that is no square, or a DeepStack layer that is not there.
        """
        rows, depth = config.get("num_position_embeddings", 2304), config.get("depth", 27)
        deepstack = tuple(config.get("deepstack_visual_indexes", (8, 16, 24)))
        if (side := round(rows**0.5)) ** 2 != rows:
            raise CheckpointError(f"config.json: vision_config.num_position_embeddings {rows} is no square")
        if any(not 0 <= index < depth for index in deepstack):
            raise CheckpointError(f"config.json: deepstack_visual_indexes {list(deepstack)} lie outside {depth} layers")
        channels = config.get("in_channels", 3)
        return cls(
            depth=depth,
            hidden_size=config.get("hidden_size", 1152),
            intermediate_size=config.get("intermediate_size", 4304),
            num_heads=config.get("num_heads", 16),
            out_hidden_size=config.get("out_hidden_size", 3584),
            patch=channels * config.get("temporal_patch_size", 2) * config.get("patch_size", 16) ** 2,
            channels=channels,
            merge=config.get("spatial_merge_size", 2),
            side=side,
            deepstack=deepstack,
            act=keys.activation(config, "hidden_act", default="gelu_pytorch_tanh"),
        )


class MLP(mlx_nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.linear_fc2 = nn.Linear(config.intermediate_size, config.hidden_size)
        self._act = config.act

    def __call__(self, x: mx.array) -> mx.array:
        return self.linear_fc2(self.linear_fc1(x, act=self._act))


class Block(mlx_nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.hidden_size, eps=EPS)
        self.norm2 = nn.LayerNorm(config.hidden_size, eps=EPS)
        self.attn = qwen_vision.Attention(config.hidden_size, config.num_heads)
        self.mlp = MLP(config)

    def __call__(self, x: mx.array, cos_sin: tuple[mx.array, mx.array]) -> mx.array:
        x = x + self.attn(self.norm1(x), cos_sin)
        return x + self.mlp(self.norm2(x))


class PatchMerger(mlx_nn.Module):
    """``merge * merge`` patches to one visual token; DeepStack's normalize after they are joined, not before."""

    def __init__(self, config: Config, *, joined_norm: bool) -> None:
        super().__init__()
        self._width = config.hidden_size * config.merge**2
        self._joined_norm = joined_norm
        self.norm = nn.LayerNorm(self._width if joined_norm else config.hidden_size, eps=EPS)
        self.linear_fc1 = nn.Linear(self._width, self._width)
        self.linear_fc2 = nn.Linear(self._width, config.out_hidden_size)

    def __call__(self, x: mx.array) -> mx.array:
        x = x.reshape(-1, self._width) if self._joined_norm else x
        x = self.norm(x).reshape(-1, self._width)  # [N / merge^2, merge^2 * D]
        return self.linear_fc2(self.linear_fc1(x, act="gelu"))


class Visual(mlx_nn.Module):
    """The tower: an image's patches to visual tokens, and to what DeepStack adds to the decoder's first layers."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.patch_embed = qwen_vision.PatchEmbed(config.patch, config.hidden_size, bias=True)
        self.pos_embed = nn.Embedding(config.side**2, config.hidden_size)
        self.blocks = [Block(config) for _ in range(config.depth)]
        self.merger = PatchMerger(config, joined_norm=False)
        self.deepstack_merger_list = [PatchMerger(config, joined_norm=True) for _ in config.deepstack]
        self._config = config

    def __call__(self, patches: Patches) -> tuple[mx.array, list[mx.array]]:
        """Visual tokens ``[T, D]``, and one ``[T, D]`` per DeepStack layer, in the order of the layers."""
        where = qwen_vision.patch_positions(patches)
        corners, shares = corner_shares(where, (patches.rows, patches.columns), self._config.side)
        table = self.pos_embed(mx.array(corners))  # [N, 4, D]
        positions = (table * mx.array(shares)[..., None]).sum(axis=1).astype(table.dtype)
        x = self.patch_embed(mx.array(patches.pixels).astype(table.dtype)) + positions  # [N, D]
        cos_sin = qwen_vision.rotation(where, self._config.hidden_size // self._config.num_heads)
        stacked = []
        for index, block in enumerate(self.blocks):
            x = block(x, cos_sin)
            if index in self._config.deepstack:
                stacked.append(self.deepstack_merger_list[self._config.deepstack.index(index)](x))
        return self.merger(x), stacked


def corner_shares(where: np.ndarray, grid: tuple[int, int], side: int) -> tuple[np.ndarray, np.ndarray]:
    """Bilinear interpolation of a ``side * side`` table over a grid whose corners are the table's corners.

    :param where: row and column of each patch, ``[N, 2]``.
    :returns: four rows of the table per patch ``[N, 4]`` int32, never outside it, and their shares ``[N, 4]`` float32.
    """
    steps = (side - 1) / np.maximum(np.asarray(grid) - 1, 1)
    exact = where * steps  # [N, 2]
    low = np.minimum(exact.astype(np.int32), side - 1)
    high = np.minimum(low + 1, side - 1)
    part = exact - low
    corners = [(a[:, 0] * side + b[:, 1]) for a in (low, high) for b in (low, high)]
    shares = [a * b for a in (1 - part[:, 0], part[:, 0]) for b in (1 - part[:, 1], part[:, 1])]
    return np.stack(corners, axis=1).astype(np.int32), np.stack(shares, axis=1).astype(np.float32)
