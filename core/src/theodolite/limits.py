"""How long a row may be, and how many go through a model at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from theodolite.errors import CheckpointError

if TYPE_CHECKING:
    from theodolite.checkpoint import Checkpoint
    from theodolite.values import Profile

EMBED_BATCH = 16
RERANK_BATCH = 8
"""Rows of a forward pass, where neither the user nor the family's profile says otherwise."""
HARD_CAP = 8192
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
    declared = _positive(checkpoint, "tokenizer_config.json", "model_max_length")
    limits = {
        "hard cap": HARD_CAP,
        "position table": profile.max_positions,
        "fixed width": profile.width,
        "sentence_bert_config.json": _positive(checkpoint, "sentence_bert_config.json", "max_seq_length"),
        "tokenizer_config.json": declared if declared is not None and declared < UNSET_FROM else None,
    }
    return {source: limit for source, limit in limits.items() if limit is not None}


def _positive(checkpoint: Checkpoint, name: str, key: str) -> int | None:
    value: Any = checkpoint.json(name).get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CheckpointError(f"{checkpoint.path / name}: {key} should be a number, not {value!r}")
    return int(value) if value > 0 else None
