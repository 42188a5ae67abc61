"""ModernBERT (Warner et al. 2024): a pre-norm encoder with rotary positions, alternating local and global attention.

Attribute names are the checkpoint's. The fused Wqkv and Wi are split after the projection, so that a quantized export
loads as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite import nn
from theodolite.errors import CheckpointError
from theodolite.nn import keys
from theodolite.nn.keys import FULL, SLIDING
from theodolite.nn.masks import Mask
from theodolite.nn.rope import Rope, RopeConfig
from theodolite.values import Batch

REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
GLOBAL_BASE, LOCAL_BASE = 160_000.0, 10_000.0


@dataclass(frozen=True, kw_only=True)
class Config:
    """The keys of config.json that the encoder reads."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    norm_eps: float
    norm_bias: bool
    attention_bias: bool
    mlp_bias: bool
    act: str
    layer_types: tuple[str, ...]
    window: int
    """Keys with ``|q - k| >= window`` are blocked in local layers."""
    ropes: dict[str, RopeConfig]

    @classmethod
    def of(cls, config: dict[str, Any]) -> Config:
        """Read config.json in either spelling.

        :raises CheckpointError: for a missing key.
        :raises Unsupported: for an activation that is not served.
        """
        keys.require(config, *REQUIRED)
        if config["hidden_size"] % config["num_attention_heads"]:
            raise CheckpointError(
                f"config.json: hidden_size {config['hidden_size']} is no multiple of num_attention_heads "
                f"{config['num_attention_heads']}"
            )
        return cls(
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_attention_heads=config["num_attention_heads"],
            norm_eps=float(config.get("norm_eps") or 1e-5),
            norm_bias=bool(config.get("norm_bias")),
            attention_bias=bool(config.get("attention_bias")),
            mlp_bias=bool(config.get("mlp_bias")),
            act=keys.activation(config, "hidden_activation", default="gelu"),
            layer_types=_layer_types(config),
            window=int(config.get("local_attention", 128)) // 2 + 1,
            ropes=_ropes(config),
        )


def _layer_types(config: dict[str, Any]) -> tuple[str, ...]:
    if kinds := keys.layer_types(config):
        return kinds
    period = config.get("global_attn_every_n_layers") or 3
    return tuple(SLIDING if i % period else FULL for i in range(config["num_hidden_layers"]))


def _ropes(config: dict[str, Any]) -> dict[str, RopeConfig]:
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    full = config.get("global_rope_theta") or GLOBAL_BASE
    local = config.get("local_rope_theta", LOCAL_BASE) or full  # null: one base for all layers
    config = {key: value for key, value in config.items() if key != "rope_theta"}  # which the reference does not read
    return {
        FULL: RopeConfig.of(config, head_dim, layer_type=FULL, base=full),
        SLIDING: RopeConfig.of(config, head_dim, layer_type=SLIDING, base=local),
    }


class Embeddings(mlx_nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.norm_bias)

    def __call__(self, input_ids: mx.array) -> mx.array:
        return self.norm(self.tok_embeddings(input_ids))  # [B, L, D]


class Attention(mlx_nn.Module):
    """Multi-head attention over rotated queries and keys."""

    def __init__(self, config: Config, kind: str) -> None:
        super().__init__()
        self.Wqkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=config.attention_bias)
        self.Wo = nn.Linear(config.hidden_size, config.hidden_size, bias=config.attention_bias)
        self._heads = config.num_attention_heads
        self._rope = Rope(config.ropes[kind])

    def __call__(self, x: mx.array, mask: Mask) -> mx.array:
        b, length, _ = x.shape
        qkv = self.Wqkv(x).reshape(b, length, 3, self._heads, -1)
        q, k, v = (qkv[:, :, i].swapaxes(1, 2) for i in range(3))  # [B, H, L, D / H]
        o = nn.attention(self._rope(q), self._rope(k), v, scale=q.shape[-1] ** -0.5, mask=mask)
        return self.Wo(o)


class MLP(mlx_nn.Module):
    """The gated feed-forward block (GeGLU)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.Wi = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=config.mlp_bias)
        self.Wo = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)
        self._act = config.act

    def __call__(self, x: mx.array) -> mx.array:
        gate, up = mx.split(self.Wi(x), 2, axis=-1)  # [B, L, F] each
        return self.Wo(nn.gated(gate, up, self._act))


class Layer(mlx_nn.Module):
    """Pre-norm attention and feed-forward; the first layer's attention takes the embeddings' own norm."""

    def __init__(self, config: Config, index: int) -> None:
        super().__init__()
        if index > 0:
            self.attn_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.norm_bias)
        self.attn = Attention(config, config.layer_types[index])
        self.mlp_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.norm_bias)
        self.mlp = MLP(config)

    def __call__(self, x: mx.array, mask: Mask) -> mx.array:
        x = x + self.attn(self.attn_norm(x) if "attn_norm" in self else x, mask)
        return x + self.mlp(self.mlp_norm(x))


class ModernBert(mlx_nn.Module):
    """The trunk: token ids to hidden states ``[B, L, D]`` after the final norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.layers = [Layer(config, i) for i in range(len(config.layer_types))]
        self.final_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.norm_bias)
        self._config = config

    def __call__(self, batch: Batch) -> mx.array:
        kinds = {FULL: Mask(batch.attention_mask), SLIDING: Mask(batch.attention_mask, window=self._config.window)}
        x = self.embeddings(batch.input_ids)
        for i, (layer, kind) in enumerate(zip(self.layers, self._config.layer_types, strict=True)):
            x = layer(x, kinds[kind])
            if i == 0:
                nn.begin(x)
        return self.final_norm(x)
