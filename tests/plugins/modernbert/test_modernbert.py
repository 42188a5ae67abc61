"""ModernBERT holds what every family has to, and gives transformers' vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import theodolite_modernbert.plugin
from theodolite.nn.keys import FULL, SLIDING
from theodolite.testing import FamilyTests, tiny
from theodolite_modernbert.model import Config

GOLDEN = Path(__file__).parent / "golden" / "modernbert.json"


class TestModernBert(FamilyTests):
    plugin = theodolite_modernbert.plugin
    name = "modernbert"
    golden = GOLDEN


def bases(**change: Any) -> tuple[float, float]:
    config = {**tiny.read(GOLDEN)["files"]["config.json"], **change}
    ropes = Config.of({key: value for key, value in config.items() if value is not None}).ropes
    return ropes[FULL].base, ropes[SLIDING].base


def test_rotary_bases_are_the_references() -> None:
    both = {"global_rope_theta": 300.0, "local_rope_theta": 20.0}
    assert bases(**both, rope_theta=500.0) == (300.0, 20.0)
    none = {"global_rope_theta": None, "local_rope_theta": None}
    assert bases(**none, rope_parameters={FULL: {"rope_type": "default", "rope_theta": 300.0}}) == (300.0, 10_000.0)


def test_no_local_attention_is_a_window_of_one() -> None:
    assert Config.of({**tiny.read(GOLDEN)["files"]["config.json"], "local_attention": 0}).window == 1
