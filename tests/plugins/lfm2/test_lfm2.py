"""LFM2.5-Embedding holds what every family has to, and gives transformers' vectors."""

from __future__ import annotations

from pathlib import Path

import theodolite_lfm2.plugin
from theodolite.testing import FamilyTests


class TestLfm2(FamilyTests):
    plugin = theodolite_lfm2.plugin
    name = "lfm2"
    golden = Path(__file__).parent / "golden" / "lfm2.json"
