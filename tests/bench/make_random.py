"""A random checkpoint of a published shape: `python tests/bench/make_random.py SHAPE FOLDER`.

For measuring speed and memory where the real weights cannot be had; its vectors mean nothing. Written a tensor at a
time, so that making it takes no more memory than its largest tensor.
"""

from __future__ import annotations

import argparse
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from run import words
from tokenizers import models, pre_tokenizers, processors

from theodolite.testing import tiny

BERT = {"special": ["[PAD]", "[UNK]", "[CLS]", "[SEP]"], "pad": "[PAD]", "unk": "[UNK]", "around": "[CLS] $A [SEP]"}
XLMR = {"special": ["<s>", "<pad>", "</s>", "<unk>"], "pad": "<pad>", "unk": "<unk>", "around": "<s> $A </s>"}
GEMMA = {
    "special": ["<pad>", "<eos>", "<bos>", "<unk>"], "pad": "<pad>", "unk": "<unk>", "around": "<bos> $A <eos>",
}  # fmt: skip
QWEN = {
    "special": ["<|endoftext|>", "<unk>"], "pad": "<|endoftext|>", "unk": "<unk>", "around": "$A <|endoftext|>",
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        "tokenizer": QWEN,
        "dtype": "BF16",
        "pooling": "lasttoken",
        "config": {
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151669, "hidden_size": 1024,
            "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
            "head_dim": 128, "rope_theta": 1000000.0, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        },
    },
    "embeddinggemma-300m": {
        "tokenizer": GEMMA,
        "dtype": "F32",
        "pooling": "mean_tokens",
        "stored": {"dense.0.weight": [3072, 768], "dense.1.weight": [768, 3072]},
        "config": {
            "architectures": ["Gemma3TextModel"], "model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 768,
            "intermediate_size": 1152, "num_hidden_layers": 24, "num_attention_heads": 3, "num_key_value_heads": 1,
            "head_dim": 256, "sliding_window": 512, "sliding_window_pattern": 6, "query_pre_attn_scalar": 256,
            "max_position_embeddings": 2048, "use_bidirectional_attention": True,
        },
    },
    "modernbert-base": {
        "tokenizer": BERT,
        "dtype": "F32",
        "pooling": "mean_tokens",
        "config": {
            "architectures": ["ModernBertModel"], "model_type": "modernbert", "vocab_size": 50368, "hidden_size": 768,
            "intermediate_size": 1152, "num_hidden_layers": 22, "num_attention_heads": 12, "local_attention": 128,
            "global_attn_every_n_layers": 3, "max_position_embeddings": 8192, "pad_token_id": 0,
        },
    },
    "bge-m3": {
        "tokenizer": XLMR,
        "dtype": "F32",
        "pooling": "cls_token",
        "config": {
            "architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "vocab_size": 250002,
            "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
            "max_position_embeddings": 8194, "type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5,
        },
    },
}  # fmt: skip
WIDTHS = {"BF16": 2, "F32": 4}


def parameters(config: dict[str, Any], stored: dict[str, list[int]]) -> dict[str, list[int]]:
    """Names and shapes, asked of the family itself; it reads some (``stored``) from the tensors."""
    import tempfile

    from mlx.utils import tree_flatten
    from safetensors.numpy import save_file

    from theodolite import registry
    from theodolite.checkpoint import Checkpoint
    from theodolite.values import Task

    with tempfile.TemporaryDirectory() as folder:
        tiny.write_files(Path(folder), {"config.json": config, "1_Pooling/config.json": {"pooling_mode": "mean"}})
        save_file({name: np.zeros(dims, np.float32) for name, dims in stored.items()}, f"{folder}/model.safetensors")
        checkpoint = Checkpoint(Path(folder))
        model = registry.installed().elect(checkpoint, Task.EMBED).build(checkpoint)
        return {name: list(tensor.shape) for name, tensor in tree_flatten(model.parameters())}


def tokenizer(special: list[str], pad: str, unk: str, around: str) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    """One token a word of run.py's texts, and tokenizer_config.json, as the peers ask for one."""
    vocabulary = {token: i for i, token in enumerate([*special, *sorted(set(words()))])}
    made = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=unk))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in special])
    made.post_processor = processors.TemplateProcessing(
        single=around, special_tokens=[(token, vocabulary[token]) for token in special if token in around.split()]
    )
    return made, {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": pad, "unk_token": unk}


def write(folder: Path, shape: str) -> None:
    recipe = SHAPES[shape]
    folder.mkdir(parents=True, exist_ok=True)
    made, tokenizer_config = tokenizer(**recipe["tokenizer"])
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    files = {
        "config.json": recipe["config"],
        "tokenizer_config.json": tokenizer_config,
        "modules.json": [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(modules)
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": recipe["config"]["hidden_size"], f"pooling_mode_{recipe['pooling']}": True,
        },
    }  # fmt: skip
    tiny.write_files(folder, files)
    made.save(str(folder / "tokenizer.json"))
    shapes, dtype, at, header = parameters(recipe["config"], recipe.get("stored", {})), recipe["dtype"], 0, {}
    for name, dims in shapes.items():
        end = at + int(np.prod(dims)) * WIDTHS[dtype]
        header[name] = {"dtype": dtype, "shape": dims, "data_offsets": [at, end]}
        at = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    rng = np.random.default_rng(0)
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(struct.pack("<Q", len(encoded)) + encoded)
        for name, dims in shapes.items():
            values = rng.standard_normal(dims, dtype=np.float32)
            values = values * 0.02 + 1 if "norm" in name.lower() and name.endswith("weight") else values * 0.02
            values = values.astype(np.float32)
            if dtype == "BF16":
                values = (values.view(np.uint32) >> 16).astype(np.uint16)  # its upper half is the bfloat16
            stream.write(values.tobytes())
    print(f"{folder}: {sum(int(np.prod(d)) for d in shapes.values()) / 1e6:.0f} million parameters, {at / 1e6:.0f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    write(given.folder, given.shape)
