"""How long a row may be, how many go through a model at once, and what else a user may choose. Needs no MLX."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from theodolite.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from theodolite.checkpoint import Checkpoint
    from theodolite.values import Profile

EMBED_BATCH = 16
RERANK_BATCH = 8
"""Rows of a forward pass, where neither the user nor the family's profile says otherwise."""
HARD_CAP = 8192
DTYPES = ("auto", "float32", "float16", "bfloat16")
"""What a user may ask to compute in."""
LARGEST_NORM = 2**31 - 1
"""The largest p of a p-norm."""
UNSET_FROM = 1_000_000
"""transformers writes a huge ``model_max_length`` where a tokenizer has no limit."""


def max_length(checkpoint: Checkpoint, profile: Profile, asked: int | None = None) -> int:
    """The most tokens of a row, special tokens included: the smallest of all limits that apply.

    :param asked: ``--max-length``; it only lowers.
    """
    limits = list(found(checkpoint, profile).values())
    return min(limits if asked is None else [*limits, asked])


def found(checkpoint: Checkpoint, profile: Profile) -> dict[str, int]:
    """The limits that apply without the user's, by what sets them."""
    side_file, side = checkpoint.sentence_config
    config = checkpoint.json("tokenizer_config.json")
    key = "model_max_length" if config.get("model_max_length") is not None else "max_len"  # as old tokenizers say it
    declared = _positive(checkpoint.path / "tokenizer_config.json", config, key)
    limits = {
        "hard cap": HARD_CAP,
        "position table": profile.max_positions,
        "fixed width": profile.width,
        side_file: _positive(checkpoint.path / side_file, side, "max_seq_length"),
        "tokenizer_config.json": declared if declared is not None and declared < UNSET_FROM else None,
    }
    return {source: limit for source, limit in limits.items() if limit is not None}


def _positive(file: Path, values: dict[str, Any], key: str) -> int | None:
    value = values.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CheckpointError(f"{file}: {key} should be a number, not {value!r}")
    return int(min(value, sys.maxsize)) if value > 0 else None  # Infinity is valid in the JSON that Python writes
