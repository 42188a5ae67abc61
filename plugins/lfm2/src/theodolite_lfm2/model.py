"""The LFM2 hybrid stack (Liquid AI 2025) made bidirectional: gated short convolutions and attention in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite.errors import CheckpointError
from theodolite.nn import Embedding, Linear, RMSNorm, attention, gated, keys, linears
from theodolite.nn.masks import Mask
from theodolite.nn.rope import Rope, RopeConfig
from theodolite.values import Batch

REQUIRED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
DEFAULT_BASE = 1_000_000.0


@dataclass(frozen=True, kw_only=True)
class Config:
    """The keys of config.json that the stack reads."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    norm_eps: float
    conv_taps: int
    conv_bias: bool
    attends: tuple[bool, ...]
    """Per layer: attention if true, else convolution."""
    rope: RopeConfig

    @classmethod
    def of(cls, config: dict[str, Any]) -> Config:
        """Read config.json in either spelling.

        :raises CheckpointError: for a missing key.
        """
        keys.require(config, *REQUIRED)
        heads = config["num_attention_heads"]
        return cls(
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            intermediate_size=_intermediate_size(config),
            num_attention_heads=heads,
            num_key_value_heads=keys.key_value_heads(config),
            norm_eps=float(config.get("norm_eps") or config.get("block_norm_eps") or 1e-5),
            conv_taps=int(config.get("conv_L_cache") or 3),
            conv_bias=bool(config.get("conv_bias")),
            attends=_attends(config),
            rope=RopeConfig.of(config, config["hidden_size"] // heads, base=DEFAULT_BASE),
        )


def _intermediate_size(config: dict[str, Any]) -> int:
    """LFM2 exports give the width before it is shrunk by 2/3, scaled and rounded up; LFM2.5 the final one."""
    width = config.get("block_ff_dim") or config.get("intermediate_size")
    if width is None:
        raise CheckpointError("config.json: intermediate_size is missing")
    if config.get("block_auto_adjust_ff_dim", True):
        width = int(2 * width / 3)
        if (factor := config.get("block_ffn_dim_multiplier", 1.0)) is not None:
            unit = config.get("block_multiple_of") or 256
            width = unit * -(-int(factor * width) // unit)
    return int(width)


def _attends(config: dict[str, Any]) -> tuple[bool, ...]:
    count = config["num_hidden_layers"]
    if kinds := keys.layer_types(config, served=(keys.FULL, "conv")):
        return tuple(kind == keys.FULL for kind in kinds)
    chosen = config.get("full_attn_idxs")
    if chosen is None:
        raise CheckpointError("config.json: neither layer_types nor full_attn_idxs says which layers attend")
    return tuple(i in chosen for i in range(count))


class Attention(mlx_nn.Module):
    """Grouped-query attention with normed heads, over every real token."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        head_dim = config.hidden_size // config.num_attention_heads
        shared = config.num_key_value_heads * head_dim
        self.q_proj = Linear(config.hidden_size, config.hidden_size, bias=False)
        self.k_proj = Linear(config.hidden_size, shared, bias=False)
        self.v_proj = Linear(config.hidden_size, shared, bias=False)
        self.out_proj = Linear(config.hidden_size, config.hidden_size, bias=False)
        self.q_layernorm = RMSNorm(head_dim, eps=config.norm_eps)
        self.k_layernorm = RMSNorm(head_dim, eps=config.norm_eps)
        self._heads, self._groups = config.num_attention_heads, config.num_key_value_heads
        self._rope = Rope(config.rope)

    def __call__(self, x: mx.array, mask: Mask) -> mx.array:
        b, length, _ = x.shape
        q, k, v = linears(x, (self.q_proj, self.k_proj, self.v_proj))
        q = self.q_layernorm(q.reshape(b, length, self._heads, -1))  # [B, L, H, D]
        k = self.k_layernorm(k.reshape(b, length, self._groups, -1))
        v = v.reshape(b, length, self._groups, -1)
        q, k, v = (part.swapaxes(1, 2) for part in (q, k, v))  # [B, H, L, D]
        o = attention(self._rope(q), self._rope(k), v, scale=q.shape[-1] ** -0.5, mask=mask)
        return self.out_proj(o)


class Taps(mlx_nn.Module):
    """The depthwise kernel: ``[D, taps, 1]``."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.weight = mx.zeros((config.hidden_size, config.conv_taps, 1))
        if config.conv_bias:
            self.bias = mx.zeros((config.hidden_size,))


class ShortConv(mlx_nn.Module):
    """``C * conv(B * x)`` with the taps centred on each position instead of before it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.in_proj = Linear(config.hidden_size, 3 * config.hidden_size, bias=config.conv_bias)
        self.out_proj = Linear(config.hidden_size, config.hidden_size, bias=config.conv_bias)
        self.conv = Taps(config)

    def __call__(self, x: mx.array, mask: Mask) -> mx.array:
        length = x.shape[1]
        gate_in, gate_out, value = mx.split(self.in_proj(x), 3, axis=-1)  # [B, L, D] each
        # a convolution has no keys to mask, and in_proj's bias is not zero: padding is cleared after the product
        z = gate_in * value * mask.attention_mask[..., None].astype(x.dtype)
        taps = self.conv.weight.shape[1]
        left = taps - 1 - (taps - 1) // 2
        z = mx.pad(z, [(0, 0), (left, taps - 1 - left), (0, 0)])  # [B, L + taps - 1, D]
        y = sum(z[:, tap : tap + length] * self.conv.weight[:, tap, 0] for tap in range(taps))
        if "bias" in self.conv:
            y = y + self.conv.bias
        return self.out_proj(gate_out * y)


class FeedForward(mlx_nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.w1 = Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.w3 = Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.w2 = Linear(config.intermediate_size, config.hidden_size, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        gate, up = linears(x, (self.w1, self.w3))
        return self.w2(gated(gate, up, "silu"))


class Layer(mlx_nn.Module):
    """A pre-norm operator, attention or convolution, and a pre-norm feed-forward block."""

    def __init__(self, config: Config, attends: bool) -> None:
        super().__init__()
        if attends:
            self.self_attn = Attention(config)
        else:
            self.conv = ShortConv(config)
        self.feed_forward = FeedForward(config)
        self.operator_norm = RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.ffn_norm = RMSNorm(config.hidden_size, eps=config.norm_eps)
        self._attends = attends

    def __call__(self, x: mx.array, mask: Mask) -> mx.array:
        operator = self.self_attn if self._attends else self.conv
        x = x + operator(self.operator_norm(x), mask)
        return x + self.feed_forward(self.ffn_norm(x))


class Lfm2(mlx_nn.Module):
    """Token ids to hidden states ``[B, L, D]`` after the final norm, which LFM2 calls embedding_norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = [Layer(config, attends) for attends in config.attends]
        self.embedding_norm = RMSNorm(config.hidden_size, eps=config.norm_eps)

    def __call__(self, batch: Batch) -> mx.array:
        mask = Mask(batch.attention_mask)
        x = self.embed_tokens(batch.input_ids)
        for layer in self.layers:
            x = layer(x, mask)
        return self.embedding_norm(x)
