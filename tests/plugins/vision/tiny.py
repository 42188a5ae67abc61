"""Tiny random checkpoints of the vision-language families, rebuilt from a golden file: its config, shapes and a seed.

tests/parity/make_vision.py imports this file to write the same checkpoints for the references.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import tokenizers
from PIL import Image
from safetensors.numpy import save_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

GOLDEN = Path(__file__).parent / "golden"
SPECIAL = {
    "qwen": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"],
    "smollm": [
        "<|im_start|>",
        "<|im_end|>",
        "<fake_token_around_image>",
        "<image>",
        "<global-img>",
        "<end_of_utterance>",
    ],
    "llama": ["<|begin_of_text|>", "<|end_of_text|>", "<img>", "</img>", "<IMG_CONTEXT>"],
}
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


def tokenizer(kind: str) -> tokenizers.Tokenizer:
    """Bytes and special tokens, without merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL[kind]])
    if kind == "llama":
        bos = SPECIAL[kind][0]
        made.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, made.token_to_id(bos))]
        )
    return made


def draw(name: str, shape: list[int]) -> np.ndarray:
    """A tensor that depends on its name and shape only: uneven norms, biases that are not zero, sharp attention."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    values = rng.standard_normal(shape)
    if len(shape) == 1:
        values = 1 + 0.15 * values if name.endswith("weight") else 0.1 * values
    elif "embed_tokens" in name or "pos" in name:
        values *= 0.5
    else:
        values *= 1.5 / np.sqrt(np.prod(shape[1:]))
    return values.astype(np.float32)


def picture(width: int, height: int, phase: float = 0.0) -> Image.Image:
    """A smooth picture with a dark bar, the same on every machine."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [127 + 100 * np.sin(phase + 0.05 * (i + 1) * x + 0.07 * (3 - i) * y) for i in range(3)]
    pixels = np.round(np.stack(waves, axis=-1)).astype(np.uint8)
    pixels[height // 3 : height // 2, width // 4 :] = (20, 30, 60)
    return Image.fromarray(pixels)


def write(folder: Path, golden: dict) -> Path:
    """The checkpoint of a golden file: its json files, its templates, its tokenizer, and drawn weights."""
    for name, value in golden["files"].items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(value if isinstance(value, str) else json.dumps(value))
    tokenizer(golden["tokenizer"]).save(str(folder / "tokenizer.json"))
    save_file({name: draw(name, shape) for name, shape in golden["shapes"].items()}, folder / "model.safetensors")
    return folder


def read(name: str) -> dict:
    """A golden file."""
    return json.loads((GOLDEN / f"{name}.json").read_text())
