"""Rotary position embeddings (Su et al. 2021) in the variants that published checkpoints use.

A wrong base still gives cosine 0.95, so every key of the configuration is read or refused, in both spellings:
``rope_theta`` + ``rope_scaling`` (transformers 4) and ``rope_parameters`` (transformers 5), the latter possibly per
layer type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from theodolite.errors import CheckpointError, Unsupported
from theodolite.nn import kernels

DEFAULT_BASE = 10_000.0


@dataclass(frozen=True)
class Sections:
    """How the frequencies of M-RoPE are shared by temporal, height and width positions (Qwen2-VL, Wang et al. 2024)."""

    sizes: tuple[int, int, int]
    interleaved: bool = False
    """Qwen3-VL deals the frequencies out in turn (THWTHW...), Qwen2.5-VL in three blocks."""

    def axis(self, frequencies: int) -> np.ndarray:
        """Which axis (0 temporal, 1 height, 2 width) turns each frequency: ``[D / 2]``."""
        if not self.interleaved:
            return np.repeat(np.arange(3), self.sizes)
        axis = np.zeros(frequencies, np.int32)
        for which in (1, 2):
            axis[which : self.sizes[which] * 3 : 3] = which
        return axis


@dataclass(frozen=True)
class RopeConfig:
    """The parameters of one rotary embedding."""

    head_dim: int
    base: float = DEFAULT_BASE
    type: str = "default"
    factor: float = 1.0
    original_max_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True
    sections: Sections | None = None

    @classmethod
    def of(
        cls,
        config: dict[str, Any],
        head_dim: int,
        *,
        layer_type: str | None = None,
        base: float = DEFAULT_BASE,
        interleaved: bool = False,
    ) -> RopeConfig:
        """Read the keys of a (text) config.json.

        :param layer_type: for configurations that give parameters per layer type, such as ``full_attention``.
        :param base: where the configuration names none.
        :param interleaved: how the family shares the frequencies where there are sections; `Sections` explains.
        :raises Unsupported: for a kind of scaling that is not served, or layer types that differ where one is wanted.
        :raises CheckpointError: for keys that contradict each other, or one that the kind of scaling needs.
        """
        given = _of_layers(parameters(config), layer_type)
        kind = given.get("rope_type") or given.get("type") or "default"
        if kind == "mrope":
            kind = "default"
        if kind not in ("default", "linear", "llama3", "yarn"):
            raise Unsupported(f"config.json: rope_type {kind!r} is not supported (default, linear, llama3, yarn are)")
        if (part := given.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0) != 1.0:
            raise Unsupported(f"config.json: partial_rotary_factor {part} is not supported, only 1.0")
        longest = config.get("max_position_embeddings") or 0
        # beside the block it wins over the one within, as in the reference
        original = config.get("original_max_position_embeddings") or given.get("original_max_position_embeddings")
        original = original or longest
        if kind in ("llama3", "yarn") and not original:
            raise CheckpointError(f"config.json: rope_type {kind!r} needs original_max_position_embeddings")
        if kind != "default" and given.get("factor") is None:
            if kind != "yarn" or not longest:
                raise CheckpointError(f"config.json: rope_type {kind!r} needs a factor")
            given = {**given, "factor": longest / original}
        factor = float(given.get("factor") or 1.0)
        sections = given.get("mrope_section")
        return cls(
            head_dim=head_dim,
            base=float(given.get("rope_theta") or config.get("rope_theta") or base),
            type=kind,
            factor=factor,
            original_max_positions=int(original),
            low_freq_factor=float(given.get("low_freq_factor") or 1.0),
            high_freq_factor=float(given.get("high_freq_factor") or 4.0),
            beta_fast=float(given.get("beta_fast") or 32.0),
            beta_slow=float(given.get("beta_slow") or 1.0),
            attention_factor=_attention_factor(given, factor) if kind == "yarn" else 1.0,
            truncate=given.get("truncate", True) is not False,
            sections=Sections(tuple(sections), interleaved) if sections else None,
        )

    def wavelengths(self) -> np.ndarray:
        """Positions per radian of each frequency: ``[head_dim / 2]`` float64."""
        plain = self.base ** (np.arange(0, self.head_dim, 2, dtype=np.float64) / self.head_dim)
        match self.type:
            case "linear":
                return plain * self.factor
            case "llama3":
                return self._llama3(plain)
            case "yarn":
                return self._yarn(plain)
        return plain

    def _llama3(self, plain: np.ndarray) -> np.ndarray:
        """Llama 3.1: long waves are stretched by the factor, short ones kept, those between blended."""
        wave = 2 * math.pi * plain
        turns = self.original_max_positions / wave
        smooth = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        smooth = np.clip(smooth, 0.0, 1.0)
        return 1.0 / ((1 - smooth) / (plain * self.factor) + smooth / plain)

    def _yarn(self, plain: np.ndarray) -> np.ndarray:
        """YaRN (Peng et al. 2023): a ramp over the frequencies between interpolation and extrapolation."""

        def dimension(rotations: float) -> float:
            position = math.log(self.original_max_positions / (rotations * 2 * math.pi))
            return self.head_dim * position / (2 * math.log(self.base))

        low, high = dimension(self.beta_fast), dimension(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.head_dim - 1)
        ramp = np.clip((np.arange(len(plain)) - low) / ((high - low) or 0.001), 0.0, 1.0)
        return 1.0 / (ramp / (plain * self.factor) + (1 - ramp) / plain)


def parameters(config: dict[str, Any]) -> dict[str, Any]:
    """The block of rotary parameters, under whichever of its two names; empty where there is none.

    :raises CheckpointError: if both are there and say different things.
    """
    new, old = config.get("rope_parameters") or {}, config.get("rope_scaling") or {}
    if new and old and _plain(new) != _plain(old):
        raise CheckpointError(
            "config.json: rope_parameters and rope_scaling contradict each other; only one may be given"
        )
    return new or old


def _plain(given: dict[str, Any]) -> dict[str, Any]:
    kind = given.get("rope_type") or given.get("type") or "default"
    return {"type": kind, **{k: v for k, v in given.items() if k not in ("type", "rope_type", "rope_theta")}}


def _of_layers(given: dict[str, Any], layer_type: str | None) -> dict[str, Any]:
    """The parameters of ``layer_type``, or the ones that all layer types share."""
    kinds = {kind: own for kind, own in given.items() if isinstance(own, dict)}
    if not kinds:
        return given
    if layer_type is not None:
        return kinds.get(layer_type) or {}
    first, *others = kinds.values()
    if any(own != first for own in others):
        raise Unsupported(
            f"config.json: rope_parameters that differ by layer type ({', '.join(kinds)}) are not supported"
        )
    return first


def _attention_factor(given: dict[str, Any], factor: float) -> float:
    if given.get("attention_factor") is not None:
        return float(given["attention_factor"])

    def magnitude(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    top, bottom = given.get("mscale"), given.get("mscale_all_dim")
    return magnitude(top) / magnitude(bottom) if top and bottom else magnitude(1.0)


class Rope:
    """Rotates queries and keys ``[B, H, L, D]``; holds no state beyond its frequencies."""

    def __init__(self, config: RopeConfig) -> None:
        self.config = config
        self._wavelengths = mx.array(config.wavelengths().astype(np.float32))  # [D / 2]

    def __call__(self, x: mx.array, positions: mx.array | None = None) -> mx.array:
        """Rotate by positions 0..L, or by ``positions``: ``[B, L]``, or ``[3, B, L]`` for M-RoPE."""
        if self.config.attention_factor != 1.0:
            x = x * self.config.attention_factor
        if positions is None:
            return kernels.active.rope(x, self._wavelengths)
        return rotate(x, *self.angles(positions))

    def angles(self, positions: mx.array) -> tuple[mx.array, mx.array]:
        """Cosine and sine ``[B, 1, L, D / 2]`` of the angles at ``positions`` (``[B, L]`` or ``[3, B, L]``)."""
        angles = positions[..., None].astype(mx.float32) / self._wavelengths  # [..., B, L, D / 2]
        if positions.ndim == 3:
            sections = self.config.sections
            if sections is None:
                raise Unsupported("config.json: three-axis positions need rope_scaling.mrope_section")
            axis = mx.array(sections.axis(angles.shape[-1]).astype(np.int32))
            angles = mx.take_along_axis(angles, axis[None, None, None], axis=0)[0]  # [B, L, D / 2]
        return mx.cos(angles)[:, None], mx.sin(angles)[:, None]


def rotate(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    """Turn the two halves of every head against each other: ``[B, H, L, D]`` by angles ``[B, 1, L, D / 2]``."""
    first, second = mx.split(x, 2, axis=-1)
    cos, sin = cos.astype(x.dtype), sin.astype(x.dtype)
    return mx.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
