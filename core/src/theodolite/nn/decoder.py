"""One decoder stack for Llama, Qwen2, Qwen3 and Ministral 3: they differ in a few options, all explicit here.

It stops at the final norm: an embedder has no use for logits over a vocabulary. Attribute names are the checkpoints'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite.errors import CheckpointError
from theodolite.nn import keys, masks, rope
from theodolite.nn.keys import FULL, SLIDING
from theodolite.nn.layers import Embedding, GatedMLP, Linear, RMSNorm, attention, linears
from theodolite.nn.masks import Mask
from theodolite.nn.rope import DEFAULT_BASE, Rope, RopeConfig

REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


@dataclass(frozen=True, kw_only=True)
class Config:
    """What the stack is made of."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    act: str = "silu"
    qk_norm: bool = False
    """RMSNorm over each head's queries and keys (Qwen3)."""
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    windows: tuple[int | None, ...] = ()
    """Per layer, keys with ``|q - k| >= window`` are blocked; None for full attention. Empty: all full."""
    causal: bool = True
    """What `Decoder.mask` gives: false where config.json says ``is_causal: false``."""
    position_scale: tuple[float, int] | None = None
    """Ministral 3: queries times ``1 + beta * ln(1 + floor(position / original_max_positions))`` (Llama 4)."""

    @classmethod
    def of(
        cls,
        config: dict[str, Any],
        *,
        qk_norm: bool = False,
        qkv_bias: bool | None = None,
        windowed: bool = False,
        max_window_layers: int = 0,
        rope_base: float = DEFAULT_BASE,
        rope_interleaved: bool = False,
    ) -> Config:
        """Read a (text) config.json; what its keys do not say, the family does.

        :param qkv_bias: biases of these three projections alone; None follows ``attention_bias``, as the output does.
        :param windowed: whether the family's layers may be windowed; a Llama ignores such keys.
        :param max_window_layers: how many layers are full by default, where ``use_sliding_window`` is set alone.
        :param rope_base: where the configuration names none.
        :param rope_interleaved: how the sections of M-RoPE share the frequencies.
        :raises CheckpointError: for a missing key, or keys that contradict each other.
        :raises Unsupported: for an activation or a rope scaling that is not served.
        """
        keys.require(config, *REQUIRED)
        heads, hidden_size = config["num_attention_heads"], config["hidden_size"]
        head_dim = config.get("head_dim") or hidden_size // heads
        bias = bool(config.get("attention_bias"))
        return cls(
            vocab_size=config["vocab_size"],
            hidden_size=hidden_size,
            intermediate_size=config["intermediate_size"],
            num_hidden_layers=config["num_hidden_layers"],
            num_attention_heads=heads,
            num_key_value_heads=keys.key_value_heads(config),
            head_dim=head_dim,
            rms_norm_eps=float(config.get("rms_norm_eps") or 1e-6),
            rope=RopeConfig.of(config, head_dim, base=rope_base, interleaved=rope_interleaved),
            act=keys.activation(config, "hidden_act", default="silu"),
            qk_norm=qk_norm,
            qkv_bias=bias if qkv_bias is None else qkv_bias,
            o_bias=qkv_bias is None and bias,
            mlp_bias=bool(config.get("mlp_bias")),
            windows=_windows(config, max_window_layers) if windowed else (),
            causal=config.get("is_causal") is not False,
            position_scale=_position_scale(config),
        )


def _windows(config: dict[str, Any], max_window_layers: int) -> tuple[int | None, ...]:
    kinds, window, used = keys.layer_types(config), config.get("sliding_window"), config.get("use_sliding_window")
    if kinds:
        if SLIDING in kinds and (window is None or used is False):
            raise CheckpointError(
                "config.json: layer_types has sliding layers, but sliding_window is not set or not used"
            )
    elif used and "sliding_window" not in config:
        raise CheckpointError("config.json: use_sliding_window is set, sliding_window is missing")
    elif window is None or not used:
        return ()
    else:  # Qwen before layer_types: the first layers see everything
        full = config.get("max_window_layers")
        first = max_window_layers if full is None else full
        kinds = tuple(SLIDING if i >= first else FULL for i in range(config["num_hidden_layers"]))
    if SLIDING not in kinds or window is None:
        return ()
    # without a causal mask the reference counts the window inclusively
    size = int(window) + (config.get("is_causal") is False)
    return tuple(size if kind == SLIDING else None for kind in kinds)


def _position_scale(config: dict[str, Any]) -> tuple[float, int] | None:
    given = rope.parameters(config)
    beta = given.get("llama_4_scaling_beta")
    if not beta:
        return None
    original = given.get("original_max_position_embeddings") or config.get("max_position_embeddings")
    if not original:
        raise CheckpointError("config.json: llama_4_scaling_beta needs original_max_position_embeddings beside it")
    return float(beta), int(original)


class Attention(mlx_nn.Module):
    """Grouped-query attention (Ainslie et al. 2023) over rotated queries and keys."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        heads, groups, head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.q_proj = Linear(config.hidden_size, heads * head_dim, bias=config.qkv_bias)
        self.k_proj = Linear(config.hidden_size, groups * head_dim, bias=config.qkv_bias)
        self.v_proj = Linear(config.hidden_size, groups * head_dim, bias=config.qkv_bias)
        self.o_proj = Linear(heads * head_dim, config.hidden_size, bias=config.o_bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(head_dim, eps=config.rms_norm_eps)
            self.k_norm = RMSNorm(head_dim, eps=config.rms_norm_eps)
        self._config = config
        self._rope = Rope(config.rope)

    def __call__(self, x: mx.array, mask: Mask, positions: mx.array | None) -> mx.array:
        b, length, _ = x.shape
        config = self._config
        q, k, v = linears(x, (self.q_proj, self.k_proj, self.v_proj))
        q = q.reshape(b, length, config.num_attention_heads, -1)  # [B, L, H, D]
        k, v = (part.reshape(b, length, config.num_key_value_heads, -1) for part in (k, v))
        if config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (part.swapaxes(1, 2) for part in (q, k, v))  # [B, H, L, D]
        q, k = self._rope(q, positions), self._rope(k, positions)
        if config.position_scale is not None:
            q = q * self._scale(length, positions).astype(q.dtype)
        o = attention(q, k, v, scale=config.head_dim**-0.5, mask=mask)
        return self.o_proj(o)

    def _scale(self, length: int, positions: mx.array | None) -> mx.array:
        beta, original = self._config.position_scale or (0.0, 1)
        at = mx.arange(length)[None] if positions is None else positions  # [1 or B, L]
        return (1 + beta * mx.log(1 + mx.floor(at / original)))[:, None, :, None]


class Layer(mlx_nn.Module):
    """Pre-norm attention and feed-forward, each with its residual."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, config.act, bias=config.mlp_bias)
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(self, x: mx.array, mask: Mask, positions: mx.array | None) -> mx.array:
        x = x + self.self_attn(self.input_layernorm(x), mask, positions)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(mlx_nn.Module):
    """The stack from token ids or their embeddings to normed hidden states."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = [Layer(config) for _ in range(config.num_hidden_layers)]
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self._windows = config.windows or (None,) * config.num_hidden_layers
        self._causal = config.causal

    def mask(self, attention_mask: mx.array) -> Mask:
        """The mask of the decoder's own kind: causal, unless config.json says ``is_causal: false``."""
        return masks.causal(attention_mask) if self._causal else masks.padding(attention_mask)

    def __call__(
        self,
        x: mx.array,
        mask: Mask,
        positions: mx.array | None = None,
        added: dict[int, mx.array] | None = None,
    ) -> mx.array:
        """Hidden states ``[B, L, D]`` after the final norm.

        :param x: token ids ``[B, L]`` (integers), or embeddings ``[B, L, D]``.
        :param mask: causal or padding; windowed layers narrow it themselves.
        :param positions: ``[B, L]`` or ``[3, B, L]`` (M-RoPE); 0..L where there are none.
        :param added: features ``[B, L, D]`` to add after the layer of that index (DeepStack).
        """
        if x.ndim == 2:
            x = self.embed_tokens(x)  # [B, L, D]
        narrowed: dict[int | None, Mask] = {None: mask}
        for i, (layer, window) in enumerate(zip(self.layers, self._windows, strict=True)):
            if window not in narrowed:
                narrowed[window] = Mask(mask.attention_mask, causal=mask.causal, window=window)
            x = layer(x, narrowed[window], positions)
            if added is not None and i in added:
                x = x + added[i]
        return self.norm(x)
