"""EmbeddingGemma holds what every family has to, and gives transformers' vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import theodolite
import theodolite_gemma3.plugin
from theodolite.errors import CheckpointError, Unsupported
from theodolite.nn.keys import FULL, SLIDING
from theodolite.testing import FamilyTests, tiny
from theodolite_gemma3.model import Config

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


def test_settings_that_stand_in_two_places(recipe: dict[str, Any]) -> None:
    config = recipe["files"]["config.json"]
    blocks = {FULL: {"rope_type": "default"}, SLIDING: {"rope_type": "default"}}
    config |= {"rope_parameters": blocks, "rope_theta": 300.0, "rope_local_base_freq": 20.0}
    ropes = Config.of(config).ropes
    assert (ropes[FULL].base, ropes[SLIDING].base) == (300.0, 20.0)
    del config["layer_types"]
    kinds = Config.of(config | {"num_hidden_layers": 12}).layer_types
    assert [i for i, kind in enumerate(kinds) if kind == FULL] == [5, 11]


def test_a_projection_without_a_stated_activation_is_not_the_identity(tmp_path: Path, recipe: dict[str, Any]) -> None:
    recipe["files"] |= {
        "modules.json": [{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}],
        "2_Dense/config.json": {"in_features": 64, "out_features": 96},
    }
    with pytest.raises(Unsupported, match="activation Tanh"):
        vectors(tmp_path / "silent", recipe)


DENSE = {"activation_function": "torch.nn.modules.linear.Identity"}


def test_projections_run_in_the_order_of_modules_json(tmp_path: Path, recipe: dict[str, Any]) -> None:
    from safetensors.numpy import save_file

    wanted = vectors(tmp_path / "folded", recipe)
    stems = {"dense.0.weight": "12_Dense", "dense.1.weight": "2_Dense"}
    modules = [{"type": "sentence_transformers.models.Dense", "path": path} for path in stems.values()]
    recipe["files"] |= {"modules.json": modules, **{f"{path}/config.json": DENSE for path in stems.values()}}
    for stem, folder in stems.items():
        shape = recipe["shapes"].pop(stem)
        (tmp_path / "apart" / folder).mkdir(parents=True)
        save_file({"linear.weight": tiny.draw(stem, shape)}, tmp_path / "apart" / folder / "model.safetensors")
    found = theodolite.load(tiny.write(tmp_path / "apart", recipe)).embed(tiny.TEXTS).vectors
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("setting", [{"use_residual": True}, {"module_output_name": "other"}])
def test_a_projection_that_is_more_than_a_product(tmp_path: Path, recipe: dict[str, Any], setting: dict) -> None:
    recipe["files"] |= {
        "modules.json": [{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}],
        "2_Dense/config.json": DENSE | setting,
    }
    with pytest.raises(Unsupported, match=next(iter(setting))):
        vectors(tmp_path / "more", recipe)
