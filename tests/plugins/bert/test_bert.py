"""The BERT family holds what every family has to, and gives transformers' vectors."""

from __future__ import annotations

from pathlib import Path

import theodolite_bert.plugin
from theodolite.testing import FamilyTests

GOLDEN = Path(__file__).parent / "golden"


class TestBert(FamilyTests):
    plugin = theodolite_bert.plugin
    name = "bert"
    golden = GOLDEN / "bert.json"


class TestXlmRoberta(FamilyTests):
    plugin = theodolite_bert.plugin
    name = "bert"
    golden = GOLDEN / "xlm_roberta.json"
