"""The SigLIP encoder (Zhai et al. 2023, a pre-norm ViT), shared by SigLIP's two towers, Nemotron-VL and Idefics3.

Attribute names are the checkpoints'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite.errors import CheckpointError, Unsupported
from theodolite.nn import kernels, keys
from theodolite.nn.layers import Embedding, LayerNorm, Linear, attention, linears
from theodolite.nn.masks import Mask

CHANNELS = 3


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """What a stack of layers is made of."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    layer_norm_eps: float
    act: str

    @classmethod
    def of(cls, config: dict[str, Any], **more: Any) -> Self:
        """Read a ``text_config`` or ``vision_config``, with SigLIP's defaults.

        :raises Unsupported: for an activation that is not served.
        """
        made = cls(
            hidden_size=config.get("hidden_size", 768),
            intermediate_size=config.get("intermediate_size", 3072),
            num_hidden_layers=config.get("num_hidden_layers", 12),
            num_attention_heads=config.get("num_attention_heads", 12),
            layer_norm_eps=config.get("layer_norm_eps", 1e-6),
            act=keys.activation(config, "hidden_act", default="gelu_pytorch_tanh"),
            **more,
        )
        if made.hidden_size % made.num_attention_heads:
            raise CheckpointError(
                f"config.json: hidden_size {made.hidden_size} is no multiple of {made.num_attention_heads} heads"
            )
        return made


@dataclass(frozen=True, kw_only=True)
class Config(EncoderConfig):
    """A vision tower."""

    image_size: int
    patch_size: int

    @classmethod
    def of(cls, config: dict[str, Any], **more: Any) -> Self:
        """Read a ``vision_config``.

        :raises Unsupported: for an activation, or a number of color channels, that is not served.
        """
        if (channels := config.get("num_channels", CHANNELS)) != CHANNELS:
            raise Unsupported(f"config.json: num_channels {channels} is not supported, only {CHANNELS}")
        sizes = {"image_size": config.get("image_size", 224), "patch_size": config.get("patch_size", 16)}
        return super().of(config, **sizes, **more)

    @property
    def patches(self) -> int:
        """Patches of one image."""
        return (self.image_size // self.patch_size) ** 2


class SelfAttention(mlx_nn.Module):
    """Multi-head attention of every position over every other that the mask leaves open."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.q_proj = Linear(width, width)
        self.k_proj = Linear(width, width)
        self.v_proj = Linear(width, width)
        self.out_proj = Linear(width, width)
        self._head_dim = width // config.num_attention_heads

    def __call__(self, x: mx.array, mask: Mask | None) -> mx.array:
        q, k, v = linears(x, (self.q_proj, self.k_proj, self.v_proj), self._head_dim)  # [B, H, L, D / H]
        return self.out_proj(attention(q, k, v, scale=self._head_dim**-0.5, mask=mask))  # [B, L, D]


class MLP(mlx_nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.fc1 = Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = Linear(config.intermediate_size, config.hidden_size)
        self._act = config.act

    def __call__(self, x: mx.array) -> mx.array:
        return self.fc2(self.fc1(x, act=self._act))


class EncoderLayer(mlx_nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.layer_norm1 = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.self_attn = SelfAttention(config)
        self.layer_norm2 = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mlp = MLP(config)

    def __call__(self, x: mx.array, mask: Mask | None) -> mx.array:
        x = x + self.self_attn(self.layer_norm1(x), mask)
        return x + self.mlp(self.layer_norm2(x))


class Encoder(mlx_nn.Module):
    """``[B, L, D]`` -> ``[B, L, D]``, without a norm after the last layer."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.layers = [EncoderLayer(config) for _ in range(config.num_hidden_layers)]

    def __call__(self, x: mx.array, mask: Mask | None = None) -> mx.array:
        for layer in self.layers:
            x = layer(x, mask)
        return x


class PatchEmbedding(mlx_nn.Module):
    """A convolution whose stride is its size: one product per patch."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.weight = mx.zeros((config.hidden_size, CHANNELS, config.patch_size, config.patch_size))
        self.bias = mx.zeros((config.hidden_size,))

    def __call__(self, pixels: mx.array) -> mx.array:
        p = self.weight.shape[-1]
        n, rows, columns = pixels.shape[0], pixels.shape[1] // p, pixels.shape[2] // p
        x = pixels[:, : rows * p, : columns * p]  # 384 pixels in patches of 14 leave a rest, which no patch sees
        x = x.reshape(n, rows, p, columns, p, CHANNELS).transpose(0, 1, 3, 5, 2, 4)
        x = x.reshape(n, rows * columns, -1)  # [N, patches, 3 * p * p]
        return kernels.active.linear(x, self.weight.reshape(self.weight.shape[0], -1), self.bias)


class VisionEmbeddings(mlx_nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.patch_embedding = PatchEmbedding(config)
        self.position_embedding = Embedding(config.patches, config.hidden_size)
        self._side = config.image_size

    def __call__(self, pixels: mx.array) -> mx.array:
        """:raises CheckpointError: for pixels of another size than the table has positions for."""
        height, width = pixels.shape[1:3]
        if height != self._side or width != self._side:
            raise CheckpointError(f"the processor gave {width} x {height} pixels, the vision tower takes {self._side}")
        x = self.patch_embedding(pixels)
        return x + self.position_embedding(mx.arange(x.shape[1]))


class VisionTower(mlx_nn.Module):
    """Pixels ``[N, H, W, 3]`` to patches ``[N, patches, D]``, after the final norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embeddings = VisionEmbeddings(config)
        self.encoder = Encoder(config)
        self.post_layernorm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def __call__(self, pixels: mx.array) -> mx.array:
        return self.post_layernorm(self.encoder(self.embeddings(pixels)))


def channels_first(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """The weights with patch filters ``[D, 3, p, p]``, as published; MLX exports store them ``[D, p, p, 3]``."""
    return {
        name: tensor.transpose(0, 3, 1, 2)
        if name.endswith("patch_embedding.weight") and tensor.ndim == 4 and tensor.shape[-1] == CHANNELS
        else tensor
        for name, tensor in weights.items()
    }
