"""Tiny checkpoints from recipes: JSON files, a small tokenizer, and weights drawn from their names and shapes alone.

A recipe is a dictionary: ``files`` (name -> JSON value or text), ``tokenizer`` (see `tokenizer`), ``shapes`` (tensor
name -> shape). Needs numpy, tokenizers and safetensors only, so that a script beside torch can write the same folder.
"""

from __future__ import annotations

import json
import zlib
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

WORDS = ["the", "cat", "sat", "on", "a", "mat", "rain", "falls", "over", "hills", "query", "passage", "is", "what"]
TEXTS = [
    "the cat sat on a mat",
    "rain",
    "what falls over the hills is rain, and more rain: 3 or 14 days of it",
    "Query about UPPER case and d\u00e9j\u00e0 vu",
]
"""Texts of different lengths for tests."""


def read(golden: Path) -> dict[str, Any]:
    """A golden file, or any recipe stored as JSON."""
    recipe: dict[str, Any] = json.loads(golden.read_text(encoding="utf-8"))
    return recipe


def write(folder: Path, recipe: dict[str, Any]) -> Path:
    """Write the checkpoint of a recipe into ``folder``."""
    write_files(folder, recipe["files"])
    tokenizer(recipe["tokenizer"]).save(str(folder / "tokenizer.json"))
    save_file({name: draw(name, shape) for name, shape in recipe["shapes"].items()}, folder / "model.safetensors")
    return folder


def write_files(folder: Path, files: dict[str, Any]) -> Path:
    """Write JSON values, or texts, as files of a folder."""
    for name, value in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return folder


def zoo() -> list[dict[str, Any]]:
    """Configurations in their published shape, one or more of every stock family."""
    files = sorted(resources.files("theodolite.testing").joinpath("zoo").iterdir(), key=lambda file: file.name)
    return [{"name": file.name.removesuffix(".json"), **json.loads(file.read_text(encoding="utf-8"))} for file in files]


def draw(name: str, shape: list[int]) -> np.ndarray:
    """A float32 tensor that depends on its name and shape only: uneven norms, biases, sharp attention."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    values = rng.standard_normal(shape)
    if len(shape) == 1:
        values = 1 + 0.15 * values if name.endswith("weight") else 0.1 * values
    elif "embed" in name:
        values *= 0.6
    else:
        values *= 1.5 / np.sqrt(np.prod(shape[1:]))
    return values.astype(np.float32)


def tokenizer(kind: str | dict[str, Any]) -> tokenizers.Tokenizer:
    """A small tokenizer: ``"wordpiece"`` (as BERT), ``"unigram"`` (as XLM-RoBERTa), or bytes.

    Bytes are a dictionary ``{"special": [...], "before": TOKEN | None, "after": TOKEN | None}``.
    """
    if kind == "wordpiece":
        return _wordpiece()
    if kind == "unigram":
        return _unigram()
    if isinstance(kind, dict):
        return _bytes(**kind)
    raise ValueError(f"a recipe's tokenizer is 'wordpiece', 'unigram' or a dictionary, not {kind!r}")


def _wordpiece() -> tokenizers.Tokenizer:
    letters = [chr(i) for i in range(33, 127) if not chr(i).isupper()]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = [*special, *letters, *(f"##{letter}" for letter in letters), *WORDS]
    made = tokenizers.Tokenizer(
        models.WordPiece({token: i for i, token in enumerate(dict.fromkeys(vocabulary))}, unk_token="[UNK]")
    )
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(prefix="##")
    made.add_special_tokens([AddedToken(token, special=True) for token in special])
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


def _unigram() -> tokenizers.Tokenizer:
    letters = [chr(i) for i in range(33, 127)]
    words = ["\u2581", *(f"\u2581{word}" for word in WORDS)]
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [(word, -2.0) for word in words] + [(letter, -8.0) for letter in letters]
    made = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=3))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.add_special_tokens([AddedToken(token, special=True) for token, _ in pieces[:4]])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return made


def _bytes(special: list[str], before: str | None = None, after: str | None = None) -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    if before or after:
        used = [token for token in (before, after) if token]
        made.post_processor = processors.TemplateProcessing(
            single=" ".join([*([before] if before else []), "$A", *([after] if after else [])]),
            special_tokens=[(token, made.token_to_id(token)) for token in used],
        )
    return made
