"""Cross-encoders: one-label classifiers over BERT, XLM-RoBERTa and ModernBERT trunks (Nogueira & Cho 2019)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite import nn, pooling
from theodolite.checkpoint import Checkpoint
from theodolite.errors import Unsupported
from theodolite.hookspecs import hookimpl
from theodolite.nn import keys
from theodolite.values import Batch, Fit, Pooling, Profile, Task
from theodolite_bert import model as bert
from theodolite_bert.plugin import new_name
from theodolite_modernbert import model as modernbert
from theodolite_modernbert.plugin import renamed as modernbert_renamed

MODEL_TYPES = {"bert", "xlm-roberta", "modernbert"}
HEADS = ("classifier.out_proj.weight", "classifier.weight")
CLASSIFIER_POOLING = {"cls": Pooling.CLS, "mean": Pooling.MEAN}


@hookimpl
def detect(checkpoint: Checkpoint) -> Profile | None:
    if checkpoint.model_type not in MODEL_TYPES or not checkpoint.is_classifier:
        return None
    first_position = 0
    if checkpoint.model_type == "modernbert":
        settings: Any = modernbert.Config.of(checkpoint.config)
        max_positions, mode = None, _classifier_pooling(checkpoint)
    else:
        settings = bert.Config.of(checkpoint.config)
        first_position = settings.first_position
        max_positions, mode = settings.max_position_embeddings - first_position, Pooling.CLS
    return Profile(
        family="cross-encoder",
        fit=Fit.ARCHITECTURE,
        vocab_size=settings.vocab_size,
        dim=1,
        task=Task.RERANK,
        kind="sequence_classifier",
        pooling=mode,
        max_positions=max_positions,
        type_vocab_size=None if checkpoint.model_type == "modernbert" else settings.type_vocab_size,
    )


def _classifier_pooling(checkpoint: Checkpoint) -> Pooling:
    name = checkpoint.config.get("classifier_pooling") or "cls"
    if name not in CLASSIFIER_POOLING:
        raise Unsupported(
            f"{checkpoint.path / 'config.json'}: classifier_pooling {name!r} is not supported (cls, mean)"
        )
    return CLASSIFIER_POOLING[name]


class Dense(mlx_nn.Module):
    """A module that the checkpoint nests: ``pooler.dense``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)


class BertClassifier(mlx_nn.Module):
    """``classifier(tanh(pooler.dense(h)))`` of the first token."""

    def __init__(self, config: bert.Config) -> None:
        super().__init__()
        self.bert = bert.Bert(config)
        self.pooler = Dense(config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, 1)

    def logits(self, pooled: mx.array) -> mx.array:
        return self.classifier(self.pooler.dense(pooled, act="tanh"))  # [B, 1]


class RobertaHead(mlx_nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, 1)


class RobertaClassifier(mlx_nn.Module):
    """``out_proj(tanh(dense(h)))`` of the first token."""

    def __init__(self, config: bert.Config) -> None:
        super().__init__()
        self.bert = bert.Bert(config)
        self.classifier = RobertaHead(config.hidden_size)

    def logits(self, pooled: mx.array) -> mx.array:
        return self.classifier.out_proj(self.classifier.dense(pooled, act="tanh"))  # [B, 1]


class ModernBertHead(mlx_nn.Module):
    def __init__(self, config: modernbert.Config, act: str, bias: bool) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=bias)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.norm_bias)
        self._act = act

    def __call__(self, x: mx.array) -> mx.array:
        return self.norm(self.dense(x, act=self._act))


class ModernBertClassifier(mlx_nn.Module):
    """``classifier(norm(gelu(dense(h))))`` of the first token or of the mean."""

    def __init__(self, config: modernbert.Config, act: str, bias: bool) -> None:
        super().__init__()
        self.model = modernbert.ModernBert(config)
        self.head = ModernBertHead(config, act, bias)
        self.classifier = nn.Linear(config.hidden_size, 1)

    def logits(self, pooled: mx.array) -> mx.array:
        return self.classifier(self.head(pooled))  # [B, 1]


@hookimpl
def build(checkpoint: Checkpoint) -> mlx_nn.Module:
    config = checkpoint.config
    match checkpoint.model_type:
        case "modernbert":
            act = keys.activation(config, "classifier_activation", default="gelu")
            return ModernBertClassifier(modernbert.Config.of(config), act, bool(config.get("classifier_bias")))
        case "xlm-roberta":
            return RobertaClassifier(bert.Config.of(config))
    return BertClassifier(bert.Config.of(config))


@hookimpl
def sanitize(checkpoint: Checkpoint, weights: dict[str, mx.array]) -> dict[str, mx.array]:
    if checkpoint.model_type == "modernbert":
        named = modernbert_renamed(weights, "model.")
    else:
        named = {_bert_name(new_name(name)): t for name, t in weights.items() if not name.endswith("position_ids")}
        if checkpoint.model_type == "xlm-roberta":
            named = {name: tensor for name, tensor in named.items() if not name.startswith("pooler.")}
    labels = next((named[name].shape[0] for name in HEADS if name in named), 1)
    if labels != 1:
        raise Unsupported(
            f"{checkpoint.path}: reranker sequence classifiers must expose exactly one output label, "
            f"this checkpoint has {labels}"
        )
    return named


def _bert_name(name: str) -> str:
    name = name.removeprefix("roberta.").removeprefix("bert.")
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.")) else name


@hookimpl
def forward(model: Any, batch: Batch) -> mx.array:
    if isinstance(model, ModernBertClassifier):
        return model.model(batch)
    if isinstance(model, RobertaClassifier):  # its template has no segments, whatever the tokenizer says
        batch = replace(batch, token_type_ids=None)
    return model.bert(batch)


@hookimpl
def pool(model: Any, hidden: mx.array, batch: Batch, mode: Pooling) -> mx.array:
    return model.logits(pooling.pool(hidden, batch.attention_mask, mode))[:, 0]
