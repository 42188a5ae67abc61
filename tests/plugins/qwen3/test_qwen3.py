"""Qwen3-Embedding holds what every family has to, and gives transformers' vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import theodolite
import theodolite_qwen3.plugin
from theodolite.errors import CheckpointError, RequestError
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


class TestQwen3BothWays(FamilyTests):
    """``is_causal: false``, where windows count inclusively."""

    plugin = theodolite_qwen3.plugin
    name = "qwen3"
    golden = GOLDEN / "qwen3_both_ways.json"


def test_a_text_that_is_cut_keeps_its_last_token(tmp_path: Path) -> None:
    embedder = theodolite.load(tiny.write(tmp_path, tiny.read(GOLDEN / "qwen3.json")), max_length=6)
    [row] = embedder.encode([TextItem("the cat sat on a mat over the hills")])
    assert len(row.input_ids) == 6
    assert row.input_ids[-1] == embedder.tokenizer.id_of("<|endoftext|>")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": ["sliding_attention", "linear_attention", "full_attention"]}, "linear_attention"),
        ({"layer_types": ["sliding_attention"] * 3, "use_sliding_window": False}, "sliding"),
        ({"architectures": ["AcmeEmbedder"], "auto_map": {"AutoModel": "acme.AcmeEmbedder"}}, "AcmeEmbedder is code"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}, "rope_scaling": {"type": "yarn"}}, "contradict"),
    ],
)
def test_what_would_be_guessed_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    recipe = tiny.read(GOLDEN / "qwen3_window.json")
    recipe["files"]["config.json"] |= change
    with pytest.raises(CheckpointError, match=message):
        theodolite.load(tiny.write(tmp_path, recipe))


def test_layers_that_config_does_not_count(tmp_path: Path) -> None:
    recipe = tiny.read(GOLDEN / "qwen3_window.json")
    recipe["files"]["config.json"]["layer_types"] = ["sliding_attention"]
    with pytest.raises(CheckpointError, match="layer_types names 1 layers"):
        theodolite.load(tiny.write(tmp_path, recipe))


def test_an_instruction_and_a_prompt_do_not_both_stand_before_a_text(tmp_path: Path) -> None:
    recipe = tiny.read(GOLDEN / "qwen3.json")
    recipe["files"]["config_sentence_transformers.json"] = {"prompts": {"query": "Instruct: search\nQuery:"}}
    embedder = theodolite.load(tiny.write(tmp_path, recipe))
    with pytest.raises(RequestError, match="'query'"):
        embedder.embed(["the cat"], prompt_name="query", instruction="judge")
    own = embedder.embed(["the cat"], instruction="judge").vectors[0]
    np.testing.assert_array_equal(embedder.embed_query("the cat", instruction="judge"), own)
    assert np.abs(embedder.embed_query("the cat") - own).max() > 1e-3
