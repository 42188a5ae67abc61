"""Tiny random BERT checkpoints: an embedder, one with a word that is NaN, and a cross-encoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from theodolite.testing import tiny

WIDTH, INNER, LAYERS, POSITIONS = 16, 32, 2, 64
NAN_WORD = "hills"


def _shapes(vocabulary: int, head: bool) -> dict[str, list[int]]:
    prefix = "bert." if head else ""
    shapes = {
        "embeddings.word_embeddings.weight": [vocabulary, WIDTH],
        "embeddings.position_embeddings.weight": [POSITIONS, WIDTH],
        "embeddings.token_type_embeddings.weight": [2, WIDTH],
        "embeddings.LayerNorm.weight": [WIDTH],
        "embeddings.LayerNorm.bias": [WIDTH],
    }
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}."
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            shapes |= {f"{at}{name}.weight": [WIDTH, WIDTH], f"{at}{name}.bias": [WIDTH]}
        shapes |= {f"{at}intermediate.dense.weight": [INNER, WIDTH], f"{at}intermediate.dense.bias": [INNER]}
        shapes |= {f"{at}output.dense.weight": [WIDTH, INNER], f"{at}output.dense.bias": [WIDTH]}
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{at}{name}.weight": [WIDTH], f"{at}{name}.bias": [WIDTH]}
    shapes |= {"pooler.dense.weight": [WIDTH, WIDTH], "pooler.dense.bias": [WIDTH]}
    shapes = {prefix + name: shape for name, shape in shapes.items()}
    return shapes | ({"classifier.weight": [1, WIDTH], "classifier.bias": [1]} if head else {})


def write(folder: Path, head: bool = False) -> Path:
    """An embedder, or with ``head`` a cross-encoder of one label."""
    vocabulary = tiny.tokenizer("wordpiece").get_vocab_size()
    config = {
        "model_type": "bert",
        "architectures": ["BertForSequenceClassification" if head else "BertModel"],
        "vocab_size": vocabulary,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    }
    files = {"config.json": config, "tokenizer_config.json": {"pad_token": "[PAD]"}}
    if not head:
        prompts = {"prompts": {"query": "query: "}}
        files |= {"1_Pooling/config.json": {"pooling_mode": "mean"}, "config_sentence_transformers.json": prompts}
    folder.mkdir(parents=True, exist_ok=True)
    return tiny.write(folder, {"files": files, "tokenizer": "wordpiece", "shapes": _shapes(vocabulary, head)})


def spoil(folder: Path) -> Path:
    """Make the vector of one word NaN."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    token = tiny.tokenizer("wordpiece").token_to_id(NAN_WORD)
    (name,) = (name for name in weights if name.endswith("word_embeddings.weight"))
    weights[name][token] = np.nan
    save_file(weights, file)
    return folder
