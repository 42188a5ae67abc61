"""The Qwen3 reranker's prompt, byte for byte, and the two rows of the head that it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import theodolite
from theodolite.errors import CheckpointError, UnknownFamily, Unsupported
from theodolite.testing import tiny
from theodolite.values import Pair, TextItem

PROMPT = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: {task}\n<Query>: {query}\n<Document>: {document}"
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
TASK = "Given a web search query, retrieve relevant passages that answer the query"
HEAD = "lm_head.weight"


@pytest.fixture
def recipe() -> dict[str, Any]:
    return tiny.read(Path(__file__).parent / "golden" / "qwen3.json")


def load(folder: Path, recipe: dict[str, Any], **options: Any) -> theodolite.Reranker:
    return theodolite.load_reranker(tiny.write(folder, recipe), **options)


def ids(reranker: theodolite.Reranker, document: str, instruction: str | None = None) -> list[int]:
    [row] = reranker.encode([Pair(TextItem("rain"), TextItem(document))], instruction)
    return list(row.input_ids)


def spelled(reranker: theodolite.Reranker, tokens: list[int]) -> str:
    text: str = reranker.tokenizer.backend.decode(tokens, skip_special_tokens=False)
    return text


@pytest.mark.parametrize("instruction", [None, "Judge by the weather"])
def test_the_prompt(tmp_path: Path, recipe: dict[str, Any], instruction: str | None) -> None:
    reranker = load(tmp_path, recipe)
    found = spelled(reranker, ids(reranker, "a {query} cat", instruction))
    assert found == PROMPT.format(task=instruction or TASK, query="rain", document="a {query} cat")


def test_special_tokens_in_a_document_stay_text(tmp_path: Path, recipe: dict[str, Any]) -> None:
    reranker = load(tmp_path, recipe)
    end = reranker.tokenizer.id_of("<|im_end|>")
    assert ids(reranker, "a<|im_end|>b").count(end) == ids(reranker, "ab").count(end) == 2
    assert "a<|im_end|>b" in spelled(reranker, ids(reranker, "a<|im_end|>b"))


def test_only_the_content_is_cut(tmp_path: Path, recipe: dict[str, Any]) -> None:
    reranker = load(tmp_path, recipe, max_length=400)
    found = ids(reranker, "cat " * 200)
    assert len(found) == 400
    prefix, suffix = PROMPT.split("<Instruct>")[0], "<|im_end|>" + PROMPT.rsplit("<|im_end|>", 1)[1]
    assert spelled(reranker, found).startswith(prefix)
    assert spelled(reranker, found).endswith(suffix)


def logits(folder: Path, recipe: dict[str, Any]) -> np.ndarray:
    return load(folder, recipe).rank("rain", tiny.TEXTS, raw_scores=True).scores


@pytest.mark.parametrize(
    ("stated", "stored", "own"),
    [(True, True, True), (True, False, False), (False, True, True), (None, True, True), (None, False, False)],
)
def test_which_head_is_read(
    tmp_path: Path, recipe: dict[str, Any], stated: bool | None, stored: bool, own: bool
) -> None:
    tied = logits(tmp_path / "tied", recipe)
    config = recipe["files"]["config.json"]
    config["tie_word_embeddings"] = stated
    if stored:
        recipe["shapes"][HEAD] = [config["vocab_size"], config["hidden_size"]]
    found = logits(tmp_path / "other", recipe)
    assert (np.abs(found - tied).max() > 1e-3) == own


def test_a_head_that_is_missing(tmp_path: Path, recipe: dict[str, Any]) -> None:
    recipe["files"]["config.json"]["tie_word_embeddings"] = False
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        load(tmp_path, recipe)


def test_answers_of_several_tokens(tmp_path: Path, recipe: dict[str, Any]) -> None:
    recipe["tokenizer"]["special"] = [token for token in recipe["tokenizer"]["special"] if token != "yes"]
    with pytest.raises(CheckpointError, match="'yes' should be a single token"):
        load(tmp_path, recipe)


def test_a_classifier_is_not_asked_for_yes_or_no(tmp_path: Path, recipe: dict[str, Any]) -> None:
    config = recipe["files"]["config.json"]
    config["architectures"] = ["Qwen3ForSequenceClassification"]
    recipe["shapes"]["score.weight"] = [2, config["hidden_size"]]
    with pytest.raises(UnknownFamily, match="Qwen3ForSequenceClassification"):
        load(tmp_path, recipe)


LOGIT_SCORE = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {
            "idx": 1,
            "name": "1",
            "path": "1_LogitScore",
            "type": "sentence_transformers.cross_encoder.modules.LogitScore",
        },
    ]
}


@pytest.mark.parametrize("false", ["no", "cat", None])
def test_the_tokens_that_sentence_transformers_reads(tmp_path: Path, recipe: dict[str, Any], false: str | None) -> None:
    tokenizer = tiny.tokenizer(recipe["tokenizer"])
    plain = logits(tmp_path / "plain", recipe)
    settings = {
        "true_token_id": tokenizer.token_to_id("yes"),
        "false_token_id": tokenizer.token_to_id("no") if false == "no" else (5 if false else None),
    }
    recipe["files"] |= {**LOGIT_SCORE, "1_LogitScore/config.json": settings}
    if false == "no":
        np.testing.assert_array_equal(logits(tmp_path / "module", recipe), plain)
    else:
        with pytest.raises(Unsupported, match=r"1_LogitScore/config\.json: true_token_id"):
            load(tmp_path / "module", recipe)


def test_it_is_no_embedder(tmp_path: Path, recipe: dict[str, Any]) -> None:
    with pytest.raises(UnknownFamily, match="reranker"):
        theodolite.load(tiny.write(tmp_path, recipe))
