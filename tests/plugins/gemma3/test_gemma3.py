"""EmbeddingGemma holds what every family has to, and gives transformers' vectors."""

from __future__ import annotations

from pathlib import Path

import theodolite_gemma3.plugin
from theodolite.testing import FamilyTests


class TestGemma3(FamilyTests):
    plugin = theodolite_gemma3.plugin
    name = "gemma3"
    golden = Path(__file__).parent / "golden" / "gemma3.json"
