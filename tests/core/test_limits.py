"""How long a row may be: the smallest of all limits that apply, and no other."""

from __future__ import annotations

import math

import pytest

from theodolite import limits
from theodolite.checkpoint import Checkpoint
from theodolite.errors import CheckpointError
from theodolite.values import Fit, Profile

SENTENCE = ("sentence_bert_config.json",)


def profile(**facts: int | None) -> Profile:
    return Profile(family="bert", fit=Fit.MODEL_TYPE, vocab_size=10, dim=4, **facts)


@pytest.mark.parametrize(
    ("sentence", "tokenizer", "positions", "asked", "expected"),
    [
        (None, None, None, None, 8192),
        (256, 512, 512, None, 256),
        (None, int(1e30), None, None, 8192),
        (None, 1_000_000, None, None, 8192),
        (None, 999_999, None, None, 8192),
        (None, 131_072, None, None, 8192),
        (512, None, 40, None, 40),
        (None, 64, None, None, 64),
        (256, 512, 512, 100, 100),
        (256, 512, 512, 1000, 256),
        (0, -1, None, None, 8192),
    ],
)
def test_the_smallest_limit_wins(write, sentence, tokenizer, positions, asked, expected) -> None:
    files = {
        "sentence_bert_config.json": {} if sentence is None else {"max_seq_length": sentence},
        "tokenizer_config.json": {} if tokenizer is None else {"model_max_length": tokenizer},
    }
    checkpoint = Checkpoint(write(files=files))
    assert limits.max_length(checkpoint, profile(max_positions=positions), asked) == expected


def test_null_is_no_limit_and_words_are_refused(write) -> None:
    checkpoint = Checkpoint(write(files={"sentence_bert_config.json": {"max_seq_length": None}}))
    assert limits.max_length(checkpoint, profile()) == 60
    checkpoint = Checkpoint(write(files={"sentence_bert_config.json": {"max_seq_length": "many"}}))
    with pytest.raises(CheckpointError, match="max_seq_length"):
        limits.max_length(checkpoint, profile())


@pytest.mark.parametrize("kind", ["roberta", "xlm-roberta", "distilbert"])
def test_the_older_names_of_the_sentence_config(write, kind: str) -> None:
    checkpoint = Checkpoint(write(files={f"sentence_{kind}_config.json": {"max_seq_length": 12}}, drop=SENTENCE))
    assert limits.max_length(checkpoint, profile()) == 12


@pytest.mark.parametrize(
    ("config", "expected"),
    [({"max_len": 12}, 12), ({"max_len": 12, "model_max_length": 14}, 14), ({"model_max_length": math.inf}, 8192)],
)
def test_the_tokenizers_limit(write, config: dict[str, float], expected: int) -> None:
    checkpoint = Checkpoint(write(files={"tokenizer_config.json": config}, drop=SENTENCE))
    assert limits.max_length(checkpoint, profile()) == expected
