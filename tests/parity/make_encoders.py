"""Golden answers of ModernBERT, SigLIP and the cross-encoders, from transformers in float32 with eager attention.

    python tests/parity/make_encoders.py        # a venv with tests/parity/requirements.txt

Writes tests/plugins/encoders/golden/*.json: the checkpoint's files and tensor shapes, the inputs, and the answers.
Every text runs alone, so that no padding has a part in the answers.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    ModernBertModel,
    SiglipConfig,
    SiglipModel,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

HERE = Path(__file__).parents[1] / "plugins" / "encoders"
spec = importlib.util.spec_from_file_location("tiny", HERE / "tiny.py")
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)
torch.set_grad_enabled(False)

TEXTS = [[0, 3], [1, 9], [2, 40], [3, 70]]  # seed and number of words
DOCUMENTS = [[10, 2], [11, 30], [12, 12]]
QUERY = [9, 5]


def fill(module: nn.Module) -> dict[str, list[int]]:
    shapes = {}
    for name, parameter in module.named_parameters():
        shapes[name] = list(parameter.shape)
        parameter.copy_(torch.from_numpy(tiny.draw(name, shapes[name])))
    module.eval()
    return shapes


def unit(x: torch.Tensor) -> list[float]:
    row = x.double().numpy()
    return np.round(row / np.linalg.norm(row), 7).tolist()


def ids(kind: str, *texts: str):
    encoding = tiny.tokenizer(kind).encode(*texts)
    return torch.tensor([encoding.ids]), torch.tensor([encoding.type_ids])


def save(name: str, kind: str, files: dict, shapes: dict, answers: dict) -> None:
    golden = {"tokenizer": kind, "files": files, "shapes": shapes, "answers": answers}
    path = tiny.GOLDEN / f"{name}.json"
    path.write_text(json.dumps(golden) + "\n")
    print(path.name, path.stat().st_size)


def modernbert_config(**more) -> dict:
    return {
        "model_type": "modernbert", "vocab_size": tiny.VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 4, "num_attention_heads": 4, "local_attention": 8, "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "pad_token_id": 0, **more,
    }  # fmt: skip


def modernbert() -> None:
    config = modernbert_config(architectures=["ModernBertModel"])
    model = ModernBertModel(ModernBertConfig(**config, attn_implementation="eager"))
    shapes = fill(model)
    embed = []
    for seed, length in TEXTS:
        row, _ = ids("bert", tiny.text(seed, length))
        embed.append({"text": [seed, length], "answer": unit(model(input_ids=row).last_hidden_state[0].mean(0))})
    save("modernbert", "bert", {"config.json": config}, shapes, {"embed": embed})


def siglip() -> None:
    config = {
        "model_type": "siglip", "architectures": ["SiglipModel"],
        "text_config": {"vocab_size": tiny.VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 48,
                        "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 16},
        "vision_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                          "num_attention_heads": 4, "image_size": 30, "patch_size": 8},
    }  # fmt: skip
    settings = {"size": {"height": 30, "width": 30}, "resample": 3, "image_mean": [0.5] * 3, "image_std": [0.4] * 3}
    model = SiglipModel(SiglipConfig(**config, attn_implementation="eager"))
    shapes = fill(model)
    end, embed, sights = tiny.tokenizer("siglip").token_to_id("</s>"), [], []
    for seed, length in TEXTS:
        row = ids("siglip", tiny.text(seed, length))[0][0].tolist()
        row = [*row[:-1][:15], end]
        row += [end] * (16 - len(row))
        pooled = model.text_model(input_ids=torch.tensor([row])).pooler_output[0]
        embed.append({"text": [seed, length], "answer": unit(pooled)})
    for size in ([30, 30], [60, 41], [17, 90]):
        pixels = SiglipImageProcessorPil(**settings)(images=[tiny.picture(*size)], return_tensors="pt")["pixel_values"]
        sights.append({"image": size, "answer": unit(model.vision_model(pixel_values=pixels).pooler_output[0])})
    files = {"config.json": config, "preprocessor_config.json": settings}
    save("siglip", "siglip", files, shapes, {"embed": embed, "images": sights})


def rerank(name: str, kind: str, config: dict, model: nn.Module, typed: bool = False) -> None:
    shapes, scored = fill(model), []
    for seed, length in DOCUMENTS:
        row, types = ids(kind, tiny.text(*QUERY), tiny.text(seed, length))
        more = {"token_type_ids": types} if typed else {}
        scored.append({"text": [seed, length], "logit": round(float(model(input_ids=row, **more).logits[0, 0]), 6)})
    save(name, kind, {"config.json": config}, shapes, {"query": QUERY, "documents": scored})


def rerankers() -> None:
    small = {
        "vocab_size": tiny.VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 514,
    }  # fmt: skip
    one = {"num_labels": 1, "attn_implementation": "eager"}
    config = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], **small, "pad_token_id": 0}
    rerank("rerank_bert", "bert", config, BertForSequenceClassification(BertConfig(**config, **one)), typed=True)
    config = {
        "model_type": "xlm-roberta", "architectures": ["XLMRobertaForSequenceClassification"], **small,
        "pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5,
    }  # fmt: skip
    rerank("rerank_xlmr", "xlmr", config, XLMRobertaForSequenceClassification(XLMRobertaConfig(**config, **one)))
    for pooling in ("cls", "mean"):
        config = modernbert_config(
            architectures=["ModernBertForSequenceClassification"],
            classifier_pooling=pooling,
            classifier_bias=pooling == "mean",
        )
        model = ModernBertForSequenceClassification(ModernBertConfig(**config, **one))
        rerank(f"rerank_modernbert_{pooling}", "bert", config, model)


if __name__ == "__main__":
    tiny.GOLDEN.mkdir(exist_ok=True)
    modernbert()
    siglip()
    rerankers()
