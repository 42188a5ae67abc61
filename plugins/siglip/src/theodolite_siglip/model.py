"""SigLIP's two towers (Zhai et al. 2023, Tschannen et al. 2025): texts and images in one space.

Attribute names are the checkpoint's, so that an error names a tensor as the file does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite import nn
from theodolite.nn import kernels, vit
from theodolite.values import Batch

TEXT_ONLY = "siglip_text_model"


@dataclass(frozen=True)
class Config:
    """The keys of config.json that the towers read."""

    vocab_size: int
    max_position_embeddings: int
    projection_size: int
    text: vit.EncoderConfig
    vision: vit.Config | None
    """None for an export of the text tower."""

    @classmethod
    def of(cls, config: dict[str, Any]) -> Config:
        """Read config.json, with the defaults of the reference implementation, which no published file repeats.

        :raises Unsupported: for an activation that is not served.
        """
        alone = config.get("model_type") == TEXT_ONLY or config.get("architectures") == ["SiglipTextModel"]
        text = config.get("text_config") or (config if alone else {})
        tower = vit.EncoderConfig.of(text)
        return cls(
            vocab_size=text.get("vocab_size", 32000),
            max_position_embeddings=text.get("max_position_embeddings", 64),
            projection_size=text.get("projection_size") or tower.hidden_size,
            text=tower,
            vision=None if alone else vit.Config.of(config.get("vision_config") or {}),
        )


class TextEmbeddings(mlx_nn.Module):
    """Token and position tables, summed."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(config.vocab_size, config.text.hidden_size)
        self.position_embedding = nn.Embedding(config.max_position_embeddings, config.text.hidden_size)

    def __call__(self, input_ids: mx.array) -> mx.array:
        return self.token_embedding(input_ids) + self.position_embedding(mx.arange(input_ids.shape[1]))


class TextModel(mlx_nn.Module):
    """The text tower: every token sees every other and the padding too, as it was trained."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embeddings = TextEmbeddings(config)
        self.encoder = vit.Encoder(config.text)
        self.final_layer_norm = nn.LayerNorm(config.text.hidden_size, eps=config.text.layer_norm_eps)
        self.head = nn.Linear(config.text.hidden_size, config.projection_size)

    def __call__(self, input_ids: mx.array) -> mx.array:
        return self.final_layer_norm(self.encoder(self.embeddings(input_ids)))


class ProbeAttention(mlx_nn.Module):
    """Multi-head attention of one query over the patches, with torch's fused parameters."""

    def __init__(self, config: vit.Config) -> None:
        super().__init__()
        width = config.hidden_size
        self.in_proj_weight = mx.zeros((3 * width, width))
        self.in_proj_bias = mx.zeros((3 * width,))
        self.out_proj = nn.Linear(width, width)
        self._head_dim = width // config.num_attention_heads

    def __call__(self, query: mx.array, x: mx.array) -> mx.array:
        parts = zip((query, x, x), self.in_proj_weight.split(3), self.in_proj_bias.split(3), strict=True)
        q, k, v = (
            kernels.split_heads(kernels.active.linear(given, weight, bias), self._head_dim)
            for given, weight, bias in parts
        )  # [B, H, 1 | P, D / H]
        return self.out_proj(nn.attention(q, k, v, scale=self._head_dim**-0.5, mask=None))


class PoolingHead(mlx_nn.Module):
    """A learned query looks at all patches: ``[B, P, D]`` -> ``[B, D]``."""

    def __init__(self, config: vit.Config) -> None:
        super().__init__()
        self.probe = mx.zeros((1, 1, config.hidden_size))
        self.attention = ProbeAttention(config)
        self.layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mlp = vit.MLP(config)

    def __call__(self, patches: mx.array) -> mx.array:
        probe = mx.broadcast_to(self.probe, (patches.shape[0], 1, patches.shape[2]))
        x = self.attention(probe, patches)
        return (x + self.mlp(self.layernorm(x)))[:, 0]


class VisionModel(vit.VisionTower):
    """The vision tower with the head that makes one vector of an image."""

    def __init__(self, config: vit.Config) -> None:
        super().__init__(config)
        self.head = PoolingHead(config)


class Siglip(mlx_nn.Module):
    """Both towers, or the text tower alone where images are not served."""

    def __init__(self, config: Config, images: bool) -> None:
        super().__init__()
        self.text_model = TextModel(config)
        if images and config.vision is not None:
            self.vision_model = VisionModel(config.vision)

    def __call__(self, batch: Batch) -> mx.array:
        """Hidden states of the texts ``[B, L, D]``, or of the one image ``[1, P, D]``: images come one by one."""
        hidden: mx.array
        if (pixels := batch.image) is not None:
            dtype = self.vision_model.post_layernorm.weight.dtype
            hidden = self.vision_model(mx.array(pixels)[None].astype(dtype))
        else:
            hidden = self.text_model(batch.input_ids)
        return hidden

    def pool(self, hidden: mx.array, batch: Batch) -> mx.array:
        """One vector per row: the last position of a text, by training ``</s>``; the pooling head of an image."""
        pooled: mx.array
        if batch.image is not None:
            pooled = self.vision_model.head(hidden)
        else:
            pooled = self.text_model.head(hidden[:, -1])
        return pooled
