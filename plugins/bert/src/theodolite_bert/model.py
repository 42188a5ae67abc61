"""The BERT encoder (Devlin et al. 2018) and its XLM-RoBERTa variant (Conneau et al. 2019).

Attribute names are the checkpoint's, so that an error names a tensor as the file does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite import nn
from theodolite.errors import CheckpointError, Unsupported
from theodolite.nn import keys, masks
from theodolite.values import Batch


@dataclass(frozen=True)
class Config:
    """The keys of config.json that the encoder reads."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float
    act: str
    first_position: int
    """0 on BERT; on XLM-RoBERTa the first real token sits at pad_token_id + 1."""

    @classmethod
    def of(cls, config: dict[str, Any]) -> Config:
        """Read config.json, with the defaults of the reference implementation.

        :raises Unsupported: for an activation or a position encoding that is not served.
        :raises CheckpointError: for heads that do not share the width evenly.
        """
        hidden_size, heads = keys.count(config, "hidden_size", 768), keys.count(config, "num_attention_heads", 12)
        if hidden_size % heads:
            raise CheckpointError(
                f"config.json: hidden_size {hidden_size} is no multiple of num_attention_heads {heads}"
            )
        if config.get("is_decoder"):
            raise Unsupported("config.json: is_decoder: true is not supported, attention goes both ways here")
        if (positions := config.get("position_embedding_type") or "absolute") != "absolute":
            raise Unsupported(f"config.json: position_embedding_type {positions!r} is not supported, only 'absolute'")
        roberta = config.get("model_type") == "xlm-roberta"
        pad_id = config.get("pad_token_id")
        return cls(
            vocab_size=keys.count(config, "vocab_size", 30522),
            hidden_size=hidden_size,
            num_hidden_layers=keys.count(config, "num_hidden_layers", 12, least=0),
            num_attention_heads=heads,
            intermediate_size=keys.count(config, "intermediate_size", 3072),
            max_position_embeddings=keys.count(config, "max_position_embeddings", 512),
            type_vocab_size=keys.count(config, "type_vocab_size", 2),
            layer_norm_eps=config.get("layer_norm_eps", 1e-12),
            act=keys.activation(config, "hidden_act", default="gelu"),
            first_position=(1 if pad_id is None else pad_id) + 1 if roberta else 0,
        )


class Embeddings(mlx_nn.Module):
    """Token, position and segment tables, summed and normalized."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self._first_position = config.first_position

    def positions(self, batch: Batch) -> mx.array:
        """0..L on BERT. On XLM-RoBERTa real tokens count on from pad_token_id + 1 and padding stays at pad_token_id."""
        if self._first_position == 0:
            return mx.arange(batch.input_ids.shape[1])[None]  # [1, L]
        real = (batch.input_ids != self._first_position - 1) * batch.attention_mask  # [B, L]
        return mx.cumsum(real, axis=1) * real + self._first_position - 1

    def __call__(self, batch: Batch) -> mx.array:
        types = mx.zeros((1, 1), mx.int32) if batch.token_type_ids is None else batch.token_type_ids
        segments = self.token_type_embeddings(types)  # [1 or B, 1 or L, D]
        x = self.word_embeddings(batch.input_ids) + segments + self.position_embeddings(self.positions(batch))
        return self.LayerNorm(x)


class SelfAttention(mlx_nn.Module):
    """Multi-head attention of every token over every real token."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self._head_dim = config.hidden_size // config.num_attention_heads

    def __call__(self, x: mx.array, mask: masks.Mask) -> mx.array:
        q, k, v = nn.linears(x, (self.query, self.key, self.value), self._head_dim)  # [B, H, L, D / H]
        return nn.attention(q, k, v, scale=self._head_dim**-0.5, mask=mask)  # [B, L, D]


class Output(mlx_nn.Module):
    """A projection back to the residual stream, and the norm after the sum (post-norm, as in the paper)."""

    def __init__(self, width: int, config: Config) -> None:
        super().__init__()
        self.dense = nn.Linear(width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def __call__(self, x: mx.array, residual: mx.array) -> mx.array:
        return self.LayerNorm(self.dense(x), residual)


class Attention(mlx_nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.self = SelfAttention(config)
        self.output = Output(config.hidden_size, config)

    def __call__(self, x: mx.array, mask: masks.Mask) -> mx.array:
        return self.output(self.self(x, mask), x)


class Intermediate(mlx_nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self._act = config.act

    def __call__(self, x: mx.array) -> mx.array:
        return self.dense(x, act=self._act)


class Layer(mlx_nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.intermediate = Intermediate(config)
        self.output = Output(config.intermediate_size, config)

    def __call__(self, x: mx.array, mask: masks.Mask) -> mx.array:
        x = self.attention(x, mask)
        return self.output(self.intermediate(x), x)


class Encoder(mlx_nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.layer = [Layer(config) for _ in range(config.num_hidden_layers)]

    def __call__(self, x: mx.array, mask: masks.Mask) -> mx.array:
        for i, layer in enumerate(self.layer):
            x = layer(x, mask)
            if i == 0:
                nn.begin(x)
        return x


class Bert(mlx_nn.Module):
    """The trunk: token ids to hidden states ``[B, L, D]``."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)

    def __call__(self, batch: Batch) -> mx.array:
        return self.encoder(self.embeddings(batch), masks.padding(batch.attention_mask))
