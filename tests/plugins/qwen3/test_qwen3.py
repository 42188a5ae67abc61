"""Qwen3-Embedding holds what every family has to, and gives transformers' vectors."""

from __future__ import annotations

from pathlib import Path

import theodolite_qwen3.plugin
from theodolite.testing import FamilyTests


class TestQwen3(FamilyTests):
    plugin = theodolite_qwen3.plugin
    name = "qwen3"
    golden = Path(__file__).parent / "golden" / "qwen3.json"
