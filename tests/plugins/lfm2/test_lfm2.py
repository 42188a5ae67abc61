"""LFM2.5-Embedding holds what every family has to, and gives transformers' vectors."""

from __future__ import annotations

from pathlib import Path

import pytest

import theodolite
import theodolite_lfm2.plugin
from theodolite.errors import Unsupported
from theodolite.testing import FamilyTests, tiny

GOLDEN = Path(__file__).parent / "golden" / "lfm2.json"


class TestLfm2(FamilyTests):
    plugin = theodolite_lfm2.plugin
    name = "lfm2"
    golden = GOLDEN


def test_the_colbert_siblings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "1_Dense").mkdir()
    with pytest.raises(Unsupported, match="late-interaction"):
        theodolite.load(tiny.write(tmp_path, tiny.read(GOLDEN)))


@pytest.mark.parametrize(
    ("model_type", "architecture", "served"),
    [("lfm2_bidirectional", "Lfm2Model", True), ("lfm2", "Lfm2Model", False), ("lfm2", "Lfm2ForCausalLM", False)],
)
def test_what_names_the_family(tmp_path: Path, model_type: str, architecture: str, served: bool) -> None:
    recipe = tiny.read(GOLDEN)
    recipe["files"]["config.json"] |= {"model_type": model_type, "architectures": [architecture]}
    folder = tiny.write(tmp_path, recipe)
    if served:
        assert theodolite.load(folder).profile.family == "lfm2"
    else:
        with pytest.raises(Unsupported, match="embedders need the architecture Lfm2BidirectionalModel"):
            theodolite.load(folder)
