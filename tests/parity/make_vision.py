"""Golden answers of the vision-language families, from transformers in float32 with eager attention.

    python tests/parity/make_vision.py        # a venv with torch, transformers, pillow, numpy, safetensors, tokenizers

Writes tests/plugins/vision/golden/*.json: the checkpoint's files and tensor shapes, the inputs, and the answers.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import (
    Idefics3Config,
    Idefics3Model,
    LlamaConfig,
    LlamaModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLModel,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    SiglipVisionConfig,
    SiglipVisionModel,
)
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "plugins" / "vision" / "golden"


def module(name: str, path: Path):
    spec = importlib.util.spec_from_file_location(name, path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


tiny = module("tiny", ROOT / "core" / "src" / "theodolite" / "testing" / "tiny.py")
picture = module("pictures", GOLDEN.parent / "pictures.py").picture
torch.set_grad_enabled(False)
TOKENIZERS = {
    "qwen": {
        "special": [
            "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
        ]
    },
    "smollm": {
        "special": [
            "<|im_start|>", "<|im_end|>", "<fake_token_around_image>", "<image>", "<global-img>", "<end_of_utterance>",
        ]
    },
    "llama": {
        "special": ["<|begin_of_text|>", "<|end_of_text|>", "<img>", "</img>", "<IMG_CONTEXT>"],
        "before": "<|begin_of_text|>",
    },
}  # fmt: skip
CHAT = """\
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' -}}
    {%- for part in message.content -%}
        {{- '<|vision_start|><|image_pad|><|vision_end|>' if part.type == 'image' else part.text -}}
    {%- endfor -%}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{{- '<|im_start|>assistant\\n' -}}
"""
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def tokens(tok, prompt: str, image: str | None, count: int) -> list[int]:
    ids = tok.encode(prompt).ids
    pad = tok.token_to_id(image) if image else None
    return [j for i in ids for j in [i] * (count if i == pad else 1)]


def unit(x: torch.Tensor) -> list:
    rows = x.double().numpy()
    return np.round(rows / np.linalg.norm(rows, axis=-1, keepdims=True), 7).tolist()


def fill(module: nn.Module, rename, tied: tuple[str, ...] = ()) -> dict[str, list[int]]:
    """Draw every parameter by the name it has in the checkpoint; the names and shapes."""
    shapes = {}
    for name, parameter in module.named_parameters():
        stored = rename(name)
        if stored in tied:
            continue
        shapes[stored] = list(parameter.shape)
        parameter.copy_(torch.from_numpy(tiny.draw(stored, shapes[stored])))
    return shapes


def save(name: str, kind: str, files: dict, shapes: dict, answers: list[dict]) -> None:
    """Answers to texts are for the kit; those with pictures for the tests beside the golden files."""
    plain = [a for a in answers if not a.get("image") and not a.get("query_image")]
    golden = {
        "tokenizer": TOKENIZERS[kind],
        "files": files,
        "shapes": shapes,
        "answers": [{k: v for k, v in a.items() if v is not None} for a in plain],
        "pictures": [a for a in answers if a not in plain],
    }
    path = GOLDEN / f"{name}.json"
    path.write_text(json.dumps(golden) + "\n")
    print(path.name, path.stat().st_size)


def qwen_pixels(settings: dict, size: tuple[int, int], phase: float):
    keep = {k: v for k, v in settings.items() if k not in ("image_processor_type", "min_pixels", "max_pixels")}
    bounds = {"shortest_edge": settings["min_pixels"], "longest_edge": settings["max_pixels"]}
    got = Qwen2VLImageProcessorPil(**keep, size=bounds)(images=[picture(*size, phase)], return_tensors="pt")
    return got["pixel_values"], got["image_grid_thw"]


def qwen3_vl() -> None:
    tok = tiny.tokenizer(TOKENIZERS["qwen"])
    one = {name: tok.token_to_id(name) for name in TOKENIZERS["qwen"]["special"]}
    config = {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "image_token_id": one["<|image_pad|>"],
        "video_token_id": 270,
        "vision_start_token_id": one["<|vision_start|>"],
        "vision_end_token_id": one["<|vision_end|>"],
        "tie_word_embeddings": True,
        "text_config": {
            "model_type": "qwen3_vl_text", "vocab_size": 272, "hidden_size": 32, "intermediate_size": 64,
            "head_dim": 16,
            "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4, "hidden_act": "silu",
            "rms_norm_eps": 1e-6, "rope_theta": 5000000, "tie_word_embeddings": True, "max_position_embeddings": 32768,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default"},
        },
        "vision_config": {
            "model_type": "qwen3_vl", "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2,
            "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 2], "out_hidden_size": 32, "patch_size": 16,
            "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3, "hidden_act": "gelu_pytorch_tanh",
        },
    }  # fmt: skip
    settings = {
        "patch_size": 16,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "min_pixels": 1024,
        "max_pixels": 16384,
        **HALF,
    }
    model = Qwen3VLForConditionalGeneration._from_config(Qwen3VLConfig(**config), attn_implementation="eager").eval()
    shapes = fill(model, lambda name: name, tied=("lm_head.weight",))
    model.tie_weights()

    def last(prompt: str, images: list) -> tuple[torch.Tensor, int]:
        pixels, grids = (
            zip(*(qwen_pixels(settings, size, phase) for size, phase in images), strict=True) if images else ((), ())
        )
        ids = tok.encode(prompt).ids
        counts = iter(int(grid.prod()) // 4 for grid in grids)
        ids = [j for i in ids for j in [i] * (next(counts) if i == one["<|image_pad|>"] else 1)]
        row = torch.tensor([ids])
        model.model.rope_deltas = None
        out = model.model(
            input_ids=row, attention_mask=torch.ones_like(row), use_cache=False,
            pixel_values=torch.cat(pixels) if images else None, image_grid_thw=torch.cat(grids) if images else None,
            mm_token_type_ids=(row == one["<|image_pad|>"]).int(),
        )  # fmt: skip
        return out.last_hidden_state[0, -1], len(ids)

    picture = "<|vision_start|><|image_pad|><|vision_end|>"

    def embed(text: str, image=None, task: str = "Represent the user's input.") -> dict:
        content = (picture if image else "") + text
        prompt = f"<|im_start|>system\n{task}<|im_end|>\n<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
        hidden, count = last(prompt, [image] if image else [])
        return {"text": text, "image": image, "tokens": count, "vector": unit(hidden)}

    files = {
        "config.json": config,
        "preprocessor_config.json": settings,
        "chat_template.jinja": CHAT,
        "1_Pooling/config.json": {"pooling_mode": "lasttoken", "embedding_dimension": 32},
    }
    answers = [
        embed("a red square"), embed("a map"), embed("", ((96, 64), 0.0)), embed("", ((64, 128), 1.0)),
        embed("with a text", ((96, 64), 0.0)), embed("", ((200, 150), 0.0)),
    ]  # fmt: skip
    save("qwen3_vl", "qwen", files, shapes, answers)

    yes, no = tok.token_to_id("y"), tok.token_to_id("n")
    source = (
        "{%- set f = namespace(task='Judge.') -%}{%- macro show(content) -%}{%- for part in content -%}"
        "{{- '<|vision_start|><|image_pad|><|vision_end|>' if part.type == 'image' else part.text -}}"
        "{%- endfor -%}{%- endmacro -%}"
        "{%- for m in messages -%}{%- if m.role == 'system' -%}{%- set f.task = show(m.content) -%}"
        "{%- elif m.role == 'query' -%}{%- set f.query = show(m.content) -%}"
        "{%- else -%}{%- set f.document = show(m.content) -%}{%- endif -%}{%- endfor -%}"
        "{{- '<|im_start|>' + f.task + '<Query>:' + f.query + '\\n<Document>:' + f.document + '<|im_end|>\\n' -}}"
    )

    def score(query: str, document: str, query_image=None, image=None, task: str = "Judge.") -> dict:
        sides = [(picture if shown else "") + text for text, shown in ((query, query_image), (document, image))]
        prompt = f"<|im_start|>{task}<Query>:{sides[0]}\n<Document>:{sides[1]}<|im_end|>\n"
        hidden, count = last(prompt, [shown for shown in (query_image, image) if shown])
        logits = model.lm_head.weight.double() @ hidden.double()
        value = float(logits[yes] - logits[no])
        return {
            "query": query, "document": document, "query_image": query_image, "image": image,
            "instruction": None if task == "Judge." else task, "tokens": count, "logit": value,
        }  # fmt: skip

    files = {
        "config.json": config,
        "preprocessor_config.json": settings,
        "additional_chat_templates/reranker.jinja": source,
        "1_LogitScore/config.json": {"true_token_id": yes, "false_token_id": no},
    }
    answers = [
        score("what is it?", "a panda"), score("what is it?", "a much longer text about bears"),
        score("a map", "", image=((96, 64), 0.0)),
        score("a map", "beside it", image=((64, 64), 0.5)), score("like this", "", ((64, 96), 2.0), ((96, 64), 0.0)),
        score("a map", "", None, ((96, 64), 0.0), "Find maps"),
    ]  # fmt: skip
    save("qwen3_vl_reranker", "qwen", files, shapes, answers)


def colqwen2_5() -> None:
    tok = tiny.tokenizer(TOKENIZERS["qwen"])
    one = {name: tok.token_to_id(name) for name in TOKENIZERS["qwen"]["special"]}
    config = {
        "architectures": ["ColQwen2_5"], "model_type": "qwen2_5_vl", "embedding_dim": 16, "vocab_size": 272,
        "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 3, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "rope_scaling": {"mrope_section": [2, 1, 1], "rope_type": "default", "type": "default"},
        "tie_word_embeddings": True, "max_position_embeddings": 32768, "image_token_id": one["<|image_pad|>"],
        "video_token_id": 270, "vision_start_token_id": one["<|vision_start|>"],
        "vision_end_token_id": one["<|vision_end|>"],
        "vision_config": {
            "model_type": "qwen2_5_vl", "depth": 3, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2,
            "fullatt_block_indexes": [1], "out_hidden_size": 32, "patch_size": 14, "spatial_merge_size": 2,
            "temporal_patch_size": 2, "window_size": 56, "in_channels": 3, "hidden_act": "silu",
        },
    }  # fmt: skip
    settings = {
        "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2, "min_pixels": 784, "max_pixels": 784 * 20,
        "image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28],
    }  # fmt: skip
    model = Qwen2_5_VLModel._from_config(
        Qwen2_5_VLConfig(**json.loads(json.dumps(config))), attn_implementation="eager"
    ).eval()
    head = nn.Linear(32, 16)

    def rename(name: str) -> str:
        return name.replace("language_model.", "model.") if name.startswith("language_model.") else name

    shapes = fill(model, rename) | fill(head, lambda name: f"custom_text_proj.{name}")

    def rows(prompt: str, image=None) -> dict:
        pixels, grid = qwen_pixels(settings, *image) if image else (None, None)
        ids = tokens(tok, prompt, "<|image_pad|>" if image else None, int(grid.prod()) // 4 if image else 1)
        row = torch.tensor([ids])
        model.rope_deltas = None
        out = model(
            input_ids=row, attention_mask=torch.ones_like(row), use_cache=False, pixel_values=pixels,
            image_grid_thw=grid,
            mm_token_type_ids=(row == one["<|image_pad|>"]).int(),
        )  # fmt: skip
        answer = unit(head(out.last_hidden_state[0]))
        return {"image": image, "tokens": len(ids), "vector": answer}

    page = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|><|endoftext|>"
    answers = [
        {"text": "a map", **rows("Query: a map" + "<|endoftext|>" * 10)},
        {"text": "", **rows(page, ((140, 84), 0.0))},
        {"text": "", **rows(page, ((56, 56), 1.0))},
    ]
    save("colqwen2_5", "qwen", {"config.json": config, "preprocessor_config.json": settings}, shapes, answers)


def colidefics3() -> None:
    tok = tiny.tokenizer(TOKENIZERS["smollm"])
    tile, patch, scale = 32, 8, 2
    config = {
        "architectures": ["ColIdefics3"], "model_type": "idefics3", "embedding_dim": 16, "scale_factor": scale,
        "image_token_id": tok.token_to_id("<image>"), "tie_word_embeddings": False, "vocab_size": 272,
        "text_config": {
            "model_type": "llama", "vocab_size": 272, "hidden_size": 32, "intermediate_size": 48, "head_dim": 8,
            "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3, "hidden_act": "silu",
            "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "max_position_embeddings": 8192, "tie_word_embeddings": False,
            "pad_token_id": 257,
        },
        "vision_config": {
            "model_type": "idefics3_vision", "hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 2,
            "num_hidden_layers": 2, "image_size": tile, "patch_size": patch, "num_channels": 3,
            "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
        },
    }  # fmt: skip
    settings = {
        "do_image_splitting": True, "max_image_size": {"longest_edge": tile}, "size": {"longest_edge": 2 * tile},
        "resample": 1, **HALF,
    }  # fmt: skip
    model = Idefics3Model._from_config(
        Idefics3Config(**json.loads(json.dumps(config))), attn_implementation="eager"
    ).eval()
    head = nn.Linear(32, 16)
    shapes = fill(model, lambda name: f"model.{name}") | fill(head, lambda name: f"linear.{name}")
    process = Idefics3ImageProcessorPil(**settings)

    def rows(prompt: str, **pixels) -> dict:
        ids = tok.encode(prompt).ids
        row = torch.tensor([ids])
        out = model(input_ids=row, attention_mask=torch.ones_like(row), use_cache=False, **pixels).last_hidden_state[0]
        return {"tokens": len(ids), "vector": unit(head(out))}

    def page(size: tuple[int, int], phase: float) -> dict:
        got = process(images=[picture(*size, phase)], return_tensors="pt", return_row_col_info=True)
        lines, run = "", "<image>" * (tile // patch // scale) ** 2
        for r in range(got["rows"][0][0]):
            for c in range(got["cols"][0][0]):
                lines += f"<fake_token_around_image><row_{r + 1}_col_{c + 1}>{run}"
            lines += "\n"
        lines += "\n" if lines else ""
        framed = f"{lines}<fake_token_around_image><global-img>{run}<fake_token_around_image>"
        prompt = f"<|im_start|>User:{framed}Describe the image.<end_of_utterance>\nAssistant:"
        pixels = {"pixel_values": got["pixel_values"], "pixel_attention_mask": got["pixel_attention_mask"]}
        return {"text": "", "image": [list(size), phase], **rows(prompt, **pixels)}

    answers = [
        {"text": "a map", "image": None, **rows("Query: a map" + "<end_of_utterance>" * 10)},
        page((64, 32), 0.0),
        page((32, 64), 1.0),
    ]
    save(
        "colidefics3",
        "smollm",
        {"config.json": config, "preprocessor_config.json": settings},
        shapes,
        answers,
    )


def nemotron_vl() -> None:
    """Upstream is remote code, so the composition is written here; tower and decoder are transformers' own."""
    tok = tiny.tokenizer(TOKENIZERS["llama"])
    tile, width = 32, 24
    text = {
        "model_type": "llama_bidirec", "vocab_size": 272, "hidden_size": 32, "intermediate_size": 48, "head_dim": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": 131072, "tie_word_embeddings": True,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 64,
            "rope_type": "llama3",
        },
        "architectures": ["LlamaBidirectionalModel"],
    }  # fmt: skip
    eye = {
        "model_type": "siglip_vision_model", "hidden_size": width, "intermediate_size": 40, "num_attention_heads": 2,
        "num_hidden_layers": 2, "image_size": tile, "patch_size": 8, "num_channels": 3,
        "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
    }  # fmt: skip
    config = {
        "architectures": ["LlamaNemotronVLModel"], "model_type": "llama_nemotron_vl", "downsample_ratio": 0.5,
        "force_image_size": tile, "img_context_token_id": tok.token_to_id("<IMG_CONTEXT>"), "max_input_tiles": 4,
        "select_layer": -1, "ps_version": "v2", "hidden_size": 32, "llm_config": text, "vision_config": eye,
        "use_thumbnail": True, "dynamic_image_size": True,
    }  # fmt: skip
    drop = ("model_type", "architectures")
    tower = SiglipVisionModel._from_config(
        SiglipVisionConfig(**{k: v for k, v in eye.items() if k not in drop}), attn_implementation="eager"
    ).eval()
    llm = LlamaModel._from_config(
        LlamaConfig(**{k: v for k, v in text.items() if k not in drop}), attn_implementation="eager"
    ).eval()
    mlp1 = nn.Sequential(nn.LayerNorm(4 * width), nn.Linear(4 * width, 32), nn.GELU(), nn.Linear(32, 32))

    def eyed(name: str) -> str:
        return f"vision_model.{name}" if name.startswith("vision_model.") else f"vision_model.vision_model.{name}"

    shapes = (
        fill(tower, eyed) | fill(llm, lambda name: f"language_model.{name}") | fill(mlp1, lambda name: f"mlp1.{name}")
    )

    def vector(prompt: str, tiles: list) -> dict:
        ids = tok.encode(prompt).ids
        row = torch.tensor([ids])
        embeds = llm.embed_tokens(row).clone()
        if tiles:
            pixels = torch.from_numpy(np.stack([np.asarray(t, np.float32) for t in tiles])).permute(0, 3, 1, 2)
            states = tower(pixel_values=(pixels / 255 - 0.5) / 0.5).last_hidden_state
            side = tile // 8
            block = states.reshape(len(tiles), side // 2, 2, side // 2, 2, width).permute(0, 1, 3, 2, 4, 5)
            embeds[row == config["img_context_token_id"]] = mlp1(block.reshape(-1, 4 * width))
        mask = torch.zeros(1, 1, len(ids), len(ids))
        out = llm(inputs_embeds=embeds, attention_mask=mask, use_cache=False).last_hidden_state[0]
        return {"tokens": len(ids), "vector": unit(out.double().mean(0))}

    def page(size: tuple[int, int], tiles: list) -> dict:
        context = "<IMG_CONTEXT>" * ((tile // 8 // 2) ** 2 * len(tiles))
        return {"text": "", "image": [list(size), 0.0], **vector(f"passage: <img>{context}</img> ", tiles)}

    wide = picture(64, 32)
    cut = [wide.crop((0, 0, 32, 32)), wide.crop((32, 0, 64, 32)), wide.resize((32, 32), 3)]
    answers = [
        {"text": "query: a map", "image": None, **vector("query: a map", [])},
        page((32, 32), [picture(32, 32)]),
        page((64, 32), cut),
    ]
    files = {
        "config.json": config,
        "processor_config.json": {
            "image_size": tile,
            "max_input_tiles": 4,
            "norm_type": "siglip",
            "use_thumbnail": True,
        },
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True, "word_embedding_dimension": 32},
    }
    save("nemotron_vl", "llama", files, shapes, answers)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for make in (qwen3_vl, colqwen2_5, colidefics3, nemotron_vl):
        make()
