"""Scores: probabilities in float64, ties by index, and what a query or document may be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import theodolite
from theodolite.errors import RequestError, Unsupported
from theodolite.reranker import sigmoid
from theodolite.testing import tiny
from theodolite.values import Scores

GOLDENS = Path(__file__).parents[1] / "plugins/rerankers/golden"


@pytest.fixture(scope="module")
def cross(tmp_path_factory) -> theodolite.Reranker:
    folder = tiny.write(tmp_path_factory.mktemp("cross"), tiny.read(GOLDENS / "bert.json"))
    return theodolite.load_reranker(folder)


def test_sigmoid_keeps_large_logits_apart() -> None:
    x = np.array([-800.0, -30.0, 0.0, 20.0, 30.0, 800.0])
    found = sigmoid(x)
    assert found[0] == 0.0
    assert found[2] == 0.5
    assert found[3] < found[4] < 1.0
    assert found[5] == 1.0
    np.testing.assert_allclose(found[1], np.exp(-30.0), rtol=1e-10)


def test_raw_scores_are_the_logits(cross) -> None:
    documents = ["rain falls", "a mat", "the hills"]
    scores = cross.rank("the cat", documents)
    raw = cross.rank("the cat", documents, raw_scores=True)
    np.testing.assert_allclose(scores.scores, 1 / (1 + np.exp(-raw.scores)), rtol=1e-12)
    assert scores.kind == "sequence_classifier"
    assert scores.prompt_tokens == raw.prompt_tokens > 0


def test_ranking_breaks_ties_by_index() -> None:
    assert Scores(np.array([0.5, 0.9, 0.5, 0.9]), 0, "any").ranking() == [1, 3, 0, 2]


def test_any_batch_size_gives_the_same_scores(cross) -> None:
    documents = [("rain falls over the hills " * (i % 7))[: 5 + 17 * i] + "cat" for i in range(30)]
    alone = cross.rank("the cat", documents, batch_size=1).scores
    np.testing.assert_allclose(cross.rank("the cat", documents).scores, alone, atol=1e-5)


@pytest.mark.parametrize(
    ("query", "documents", "word"),
    [
        ("", ["a"], "query"),
        (" ", ["a"], "query"),
        ("q", [], "documents"),
        ("q", "a text", "documents"),
        ("q", ["a", "\t"], r"documents\[1\]"),
        ("q", ["a", 3], "not int"),
        ("q", [[1, 2]], r"documents\[0\]"),
        (None, ["a"], "not NoneType"),
    ],
)
def test_bad_inputs_name_their_place(cross, query, documents, word) -> None:
    with pytest.raises(RequestError, match=word):
        cross.rank(query, documents)


def test_images_and_instructions_are_refused_by_a_classifier(cross) -> None:
    from PIL import Image

    with pytest.raises(RequestError, match=r"documents\[0\] is an image"):
        cross.rank("q", [Image.new("RGB", (4, 4))])
    with pytest.raises(RequestError, match="instruction"):
        cross.rank("q", ["a"], instruction="judge")
    assert len(cross.rank("q", ["a"], instruction="  ").scores) == 1


@pytest.mark.parametrize("limit", [3, 60])
def test_a_limit_without_room_is_a_load_error(tmp_path, limit) -> None:
    name = "bert.json" if limit == 3 else "qwen3.json"
    folder = tiny.write(tmp_path, tiny.read(GOLDENS / name))
    with pytest.raises(Unsupported, match="max_length"):
        theodolite.load_reranker(folder, max_length=limit)


@pytest.mark.parametrize("batch_size", [0, -1, "4", 2.5])
def test_a_batch_is_a_whole_number(cross, batch_size) -> None:
    with pytest.raises(RequestError, match=r"batch_size must be (a whole number, )?1 or more, got "):
        cross.rank("rain", ["the cat"], batch_size=batch_size)


def test_documents_are_listed(cross) -> None:
    wanted = cross.rank("rain", ["the cat", "rain"]).scores
    np.testing.assert_array_equal(cross.rank("rain", np.array(["the cat", "rain"])).scores, wanted)
    for documents in (b"ab", {"a": 1}, 5, None, np.array([])):
        with pytest.raises(RequestError, match=r"documents (must|should) be a "):
            cross.rank("rain", documents)
