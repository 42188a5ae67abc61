"""Toy families, so that every shape of answer is there without a plugin: a vector, a vector per token, a score."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from theodolite import registry
from theodolite.checkpoint import Checkpoint
from theodolite.hookspecs import hookimpl
from theodolite.nn import kernels
from theodolite.values import Batch, Fit, ImageItem, Item, Pair, Profile, Prompt, Task, TextItem

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "cat", "kitten", "car", "nan", "größe", "query", "<img>"]
WIDTH = 8


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = mx.zeros((len(WORDS), WIDTH))


class ToyFamily:
    """``toy-embed``, ``toy-multi`` (also images, and instructions), ``toy-rerank``, or ``toy-generative``.

    The last is a reranker that on disk is a text generator, so that it is claimed only if asked for as one.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @hookimpl
    def detect(self, checkpoint: Checkpoint, task: Task | None) -> Profile | None:
        if checkpoint.model_type != self.name or (self.name == "toy-generative" and task is not Task.RERANK):
            return None
        multi, reranks = self.name == "toy-multi", self.name in ("toy-rerank", "toy-generative")
        return Profile(
            family=self.name,
            fit=Fit.MODEL_TYPE,
            vocab_size=len(WORDS),
            dim=WIDTH,
            task=Task.RERANK if reranks else Task.EMBED,
            kind="generative_text" if reranks else None,
            multi_vector=multi,
            images=multi or reranks,
            instruction=multi or reranks,
            max_positions=16,
        )

    @hookimpl
    def build(self) -> nn.Module:
        return Toy()

    @hookimpl
    def prompt(self, item: Item, instruction: str | None) -> Prompt | None:
        before = f"{instruction} " if instruction and self.name != "toy-embed" else ""
        match item:
            case TextItem(text) if before:
                return Prompt(text=before + text)
            case ImageItem():
                return Prompt(ids=(11,) * 3, image=item.image)
            case Pair(query, document):
                sides = [side.text if isinstance(side, TextItem) else "<img>" for side in (query, document)]
                return Prompt(text=before + sides[0], pair=sides[1])
        return None

    @hookimpl
    def forward(self, model: Toy, batch: Batch) -> mx.array:
        return model.table[batch.input_ids]

    @hookimpl
    def pool(self, hidden: mx.array, batch: Batch) -> mx.array | None:
        mask = batch.attention_mask[..., None]
        if self.name == "toy-multi":
            return hidden * mask
        return (hidden * mask).sum(axis=1)[:, 0] if self.name == "toy-rerank" else None


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the toy families are installed."""
    names = ("toy-embed", "toy-multi", "toy-rerank", "toy-generative")
    plugins = [registry.Plugin(name, "toys", "1.2.3", ToyFamily(name)) for name in names]
    plugins.append(registry.Plugin("toy-broken", "toys", "1.2.3", error="ImportError: no module named 'nothing'"))
    monkeypatch.setattr(registry, "_installed", registry.Registry(plugins))
    for variable in ("THEODOLITE_EMBEDDING_POOLING", "MLXCEL_EMBEDDING_POOLING", "THEODOLITE_KERNELS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(kernels, "active", kernels.active)
    monkeypatch.setattr(kernels, "_chosen", False)  # a command has a process of its own


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., str]:
    """Write a toy checkpoint and give its folder; keywords are files, as JSON."""

    def write(kind: str = "toy-embed", **files: Any) -> str:
        folder = tmp_path / kind
        folder.mkdir(exist_ok=True)
        config = {"model_type": kind, "architectures": ["Toy"]}
        for name, value in {"config": config, **files}.items():
            (folder / f"{name}.json").write_text(json.dumps(value))
        table = np.random.default_rng(7).normal(size=(len(WORDS), WIDTH)).astype(np.float32)
        table[WORDS.index("nan")] = np.nan
        mx.save_safetensors(str(folder / "model.safetensors"), {"table": mx.array(table)})
        tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        tokenizer.save(str(folder / "tokenizer.json"))
        return str(folder)

    return write
