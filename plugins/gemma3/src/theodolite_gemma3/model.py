"""Gemma 3's text stack (Gemma Team 2025) with the two Dense projections of EmbeddingGemma behind it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite.errors import Unsupported
from theodolite.nn import Embedding, GatedMLP, Linear, attention, begin, kernels, keys, linears
from theodolite.nn.keys import FULL, SLIDING
from theodolite.nn.masks import Mask
from theodolite.nn.rope import Rope, RopeConfig
from theodolite.values import Batch

REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim")
GLOBAL_BASE, LOCAL_BASE = 1_000_000.0, 10_000.0


@dataclass(frozen=True, kw_only=True)
class Config:
    """The keys of config.json that the stack reads."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    scale: float
    act: str
    layer_types: tuple[str, ...]
    window: int
    """Keys with ``|q - k| >= window`` are blocked in sliding layers."""
    ropes: dict[str, RopeConfig]

    @classmethod
    def of(cls, config: dict[str, Any]) -> Config:
        """Read a (text) config.json.

        :raises CheckpointError: for a missing key.
        :raises Unsupported: for options that are not served.
        """
        keys.require(config, *REQUIRED)
        if config.get("attn_logit_softcapping"):
            raise Unsupported("config.json: attn_logit_softcapping is not supported")
        if config.get("attention_bias"):
            raise Unsupported("config.json: attention_bias is not supported")
        head_dim = config["head_dim"]
        return cls(
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_attention_heads=config["num_attention_heads"],
            num_key_value_heads=keys.key_value_heads(config),
            head_dim=head_dim,
            rms_norm_eps=float(config.get("rms_norm_eps") or 1e-6),
            scale=float(config.get("query_pre_attn_scalar") or 256) ** -0.5,
            act=keys.activation(config, "hidden_activation", "hidden_act", default="gelu_pytorch_tanh"),
            layer_types=_layer_types(config),
            # the reference reads a bidirectional W as the exclusive bound W // 2 + 1: half a window on each side
            window=int(config.get("sliding_window") or 4096) // 2 + 1,
            ropes=_ropes(config, head_dim),
        )


def _layer_types(config: dict[str, Any]) -> tuple[str, ...]:
    if kinds := keys.layer_types(config):
        return kinds
    period = config.get("sliding_window_pattern") or 6
    return tuple(SLIDING if (i + 1) % period else FULL for i in range(config["num_hidden_layers"]))


def _ropes(config: dict[str, Any], head_dim: int) -> dict[str, RopeConfig]:
    given, local = config.get("rope_parameters") or {}, float(config.get("rope_local_base_freq") or LOCAL_BASE)
    if isinstance(given.get(FULL), dict):
        return {
            FULL: RopeConfig.of(config, head_dim, layer_type=FULL, base=GLOBAL_BASE),
            SLIDING: RopeConfig.of({"rope_parameters": given.get(SLIDING)}, head_dim, base=local),
        }
    return {
        FULL: RopeConfig.of(config, head_dim, base=GLOBAL_BASE),
        SLIDING: RopeConfig(head_dim, base=local),
    }


class RMSNorm(mlx_nn.Module):
    """Gemma's norm stores its weight less one."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = mx.zeros((width,))
        self._eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        weight = (1.0 + self.weight.astype(mx.float32)).astype(x.dtype)
        return kernels.active.rms_norm(x, weight, self._eps)


class Attention(mlx_nn.Module):
    """Grouped-query attention with normed queries and keys; full and sliding layers rotate by their own base."""

    def __init__(self, config: Config, kind: str) -> None:
        super().__init__()
        width = config.num_attention_heads * config.head_dim
        shared = config.num_key_value_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, width, bias=False)
        self.k_proj = Linear(config.hidden_size, shared, bias=False)
        self.v_proj = Linear(config.hidden_size, shared, bias=False)
        self.o_proj = Linear(width, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self._config = config
        self._rope = Rope(config.ropes[kind])

    def __call__(self, x: mx.array, mask: Mask) -> mx.array:
        b, length, _ = x.shape
        config = self._config
        q, k, v = linears(x, (self.q_proj, self.k_proj, self.v_proj))
        q = self.q_norm(q.reshape(b, length, config.num_attention_heads, -1))  # [B, L, H, D]
        k = self.k_norm(k.reshape(b, length, config.num_key_value_heads, -1))
        v = v.reshape(b, length, config.num_key_value_heads, -1)
        q, k, v = (part.swapaxes(1, 2) for part in (q, k, v))  # [B, H, L, D]
        o = attention(self._rope(q), self._rope(k), v, scale=config.scale, mask=mask)
        return self.o_proj(o)


class Layer(mlx_nn.Module):
    """Attention and feed-forward, each normed before and after."""

    def __init__(self, config: Config, kind: str) -> None:
        super().__init__()
        self.self_attn = Attention(config, kind)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, config.act)
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            self[f"{name}_layernorm"] = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def __call__(self, x: mx.array, mask: Mask) -> mx.array:
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), mask))
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


class EmbeddingGemma(mlx_nn.Module):
    """The stack, and the projections that `project` applies to pooled vectors."""

    def __init__(self, config: Config, dense: list[int]) -> None:
        """:param dense: out_features of each projection; each takes what the one before gives."""
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = [Layer(config, kind) for kind in config.layer_types]
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        widths = [config.hidden_size, *dense]
        self.dense = [Linear(i, o, bias=False) for i, o in pairwise(widths)]
        self._config = config

    def __call__(self, batch: Batch) -> mx.array:
        kinds = {
            FULL: Mask(batch.attention_mask),
            SLIDING: Mask(batch.attention_mask, window=self._config.window),
        }
        # in full precision: rounding the scale to bfloat16, as some do, moves float32 vectors by 5e-4
        x = self.embed_tokens(batch.input_ids) * self._config.hidden_size**0.5  # [B, L, D]
        for i, (layer, kind) in enumerate(zip(self.layers, self._config.layer_types, strict=True)):
            x = layer(x, kinds[kind])
            if i == 0:
                begin(x)
        return self.norm(x)

    def project(self, pooled: mx.array) -> mx.array:
        """Pooled vectors ``[B, D]`` through the projections, without activation between."""
        for dense in self.dense:
            pooled = dense(pooled)
        return pooled
