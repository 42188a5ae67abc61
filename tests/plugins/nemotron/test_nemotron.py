"""The bidirectional Llama and Ministral 3 hold what every family has to, and give transformers' vectors."""

from __future__ import annotations

from pathlib import Path

import theodolite_nemotron.llama_bidirec
import theodolite_nemotron.ministral3
from theodolite.testing import FamilyTests

GOLDEN = Path(__file__).parent / "golden"


class TestLlamaBidirec(FamilyTests):
    plugin = theodolite_nemotron.llama_bidirec
    name = "llama-bidirec"
    golden = GOLDEN / "llama_bidirec.json"


class TestMinistral3(FamilyTests):
    plugin = theodolite_nemotron.ministral3
    name = "ministral3"
    golden = GOLDEN / "ministral3.json"
