"""Golden answers of the text families, from transformers in float32 with eager attention, each input alone.

    python tests/parity/make_text.py     # a venv with tests/parity/requirements.txt

Writes tests/plugins/<family>/golden/*.json: the recipe of a tiny checkpoint (theodolite.testing.tiny) and the answers.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    Gemma3TextConfig,
    Gemma3TextModel,
    Lfm2Config,
    Lfm2Model,
    LlamaConfig,
    LlamaModel,
    Ministral3Config,
    Ministral3Model,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    ModernBertModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3Model,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
    XLMRobertaModel,
)
from transformers.models.lfm2 import modeling_lfm2

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("tiny", ROOT / "core/src/theodolite/testing/tiny.py")
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)
torch.set_grad_enabled(False)

LONG = "the cat sat on a mat over the hills, " * 4 + "and what rain is this"
TEXTS = [*tiny.TEXTS, LONG]
TASK = "Given a web search query, retrieve relevant passages that answer the query"
QWEN = {
    "special": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"],
    "after": "<|endoftext|>",
}
LLAMA = {"special": ["<s>", "</s>", "<pad>"], "before": "<s>"}
GEMMA = {"special": ["<pad>", "<eos>", "<bos>"], "before": "<bos>", "after": "<eos>"}
WORDPIECE_CONFIG = {"pad_token": "[PAD]", "model_max_length": 60}


def vocabulary(kind: Any) -> int:
    return tiny.tokenizer(kind).get_vocab_size()


def fill(model: torch.nn.Module, drop: tuple[str, ...] = ()) -> dict[str, list[int]]:
    """Draw every parameter by its stored name; the shapes of a recipe."""
    shapes = {}
    for name, parameter in model.named_parameters():
        if not name.startswith(drop or ("\0",)):
            parameter.copy_(torch.from_numpy(tiny.draw(name, list(parameter.shape))))
            shapes[name] = list(parameter.shape)
    return shapes


def unit(vector: torch.Tensor) -> list[float]:
    wide = vector.double().numpy()
    return np.round(wide / np.linalg.norm(wide), 7).tolist()


def pool(hidden: torch.Tensor, mode: str) -> torch.Tensor:
    return {"mean": hidden.mean(0), "cls": hidden[0], "lasttoken": hidden[-1]}[mode]


def cut(ids: list[int], limit: int | None) -> list[int]:
    return ids if limit is None or len(ids) <= limit else [*ids[: limit - 1], ids[-1]]


def store(family: str, name: str, recipe: dict[str, Any]) -> None:
    file = ROOT / "tests/plugins" / family.replace("-", "_") / "golden" / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(recipe) + "\n")
    print(f"{file.relative_to(ROOT)}: {file.stat().st_size} bytes")


def embedder(
    family: str,
    name: str,
    model: torch.nn.Module,
    config: dict[str, Any],
    tokenizer: Any,
    mode: str,
    *,
    files: dict[str, Any] | None = None,
    limit: int | None = None,
    after: Callable[[torch.Tensor], torch.Tensor] = lambda vector: vector,
    more_shapes: dict[str, list[int]] | None = None,
    wrap: Callable[[str], str] | None = None,
    drop: tuple[str, ...] = (),
) -> None:
    shapes = fill(model.eval(), drop)
    tok, answers = tiny.tokenizer(tokenizer), []
    for text in TEXTS:
        for task in (None, TASK) if wrap else (None,):
            ids = cut(tok.encode(wrap(text) if task and wrap else text).ids, limit)
            hidden = model(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids))).last_hidden_state[0]
            answers.append(
                {"text": text, "instruction": task, "tokens": len(ids), "vector": unit(after(pool(hidden, mode)))}
            )
    recipe = {
        "files": {"config.json": config, "1_Pooling/config.json": {"pooling_mode": mode}, **(files or {})},
        "tokenizer": tokenizer,
        "shapes": {**shapes, **(more_shapes or {})},
        "answers": answers,
    }
    store(family, name, recipe)


def reranker(
    name: str,
    model: torch.nn.Module,
    config: dict[str, Any],
    tokenizer: Any,
    encode: Callable[[Any, str, str, str | None], tuple[list[int], list[int] | None]],
    logit: Callable[[torch.Tensor], float],
    instructions: tuple[str | None, ...] = (None,),
    tied: tuple[str, ...] = (),
    settings: dict[str, Any] | None = None,
) -> None:
    shapes = fill(model.eval(), tied)
    tok, answers = tiny.tokenizer(tokenizer), []
    for text in TEXTS:
        for task in instructions:
            ids, types = encode(tok, TEXTS[0], text, task)
            extra = {} if types is None else {"token_type_ids": torch.tensor([types])}
            out = model(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), **extra).logits
            answers.append(
                {"query": TEXTS[0], "document": text, "instruction": task, "tokens": len(ids), "logit": logit(out)}
            )
    files = {"config.json": config}
    if tokenizer == "wordpiece":
        files["tokenizer_config.json"] = {"pad_token": "[PAD]", **(settings or {})}
    store("rerankers", name, {"files": files, "tokenizer": tokenizer, "shapes": shapes, "answers": answers})


def settings(architecture: str, model_type: str, **more: Any) -> dict[str, Any]:
    small = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 3}
    return {"architectures": [architecture], "model_type": model_type, **small, **more}


def made(model: type, config: type, values: dict[str, Any]) -> torch.nn.Module:
    known = {k: v for k, v in values.items() if k not in ("architectures", "model_type")}
    return model(config(**known, attn_implementation="eager"))


def encoders() -> None:
    words, pieces = vocabulary("wordpiece"), vocabulary("unigram")
    files = {
        "tokenizer_config.json": WORDPIECE_CONFIG,
        "sentence_bert_config.json": {"max_seq_length": 24, "do_lower_case": False},
    }
    bert = settings("BertModel", "bert", vocab_size=words, max_position_embeddings=64, type_vocab_size=2)
    embedder("bert", "bert", made(BertModel, BertConfig, bert), bert, "wordpiece", "mean", files=files, limit=24)
    roberta = settings(
        "XLMRobertaModel", "xlm-roberta", vocab_size=pieces, max_position_embeddings=34, type_vocab_size=1,
        pad_token_id=1, layer_norm_eps=1e-5,
    )  # fmt: skip
    embedder(
        "bert", "xlm_roberta", made(XLMRobertaModel, XLMRobertaConfig, roberta), roberta, "unigram", "cls",
        files={"tokenizer_config.json": {"pad_token": "<pad>", "model_max_length": 8192}}, limit=32,
    )  # fmt: skip
    modern = settings(
        "ModernBertModel", "modernbert", vocab_size=words, max_position_embeddings=32, local_attention=10,
        global_attn_every_n_layers=2, pad_token_id=0, bos_token_id=2, cls_token_id=2, eos_token_id=3, sep_token_id=3,
        num_hidden_layers=4,
    )  # fmt: skip
    modern_files = {"tokenizer_config.json": {"pad_token": "[PAD]", "model_max_length": 8192}}
    model = made(ModernBertModel, ModernBertConfig, modern)
    embedder("modernbert", "modernbert", model, modern, "wordpiece", "mean", files=modern_files)

    def pair(tok: Any, query: str, document: str, _: str | None) -> tuple[list[int], list[int]]:
        encoding = tok.encode(query, document)
        return encoding.ids, encoding.type_ids

    def untyped(*args: Any) -> tuple[list[int], None]:
        return pair(*args)[0], None

    def one(out: torch.Tensor) -> float:
        return round(float(out[0, 0]), 6)

    bert |= {"architectures": ["BertForSequenceClassification"], "max_position_embeddings": 300, "num_labels": 1}
    model = made(BertForSequenceClassification, BertConfig, bert)
    reranker("bert", model, bert, "wordpiece", pair, one)
    inputs = {"model_input_names": ["input_ids", "attention_mask"]}
    reranker("bert_without_segments", model, bert, "wordpiece", untyped, one, settings=inputs)
    roberta |= {"architectures": ["XLMRobertaForSequenceClassification"], "max_position_embeddings": 302}
    model = made(XLMRobertaForSequenceClassification, XLMRobertaConfig, roberta | {"num_labels": 1})
    reranker("xlm_roberta", model, roberta, "unigram", untyped, one)
    modern |= {
        "architectures": ["ModernBertForSequenceClassification"],
        "classifier_pooling": "mean",
        "classifier_bias": True,
    }
    model = made(ModernBertForSequenceClassification, ModernBertConfig, modern | {"num_labels": 1})
    reranker("modernbert", model, modern, "wordpiece", untyped, one)


def decoders() -> None:
    qwen = settings(
        "Qwen3ForCausalLM", "qwen3", vocab_size=vocabulary(QWEN), num_key_value_heads=2, head_dim=32,
        rope_theta=5000.0, max_position_embeddings=4096, tie_word_embeddings=True,
    )  # fmt: skip
    tokens = {"tokenizer_config.json": {"pad_token": "<|endoftext|>"}}

    def wrap(text: str) -> str:
        return f"Instruct: {TASK}\nQuery: {text}"

    embedder(
        "qwen3", "qwen3", made(Qwen3Model, Qwen3Config, qwen), qwen, QWEN, "lasttoken", files=tokens, wrap=wrap
    )  # fmt: skip
    windowed = {**qwen, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    embedder(
        "qwen3", "qwen3_window", made(Qwen3Model, Qwen3Config, windowed), windowed, QWEN, "lasttoken", files=tokens
    )
    both_ways = {**windowed, "is_causal": False}
    embedder(
        "qwen3", "qwen3_both_ways", made(Qwen3Model, Qwen3Config, both_ways), both_ways, QWEN, "lasttoken", files=tokens
    )
    prefix = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    suffix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    answers = {**QWEN, "special": [*QWEN["special"], "yes", "no"]}
    qwen["vocab_size"] = vocabulary(answers)

    def recipe(tok: Any, query: str, document: str, task: str | None) -> tuple[list[int], None]:
        content = f"<Instruct>: {task or TASK}\n<Query>: {query}\n<Document>: {document}"
        parts = (tok.encode(part, add_special_tokens=False).ids for part in (prefix, content, suffix))
        return [token for part in parts for token in part], None

    made_tok = tiny.tokenizer(answers)
    yes, no = made_tok.token_to_id("yes"), made_tok.token_to_id("no")
    reranker(
        "qwen3", made(Qwen3ForCausalLM, Qwen3Config, qwen), qwen, answers, recipe,
        lambda out: round(float(out[0, -1, yes] - out[0, -1, no]), 6), (None, "Judge by the weather"),
        tied=("lm_head.",),
    )  # fmt: skip
    # said to be tied, stored with a head of its own: what transformers reads then is the head
    untied = made(Qwen3ForCausalLM, Qwen3Config, {**qwen, "tie_word_embeddings": False})
    reranker(
        "qwen3_own_head", untied, qwen, answers, recipe, lambda out: round(float(out[0, -1, yes] - out[0, -1, no]), 6)
    )

    gemma = settings(
        "Gemma3TextModel", "gemma3_text", vocab_size=vocabulary(GEMMA), num_key_value_heads=1, head_dim=32,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], sliding_window=12,
        query_pre_attn_scalar=24, rope_theta=20000.0, rope_local_base_freq=100.0, use_bidirectional_attention=True,
        max_position_embeddings=2048,
    )  # fmt: skip
    dense = {"dense.0.weight": [96, 64], "dense.1.weight": [32, 96]}
    drawn = [torch.from_numpy(tiny.draw(name, shape)) for name, shape in dense.items()]
    embedder(
        "gemma3", "gemma3", made(Gemma3TextModel, Gemma3TextConfig, dict(gemma)), gemma, GEMMA, "mean",
        after=lambda v: drawn[1] @ (drawn[0] @ v), more_shapes=dense,
        files={"tokenizer_config.json": {"pad_token": "<pad>", "model_max_length": 2048}},
    )  # fmt: skip

    pads = {"tokenizer_config.json": {"pad_token": "<pad>"}}
    llama3 = {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    llama = settings(
        "LlamaBidirectionalModel", "llama_bidirec", vocab_size=vocabulary(LLAMA), num_key_value_heads=2, head_dim=32,
        rope_theta=800.0, rope_scaling=llama3, max_position_embeddings=4096, rms_norm_eps=1e-5,
    )  # fmt: skip
    model = made(LlamaModel, LlamaConfig, {**llama, "is_causal": False})
    embedder("nemotron", "llama_bidirec", model, llama, LLAMA, "mean", files=pads)
    ministral = settings(
        "Ministral3Model", "ministral3", vocab_size=vocabulary(LLAMA), num_key_value_heads=2, head_dim=32,
        is_causal=False, max_position_embeddings=4096, rms_norm_eps=1e-5,
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 40,
            "beta_fast": 8.0, "beta_slow": 1.0, "mscale": 0.7, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
        },
    )  # fmt: skip
    model = made(Ministral3Model, Ministral3Config, ministral)
    embedder("nemotron", "ministral3", model, ministral, LLAMA, "mean", files=pads)
    windowed = {**ministral, "sliding_window": 5}
    model = made(Ministral3Model, Ministral3Config, windowed)
    embedder("nemotron", "ministral3_window", model, windowed, LLAMA, "mean", files=pads)
    bare = {key: value for key, value in ministral.items() if key not in ("rope_parameters", "rms_norm_eps")}
    model = made(Ministral3Model, Ministral3Config, bare)
    embedder("nemotron", "ministral3_bare", model, bare, LLAMA, "mean", files=pads)


def lfm2() -> None:
    def centred(self: Any, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
        """LFM2's short convolution with its taps around each position, as the bidirectional export defines it."""
        gate_in, gate_out, value = self.in_proj(hidden_states).transpose(-1, -2).chunk(3, dim=-2)
        mixed = F.conv1d(gate_in * value, self.conv.weight, self.conv.bias, padding=1, groups=hidden_states.shape[-1])
        return self.out_proj((gate_out * mixed).transpose(-1, -2))

    modeling_lfm2.Lfm2ShortConv.forward = centred
    config = settings(
        "Lfm2BidirectionalModel", "lfm2", vocab_size=vocabulary(LLAMA), num_key_value_heads=2, norm_eps=1e-5,
        layer_types=["conv", "full_attention", "conv"], conv_L_cache=3, conv_bias=False, rope_theta=4000.0,
        block_auto_adjust_ff_dim=False, max_position_embeddings=4096,
    )  # fmt: skip
    model = made(Lfm2Model, Lfm2Config, {**config, "is_causal": False})
    files = {"tokenizer_config.json": {"pad_token": "<pad>"}, "sentence_bert_config.json": {"max_seq_length": 512}}
    embedder("lfm2", "lfm2", model, config, LLAMA, "cls", files=files)


if __name__ == "__main__":
    encoders()
    decoders()
    lfm2()
