"""Tiny random encoders, rebuilt from a golden file: its config, shapes and names.

tests/parity/make_encoders.py imports this file to write the same checkpoints for the references.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import tokenizers
from PIL import Image
from safetensors.numpy import save_file
from tokenizers import models, pre_tokenizers, processors

GOLDEN = Path(__file__).parent / "golden"
WORDS = [f"w{i}" for i in range(50)]
SPECIAL = {
    "bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]"],
    "xlmr": ["<s>", "<pad>", "</s>", "<unk>"],
    "siglip": ["<unk>", "</s>"],
}
TEMPLATE = {
    # the second segment is 1 for ModernBERT too, which has no table of segments and must not mind
    "bert": ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
    "xlmr": ("<s> $A </s>", "<s> $A </s> </s> $B </s>"),
    "siglip": ("$A </s>", "$A </s> $B </s>"),
}
PAD = {"bert": "[PAD]", "xlmr": "<pad>", "siglip": "</s>"}
VOCAB_SIZE = 54


def tokenizer(kind: str) -> tokenizers.Tokenizer:
    """Words w0 to w49 and the special tokens of a kind."""
    vocab = {token: i for i, token in enumerate([*SPECIAL[kind], *WORDS])}
    unknown = next(token for token in SPECIAL[kind] if "unk" in token.lower())
    made = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token=unknown))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(SPECIAL[kind])
    single, pair = TEMPLATE[kind]
    ids = [(token, vocab[token]) for token in SPECIAL[kind]]
    made.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)
    return made


def text(seed: int, length: int) -> str:
    """Random words."""
    return " ".join(np.random.default_rng(seed).choice(WORDS, length))


def draw(name: str, shape: list[int]) -> np.ndarray:
    """A tensor that depends on its name and shape only: uneven norms, biases that are not zero, sharp attention."""
    values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    if len(shape) == 1:
        values = 1 + 0.15 * values if name.endswith("weight") else 0.1 * values
    elif "embedding" in name and "patch" not in name:
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
    """The checkpoint of a golden file: its json files, its tokenizer, and drawn weights."""
    for name, value in golden["files"].items():
        (folder / name).write_text(json.dumps(value))
    kind = golden["tokenizer"]
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": PAD[kind]}))
    tokenizer(kind).save(str(folder / "tokenizer.json"))
    save_file({name: draw(name, shape) for name, shape in golden["shapes"].items()}, folder / "model.safetensors")
    return folder


def read(name: str) -> dict:
    """A golden file."""
    return json.loads((GOLDEN / f"{name}.json").read_text())
