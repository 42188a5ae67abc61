"""The BERT family holds what every family has to, and gives transformers' vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import theodolite
import theodolite_bert.plugin
from theodolite.errors import CheckpointError
from theodolite.testing import FamilyTests, tiny
from theodolite.values import Batch

GOLDEN = Path(__file__).parent / "golden"


class TestBert(FamilyTests):
    plugin = theodolite_bert.plugin
    name = "bert"
    golden = GOLDEN / "bert.json"


class TestXlmRoberta(FamilyTests):
    plugin = theodolite_bert.plugin
    name = "bert"
    golden = GOLDEN / "xlm_roberta.json"


def test_the_norms_of_checkpoints_that_came_from_tensorflow(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path, tiny.read(GOLDEN / "bert.json"))
    wanted = theodolite.load(folder).embed(tiny.TEXTS).vectors
    tensors = mx.load(str(folder / "model.safetensors"))
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, name in old.items():
        tensors = {f"bert.{key}".replace("bert.bert.", "bert.").replace(new, name): t for key, t in tensors.items()}
    mx.eval(tensors)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    np.testing.assert_array_equal(theodolite.load(folder).embed(tiny.TEXTS).vectors, wanted)


@pytest.mark.parametrize(("name", "rows"), [("bert", 2), ("xlm_roberta", 1)])
@pytest.mark.parametrize("change", [{"is_decoder": True}, {"type_vocab_size": 0}])
def test_what_would_be_computed_wrongly_is_refused(
    tmp_path: Path, name: str, rows: int, change: dict[str, Any]
) -> None:
    recipe = tiny.read(GOLDEN / f"{name}.json")
    recipe["files"]["config.json"] |= change
    with pytest.raises(CheckpointError, match=next(iter(change))):
        theodolite.load(tiny.write(tmp_path, recipe))


def test_padding_within_a_text_takes_no_position(tmp_path: Path) -> None:
    """XLM-RoBERTa counts positions over tokens that are not padding, wherever they stand."""
    recipe = tiny.read(GOLDEN / "xlm_roberta.json")
    pad = recipe["files"]["config.json"]["pad_token_id"]
    model = theodolite.load(tiny.write(tmp_path, recipe)).model
    ids = mx.array([[5, pad, 6, pad, pad, 7]])
    batch = Batch(ids, mx.ones_like(ids))
    assert model.embeddings.positions(batch).tolist() == [[pad + 1, pad, pad + 2, pad, pad, pad + 3]]
