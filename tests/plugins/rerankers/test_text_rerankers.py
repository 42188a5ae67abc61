"""Cross-encoders and the Qwen3 reranker hold what every family has to, and give transformers' logits."""

from __future__ import annotations

from pathlib import Path

import theodolite_rerankers.cross_encoder
import theodolite_rerankers.qwen3
from theodolite.testing import FamilyTests

GOLDEN = Path(__file__).parent / "golden"


class TestBertCrossEncoder(FamilyTests):
    plugin = theodolite_rerankers.cross_encoder
    name = "cross-encoder"
    golden = GOLDEN / "bert.json"


class TestBertCrossEncoderWithoutSegments(FamilyTests):
    """``model_input_names`` leave out token_type_ids, so that both texts are segment 0."""

    plugin = theodolite_rerankers.cross_encoder
    name = "cross-encoder"
    golden = GOLDEN / "bert_without_segments.json"


class TestXlmRobertaCrossEncoder(FamilyTests):
    plugin = theodolite_rerankers.cross_encoder
    name = "cross-encoder"
    golden = GOLDEN / "xlm_roberta.json"


class TestModernBertCrossEncoder(FamilyTests):
    plugin = theodolite_rerankers.cross_encoder
    name = "cross-encoder"
    golden = GOLDEN / "modernbert.json"


class TestQwen3Reranker(FamilyTests):
    plugin = theodolite_rerankers.qwen3
    name = "qwen3-reranker"
    golden = GOLDEN / "qwen3.json"


class TestQwen3RerankerWithItsOwnHead(FamilyTests):
    """``tie_word_embeddings: true``, and all the same a head in the file."""

    plugin = theodolite_rerankers.qwen3
    name = "qwen3-reranker"
    golden = GOLDEN / "qwen3_own_head.json"
