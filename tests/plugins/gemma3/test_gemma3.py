"""EmbeddingGemma holds what every family has to, and gives transformers' vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import theodolite
import theodolite_gemma3.plugin
from theodolite.errors import CheckpointError, Unsupported
from theodolite.testing import FamilyTests, tiny

GOLDEN = Path(__file__).parent / "golden" / "gemma3.json"


class TestGemma3(FamilyTests):
    plugin = theodolite_gemma3.plugin
    name = "gemma3"
    golden = GOLDEN


@pytest.fixture
def recipe() -> dict[str, Any]:
    return tiny.read(GOLDEN)


def vectors(folder: Path, recipe: dict[str, Any]) -> np.ndarray:
    folder.mkdir()
    return theodolite.load(tiny.write(folder, recipe)).embed(tiny.TEXTS).vectors


def test_projections_in_module_folders(tmp_path: Path, recipe: dict[str, Any]) -> None:
    """The sentence-transformers layout, by the numbers of the folders, whatever they are."""
    from safetensors.numpy import save_file

    wanted = vectors(tmp_path / "folded", recipe)
    stems = {"dense.0.weight": "2_Dense", "dense.1.weight": "10_Dense"}
    for stem, folder in stems.items():
        shape = recipe["shapes"].pop(stem)
        (tmp_path / "apart" / folder).mkdir(parents=True)
        save_file({"linear.weight": tiny.draw(stem, shape)}, tmp_path / "apart" / folder / "model.safetensors")
    found = theodolite.load(tiny.write(tmp_path / "apart", recipe)).embed(tiny.TEXTS).vectors
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_projections_that_do_not_chain(tmp_path: Path, recipe: dict[str, Any]) -> None:
    shapes = recipe["shapes"]
    shapes["dense.0.weight"], shapes["dense.1.weight"] = shapes["dense.1.weight"], shapes["dense.0.weight"]
    with pytest.raises(CheckpointError, match=r"dense\.0\.weight"):
        vectors(tmp_path / "swapped", recipe)


@pytest.mark.parametrize("value", [None, False])
def test_a_causal_copy_is_refused(tmp_path: Path, recipe: dict[str, Any], value: bool | None) -> None:
    recipe["files"]["config.json"]["use_bidirectional_attention"] = value
    with pytest.raises(Unsupported, match="use_bidirectional_attention"):
        vectors(tmp_path / "causal", recipe)
