"""Qwen3-Embedding holds what every family has to, and gives transformers' vectors."""

from __future__ import annotations

from pathlib import Path

import pytest

import theodolite
import theodolite_qwen3.plugin
from theodolite.errors import CheckpointError
from theodolite.testing import FamilyTests, tiny
from theodolite.values import TextItem

GOLDEN = Path(__file__).parent / "golden"


class TestQwen3(FamilyTests):
    plugin = theodolite_qwen3.plugin
    name = "qwen3"
    golden = GOLDEN / "qwen3.json"


class TestQwen3Window(FamilyTests):
    """Windows from ``max_window_layers``, without layer_types."""

    plugin = theodolite_qwen3.plugin
    name = "qwen3"
    golden = GOLDEN / "qwen3_window.json"


def test_a_text_that_is_cut_keeps_its_last_token(tmp_path: Path) -> None:
    embedder = theodolite.load(tiny.write(tmp_path, tiny.read(GOLDEN / "qwen3.json")), max_length=6)
    [row] = embedder.encode([TextItem("the cat sat on a mat over the hills")])
    assert len(row.input_ids) == 6
    assert row.input_ids[-1] == embedder.tokenizer.id_of("<|endoftext|>")


def test_layers_that_config_does_not_count(tmp_path: Path) -> None:
    recipe = tiny.read(GOLDEN / "qwen3_window.json")
    recipe["files"]["config.json"]["layer_types"] = ["sliding_attention"]
    with pytest.raises(CheckpointError, match="layer_types names 1 layers"):
        theodolite.load(tiny.write(tmp_path, recipe))
