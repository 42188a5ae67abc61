"""What every family has to hold, for SigLIP; its answers are compared in test_goldens.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from theodolite.testing import FamilyTests
from theodolite_siglip import plugin


class TestSiglip(FamilyTests):
    plugin = plugin
    name = "siglip"
    golden = Path(__file__).parent / "golden" / "siglip.json"
    texts = ("w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10 w11", "w12 w13")
    images = ((30, 30), (60, 41))

    @pytest.fixture(scope="class")
    @classmethod
    def recipe(cls, golden):
        return {**golden("siglip"), "answers": None}

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, recipe, checkpoint):
        return checkpoint(recipe)
