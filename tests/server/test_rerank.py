"""/v1/rerank and its aliases: scores equal the library's; order, echo, and the table of errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import theodolite

QUERY, DOCUMENTS = "what is rain", ["the cat sat", "rain falls over the roof", "rain", "rain"]


async def post(client: Any, body: Any, status: int = 200, path: str = "/v1/rerank") -> Any:
    reply = await client.post(path, json=body)
    answer = await reply.json()
    assert reply.status == status, answer
    return answer


@pytest.fixture(scope="session")
def wanted(folders: Path) -> np.ndarray:
    return theodolite.load_reranker(folders / "cross").rank(QUERY, DOCUMENTS).scores


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"])
async def test_scores_are_the_librarys_best_first(client: Any, wanted: np.ndarray, path: str) -> None:
    answer = await post(client, {"query": QUERY, "documents": DOCUMENTS}, path=path)
    assert answer["model"] == "cross"
    indices = [row["index"] for row in answer["results"]]
    assert indices == sorted(range(4), key=lambda i: (-wanted[i], i))
    assert indices.index(2) < indices.index(3)
    np.testing.assert_allclose([row["relevance_score"] for row in answer["results"]], wanted[indices], atol=1e-6)
    assert all(set(row) == {"index", "relevance_score"} for row in answer["results"])
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 0


async def test_top_n_documents_and_raw_scores(client: Any, folders: Path) -> None:
    answer = await post(client, {"query": QUERY, "documents": DOCUMENTS, "top_n": 2, "return_documents": True})
    assert [row["document"] for row in answer["results"]] == [DOCUMENTS[row["index"]] for row in answer["results"]]
    assert len(answer["results"]) == 2
    assert len((await post(client, {"query": QUERY, "documents": DOCUMENTS, "top_n": 9}))["results"]) == 4
    raw = await post(client, {"query": QUERY, "documents": DOCUMENTS, "raw_scores": True})
    logits = theodolite.load_reranker(folders / "cross").rank(QUERY, DOCUMENTS, raw_scores=True).scores
    for row in raw["results"]:
        assert row["relevance_score"] == pytest.approx(logits[row["index"]], abs=1e-5)


async def test_an_object_is_echoed_as_it_was_sent(client: Any) -> None:
    documents = [{"text": "rain", "id": 7}, "cat"]
    answer = await post(client, {"query": {"text": QUERY}, "documents": documents, "return_documents": True})
    assert {row["index"]: row["document"] for row in answer["results"]} == dict(enumerate(documents))


async def test_documents_as_objects_on_request(start: Any) -> None:
    client = await start(rerank_documents="object")
    answer = await post(client, {"query": "cat", "documents": ["rain"], "return_documents": True})
    assert answer["results"][0]["document"] == {"text": "rain"}


ERRORS: list[tuple[Any, str]] = [
    ({"documents": ["a"]}, '"query" must be provided'),
    ({"query": 5, "documents": ["a"]}, '"query" must be a string'),
    ({"query": "a"}, '"documents" must be a non-empty string array'),
    ({"query": "a", "documents": []}, '"documents" must be a non-empty string array'),
    ({"query": "a", "documents": "b"}, '"documents" must be a non-empty string array'),
    ({"query": "a", "documents": ["b", 5]}, '"documents" must be a non-empty string array'),
    ({"query": "a", "documents": ["b"], "top_n": 0}, "top_n must be at least 1"),
    ({"query": "a", "documents": ["b"], "top_n": "1"}, '"top_n": expected int, got str'),
    ({"query": "a", "documents": ["b"], "return_documents": 1}, '"return_documents": expected bool, got int'),
    ({"query": " ", "documents": ["b"]}, "query is empty"),
    ({"query": "a", "documents": ["b", " \n"]}, "documents[1] is empty"),
    ({"query": "a", "documents": ["b", {}]}, "documents[1] is empty"),
    ({"query": "a", "documents": [{"image": "data:,"}]}, "documents[0] is an image"),
    ({"query": {"image_url": {"url": "data:,"}}, "documents": ["a"]}, "query is an image"),
    ({"query": "a", "documents": ["b"], "instruction": "judge"}, "instruction is not supported"),
    ({"query": "a", "documents": ["b"], "model": "bert"}, "model 'bert' does not match the loaded reranker: 'cross'"),
]


@pytest.mark.parametrize(("body", "message"), ERRORS)
async def test_what_cannot_be_right_is_a_400(client: Any, body: Any, message: str) -> None:
    error = (await post(client, body, 400))["error"]
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"
    await post(client, {"query": "a", "documents": ["b"]})


async def test_null_is_absent(client: Any) -> None:
    nulls = dict.fromkeys(("model", "top_n", "return_documents", "instruction", "raw_scores", "user"))
    answer = await post(client, {"query": "cat", "documents": ["a cat", "rain"], **nulls, "max_chunks_per_doc": 3})
    assert all(set(row) == {"index", "relevance_score"} for row in answer["results"])
    await post(client, {"query": "cat", "documents": ["a"], "instruction": "  "})


async def test_no_reranker(start: Any, folders: Path) -> None:
    client = await start(embedding_model=str(folders / "bert"))
    error = (await post(client, {"query": "a", "documents": ["b"], "model": "x", "top_n": 0}, 501))["error"]
    wanted = "No reranker loaded; start with -m <sequence-classifier checkpoint> or --reranker-model <path>."
    assert error == {"message": wanted, "type": "not_implemented", "code": 501}


async def test_a_score_that_is_none_is_a_500(start: Any, folders: Path) -> None:
    client = await start(reranker_model=str(folders / "cross-nan"))
    for raw in (False, True):
        body = {"query": "cat", "documents": ["rain", "hills"], "raw_scores": raw}
        assert (await post(client, body, 500))["error"]["type"] == "server_error"
    await post(client, {"query": "cat", "documents": ["rain"]})
