"""Write a BERT checkpoint in float32 for llama.cpp: `python export_gguf.py CHECKPOINT OUT.gguf`, in its own venv."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def renamed(name: str) -> str | None:
    """A tensor's name in the GGUF layout, None for one that embedding does not need."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("encoder.layer."):
        number, _, stem = stem.removeprefix("encoder.layer.").partition(".")
        return f"blk.{number}.{NAMES[stem]}.{kind}"
    return f"{NAMES[stem]}.{kind}" if stem in NAMES else None


def piece(token: str) -> str:
    """llama.cpp marks the pieces that begin a word; the vocabulary of BERT marks the others."""
    if token.startswith("[") and token.endswith("]"):
        return token
    return token.removeprefix("##") if token.startswith("##") else "\N{LOWER ONE EIGHTH BLOCK}" + token


def main() -> None:
    folder, out = Path(sys.argv[1]), sys.argv[2]
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocab: dict[str, int] = tokenizer["model"]["vocab"]
    writer = gguf.GGUFWriter(out, "bert")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_type_count(config["type_vocab_size"])
    writer.add_token_list([piece(token) for token in sorted(vocab, key=vocab.__getitem__)])
    writer.add_bos_token_id(vocab["[CLS]"])
    writer.add_sep_token_id(vocab["[SEP]"])
    writer.add_eos_token_id(vocab["[SEP]"])
    writer.add_unk_token_id(vocab["[UNK]"])
    writer.add_pad_token_id(vocab["[PAD]"])
    writer.add_mask_token_id(vocab["[MASK]"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        target = renamed(name.removeprefix("bert."))
        if target is not None:
            writer.add_tensor(target, tensor.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
