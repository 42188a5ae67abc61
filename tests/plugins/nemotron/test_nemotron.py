"""The bidirectional Llama and Ministral 3 hold what every family has to, and give transformers' vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import theodolite
import theodolite_nemotron.llama_bidirec
import theodolite_nemotron.ministral3
from theodolite.errors import Unsupported
from theodolite.testing import FamilyTests, tiny

GOLDEN = Path(__file__).parent / "golden"


class TestLlamaBidirec(FamilyTests):
    plugin = theodolite_nemotron.llama_bidirec
    name = "llama-bidirec"
    golden = GOLDEN / "llama_bidirec.json"


class TestMinistral3(FamilyTests):
    plugin = theodolite_nemotron.ministral3
    name = "ministral3"
    golden = GOLDEN / "ministral3.json"


class TestMinistral3Window(FamilyTests):
    """A window without layer_types narrows every layer."""

    plugin = theodolite_nemotron.ministral3
    name = "ministral3"
    golden = GOLDEN / "ministral3_window.json"


class TestMinistral3Bare(FamilyTests):
    """Without rope_parameters the reference's own hold."""

    plugin = theodolite_nemotron.ministral3
    name = "ministral3"
    golden = GOLDEN / "ministral3_bare.json"


@pytest.mark.parametrize(
    ("golden", "config", "served"),
    [
        ("llama_bidirec", {"model_type": "llama"}, True),
        ("llama_bidirec", {"architectures": None}, True),
        ("llama_bidirec", {"model_type": "llama", "architectures": ["LlamaModel"]}, False),
        (
            "llama_bidirec",
            {"model_type": "llama", "architectures": ["LlamaModel"], "use_bidirectional_attention": True},
            True,
        ),
        ("ministral3", {"is_causal": True}, False),
        ("ministral3", {"is_causal": None}, False),
    ],
)
def test_only_bidirectional_copies_are_claimed(
    tmp_path: Path, golden: str, config: dict[str, Any], served: bool
) -> None:
    recipe = tiny.read(GOLDEN / f"{golden}.json")
    recipe["files"]["config.json"] |= config
    folder = tiny.write(tmp_path, recipe)
    if served:
        assert theodolite.load(folder).profile.family == golden.replace("_", "-")
    else:
        with pytest.raises(Unsupported, match=r"embedders need (use_bidirectional_attention: true|is_causal: false)"):
            theodolite.load(folder)
