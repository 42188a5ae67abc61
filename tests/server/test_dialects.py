"""The dialects beside OpenAI's and Jina's: shapes, options and error bodies, each against /v1's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import theodolite

TEXTS = ["the cat sat on a mat", "rain", "what falls over the roof is rain"]
LONG = "cat " * 100


async def post(client: Any, path: str, body: Any, status: int = 200) -> Any:
    reply = await client.post(path, json=body)
    answer = await reply.json()
    assert reply.status == status, answer
    return answer


@pytest.fixture(scope="session")
def vectors(folders: Path) -> np.ndarray:
    return np.asarray(theodolite.load(folders / "bert").embed(TEXTS))


@pytest.fixture(scope="session")
def scores(folders: Path) -> np.ndarray:
    return theodolite.load_reranker(folders / "cross").rank("rain", TEXTS).scores


def same(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, atol=1e-6)


# ------------------------------------------------------------ text-embeddings-inference


@pytest.mark.parametrize("path", ["/embed", "/"])
async def test_tei_embed(client: Any, vectors: np.ndarray, path: str) -> None:
    same(await post(client, path, {"inputs": TEXTS, "truncate": True}), vectors)
    same(await post(client, path, {"inputs": TEXTS[0]}), vectors[:1])
    assert len(await post(client, path, {"inputs": [[5, 6], [7]]})) == 2
    raw = np.array((await post(client, path, {"inputs": TEXTS[0], "normalize": False}))[0])
    same(raw / np.linalg.norm(raw), vectors[0])
    assert abs(np.linalg.norm(raw) - 1) > 1e-3
    assert len((await post(client, path, {"inputs": "rain", "dimensions": 5}))[0]) == 5


async def test_tei_prompts(client: Any) -> None:
    named = await post(client, "/embed", {"inputs": "rain", "prompt_name": "query"})
    same(named, await post(client, "/embed", {"inputs": "query: rain"}))
    error = await post(client, "/embed", {"inputs": "rain", "prompt_name": "x"}, 422)
    assert "no prompt named 'x'" in error["error"]


async def test_tei_truncation(client: Any) -> None:
    refused = await post(client, "/embed", {"inputs": LONG, "truncate": False}, 422)
    assert "102 tokens, more than max_length 64" in refused["error"]
    mixed = "rain " * 50 + "cat " * 62
    left = await post(client, "/embed", {"inputs": mixed, "truncation_direction": "Left"})
    same(left, await post(client, "/embed", {"inputs": "cat " * 62}))
    right = await post(client, "/embed", {"inputs": mixed, "truncation_direction": "Right"})
    same(right, await post(client, "/embed", {"inputs": "rain " * 50 + "cat " * 12}))
    await post(client, "/embed", {"inputs": "rain", "truncation_direction": "up"}, 422)


@pytest.mark.parametrize("path", ["/rerank", "/"])
async def test_tei_rerank(client: Any, scores: np.ndarray, path: str) -> None:
    rows = await post(client, path, {"query": "rain", "texts": TEXTS, "return_text": True})
    assert [row["text"] for row in rows] == [TEXTS[row["index"]] for row in rows]
    assert [row["index"] for row in rows] == sorted(range(3), key=lambda i: -scores[i])
    same([row["score"] for row in rows], sorted(scores, reverse=True))
    short = await post(client, path, {"query": "rain", "texts": TEXTS, "top_n": 1, "raw_scores": True})
    assert [set(row) for row in short] == [{"index", "score"}]


async def test_tei_similarity(client: Any, vectors: np.ndarray) -> None:
    body = {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS}, "parameters": {"truncate": True}}
    for path in ("/similarity", "/"):
        same(await post(client, path, body), vectors @ vectors[0])


async def test_tei_tokens(client: Any) -> None:
    [tokens] = await post(client, "/tokenize", {"inputs": "The cat"})
    assert [token["special"] for token in tokens] == [True, False, False, True]
    assert tokens[1] | {"id": 0} == {"id": 0, "text": "The", "special": False, "start": 0, "stop": 3}
    ids = [token["id"] for token in tokens]
    assert await post(client, "/decode", {"ids": ids}) == ["the cat"]
    [bare] = await post(client, "/tokenize", {"inputs": ["The cat"], "add_special_tokens": False})
    assert [token["id"] for token in bare] == ids[1:-1]
    assert "vocabulary" in (await post(client, "/decode", {"ids": [10**9]}, 422))["error"]
    assert "vocabulary" in (await post(client, "/decode", {"ids": [[1], [-1]]}, 422))["error"]


async def test_tei_info(client: Any) -> None:
    info = await (await client.get("/info")).json()
    assert info["model_id"] == "bert"
    assert info["max_input_length"] == 64
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}


TEI_ERRORS: list[tuple[str, Any, int, str]] = [
    ("/embed", {"inputs": []}, 400, "Empty"),
    ("/embed", {"inputs": ""}, 400, "Empty"),
    ("/embed", {"inputs": ["a", ""]}, 400, "Empty"),
    ("/embed", {}, 422, "Validation"),
    ("/embed", {"inputs": 5}, 422, "Validation"),
    ("/embed", {"inputs": [10**9]}, 422, "Validation"),
    ("/rerank", {"query": "a", "texts": []}, 400, "Empty"),
    ("/rerank", {"query": "a", "texts": [5]}, 422, "Validation"),
    ("/rerank", {"query": "a", "texts": [" "]}, 422, "Validation"),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, 400, "Empty"),
    ("/similarity", {"inputs": {"source_sentence": "a"}}, 422, "Validation"),
    ("/decode", {"ids": []}, 400, "Empty"),
    ("/tokenize", {"inputs": [5]}, 422, "Validation"),
]


@pytest.mark.parametrize(("path", "body", "status", "kind"), TEI_ERRORS)
async def test_tei_errors(client: Any, path: str, body: Any, status: int, kind: str) -> None:
    answer = await post(client, path, body, status)
    assert set(answer) == {"error", "error_type"}
    assert answer["error_type"] == kind


async def test_tei_without_a_model(start: Any, folders: Path) -> None:
    client = await start(reranker_model=str(folders / "cross"))
    assert (await post(client, "/embed", {"inputs": "a"}, 424))["error_type"] == "Backend"


# ------------------------------------------------------------ cohere


async def test_cohere_rerank(client: Any, scores: np.ndarray) -> None:
    body = {"model": "cross", "query": "rain", "documents": TEXTS, "top_n": 2, "max_tokens_per_doc": None}
    answer = await post(client, "/v2/rerank", body)
    assert set(answer) == {"id", "results", "meta"}
    assert answer["meta"]["api_version"]["version"] == "2"
    same([row["relevance_score"] for row in answer["results"]], sorted(scores, reverse=True)[:2])
    answer = await post(client, "/v2/rerank", {**body, "return_documents": True})
    assert all(row["document"] == {"text": TEXTS[row["index"]]} for row in answer["results"])


async def test_cohere_embed(client: Any, vectors: np.ndarray) -> None:
    body = {"model": "bert", "texts": TEXTS, "input_type": "clustering", "embedding_types": ["float", "base64"]}
    answer = await post(client, "/v2/embed", body)
    same(answer["embeddings"]["float"], vectors)
    assert len(answer["embeddings"]["base64"]) == 3
    assert answer["texts"] == TEXTS
    same((await post(client, "/v1/embed", {"texts": TEXTS}))["embeddings"], vectors)
    parts = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
    same((await post(client, "/v2/embed", {"inputs": parts}))["embeddings"]["float"], vectors)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v2/embed", {}, "exactly one of texts, images and inputs"),
        ("/v2/embed", {"texts": ["a"], "images": ["b"]}, "exactly one of"),
        ("/v2/embed", {"texts": ["a"], "embedding_types": ["int8"]}, "'int8' is not supported"),
        ("/v2/embed", {"texts": [LONG], "truncate": "NONE"}, "102 tokens"),
        ("/v2/embed", {"texts": ["a"], "truncate": "x"}, "NONE, START or END"),
        ("/v2/embed", {"texts": ["a", ""]}, "input[1] is an empty string"),
        ("/v2/embed", {"images": ["data:,"]}, "does not accept images"),
        ("/v2/embed", {"inputs": [{"content": []}]}, "inputs[0].content"),
        ("/v2/rerank", {"query": "a"}, '"documents" must be'),
    ],
)
async def test_cohere_errors(client: Any, path: str, body: Any, message: str) -> None:
    answer = await post(client, path, body, 400)
    assert set(answer) == {"message"}
    assert message in answer["message"]


# ------------------------------------------------------------ llama-server


async def test_llama_embedding(client: Any, vectors: np.ndarray) -> None:
    for name in ("content", "input"):
        rows = await post(client, "/embedding", {name: TEXTS})
        assert [row["index"] for row in rows] == [0, 1, 2]
        same([row["embedding"][0] for row in rows], vectors)
    [row] = await post(client, "/embedding", {"content": "rain", "embd_normalize": -1})
    assert np.linalg.norm(row["embedding"]) != pytest.approx(1, abs=1e-3)
    assert (await post(client, "/embedding", {}, 400))["error"]["type"] == "invalid_request_error"


async def test_llama_tokens(client: Any) -> None:
    tokens = (await post(client, "/tokenize", {"content": "the cat"}))["tokens"]
    assert (await post(client, "/detokenize", {"tokens": tokens}))["content"] == "the cat"
    special = (await post(client, "/tokenize", {"content": "the cat", "add_special": True}))["tokens"]
    assert special[1:-1] == tokens
    assert len(special) == len(tokens) + 2
    mixed = await post(client, "/tokenize", {"content": ["the cat", tokens[0]], "with_pieces": True})
    assert mixed["tokens"][-1] == {"id": tokens[0], "piece": "the"}
    parsed, literal = [
        (await post(client, "/tokenize", {"content": "[SEP]", "parse_special": flag}))["tokens"]
        for flag in (True, False)
    ]
    assert len(parsed) == 1 < len(literal)
    assert await post(client, "/tokenize", {"content": ""}) == {"tokens": []}
    assert await post(client, "/detokenize", {"tokens": []}) == {"content": ""}
    for path, body in (("/tokenize", {"content": [10**9]}), ("/detokenize", {"tokens": [-1]})):
        assert "vocabulary" in (await post(client, path, body, 400))["error"]["message"]
    await post(client, "/tokenize", {"content": [True]}, 400)


# ------------------------------------------------------------ Ollama


async def test_ollama_embed(client: Any, vectors: np.ndarray) -> None:
    answer = await post(client, "/api/embed", {"model": "bert:latest", "input": TEXTS, "keep_alive": "5m"})
    same(answer["embeddings"], vectors)
    assert answer["model"] == "bert:latest"
    assert answer["prompt_eval_count"] > 10
    same((await post(client, "/api/embed", {"model": "bert", "input": TEXTS[0]}))["embeddings"], vectors[:1])
    assert set(await post(client, "/api/embed", {"model": "x", "input": "a"}, 400)) == {"error"}
    await post(client, "/api/embed", {"input": LONG, "truncate": False}, 400)
    listed = await (await client.get("/api/tags")).json()
    assert [model["name"] for model in listed["models"]] == ["bert:latest", "cross:latest"]
