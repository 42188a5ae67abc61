"""Each vision-language family holds what every family has to."""

from __future__ import annotations

from pathlib import Path

import theodolite_col.colidefics3
import theodolite_col.colqwen2_5
import theodolite_nemotron.vl
import theodolite_qwen3_vl.plugin
import theodolite_rerankers.qwen3_vl
from theodolite.testing import FamilyTests

GOLDEN = Path(__file__).parent / "golden"


class TestQwen3VL(FamilyTests):
    plugin = theodolite_qwen3_vl.plugin
    name = "qwen3-vl"
    golden = GOLDEN / "qwen3_vl.json"
    images = ((96, 64), (64, 128))


class TestQwen3VLReranker(FamilyTests):
    plugin = theodolite_rerankers.qwen3_vl
    name = "qwen3-vl-reranker"
    golden = GOLDEN / "qwen3_vl_reranker.json"
    images = ((96, 64), (64, 128))


class TestNemotronVL(FamilyTests):
    plugin = theodolite_nemotron.vl
    name = "nemotron-vl"
    golden = GOLDEN / "nemotron_vl.json"
    images = ((64, 32), (50, 90))


class TestColIdefics3(FamilyTests):
    plugin = theodolite_col.colidefics3
    name = "colidefics3"
    golden = GOLDEN / "colidefics3.json"
    images = ((64, 32), (50, 90))


class TestColQwen25(FamilyTests):
    plugin = theodolite_col.colqwen2_5
    name = "colqwen2_5"
    golden = GOLDEN / "colqwen2_5.json"
    images = ((140, 84), (56, 90))
