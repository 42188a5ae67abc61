"""ModernBERT holds what every family has to, and gives transformers' vectors."""

from __future__ import annotations

from pathlib import Path

import theodolite_modernbert.plugin
from theodolite.testing import FamilyTests


class TestModernBert(FamilyTests):
    plugin = theodolite_modernbert.plugin
    name = "modernbert"
    golden = Path(__file__).parent / "golden" / "modernbert.json"
