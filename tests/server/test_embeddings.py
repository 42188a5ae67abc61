"""/v1/embeddings: answers equal the library's, errors come in order and name what is wrong."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import theodolite

TEXTS = ["the cat sat on a mat", "rain", "what falls over the roof is rain"]


async def post(client: Any, body: Any, status: int = 200, path: str = "/v1/embeddings") -> Any:
    reply = await client.post(path, json=body)
    answer = await reply.json()
    assert reply.status == status, answer
    return answer


@pytest.fixture(scope="session")
def wanted(folders: Path) -> np.ndarray:
    return np.asarray(theodolite.load(folders / "bert").embed(TEXTS))


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
async def test_answers_are_the_librarys(client: Any, wanted: np.ndarray, path: str) -> None:
    answer = await post(client, {"input": TEXTS, "model": "bert"}, path=path)
    assert set(answer) == {"object", "data", "model", "usage"}
    assert answer["object"] == "list"
    assert answer["model"] == "bert"
    assert [set(row) for row in answer["data"]] == [{"object", "index", "embedding"}] * 3
    assert [row["index"] for row in answer["data"]] == [0, 1, 2]
    np.testing.assert_allclose([row["embedding"] for row in answer["data"]], wanted, atol=1e-6)
    usage = answer["usage"]
    assert usage["prompt_tokens"] == usage["total_tokens"] > 12


async def test_base64_is_little_endian_float32(client: Any, wanted: np.ndarray) -> None:
    answer = await post(client, {"input": TEXTS, "encoding_format": "base64"})
    found = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in answer["data"]]
    np.testing.assert_allclose(found, wanted, atol=1e-6)


async def test_token_ids_are_verbatim(client: Any, folders: Path) -> None:
    ids = [[2, 40, 3], [50]]
    rows = (await post(client, {"input": ids}))["data"]
    wanted = theodolite.load(folders / "bert").embed(ids)
    np.testing.assert_allclose([row["embedding"] for row in rows], np.asarray(wanted), atol=1e-6)
    alone = (await post(client, {"input": ids[0]}))["data"]
    np.testing.assert_allclose(alone[0]["embedding"], rows[0]["embedding"], atol=1e-6)
    answer = await post(client, {"input": [[7] * 100]})
    assert answer["usage"]["prompt_tokens"] == 64


async def test_typed_text_parts(client: Any, wanted: np.ndarray) -> None:
    parts = [{"type": "text", "text": text} for text in TEXTS]
    rows = (await post(client, {"input": parts}))["data"]
    np.testing.assert_allclose([row["embedding"] for row in rows], wanted, atol=1e-6)


async def test_dimensions_and_norms(client: Any, wanted: np.ndarray) -> None:
    cut = np.array((await post(client, {"input": TEXTS[0], "dimensions": 4}))["data"][0]["embedding"])
    np.testing.assert_allclose(cut, wanted[0, :4] / np.linalg.norm(wanted[0, :4]), atol=1e-6)
    for norm, size in ((1, lambda v: np.abs(v).sum()), (2, np.linalg.norm)):
        vector = np.array((await post(client, {"input": "rain", "embd_normalize": norm}))["data"][0]["embedding"])
        assert size(vector) == pytest.approx(1, abs=1e-5)


ERRORS: list[tuple[Any, str]] = [
    ({}, '"input" must be provided'),
    ({"input": None}, '"input" must be provided'),
    ({"input": {"a": 1}}, '"input" must be'),
    ({"input": 5}, '"input" must be'),
    ({"input": ["a", 5]}, '"input" must be'),
    ({"input": [True, False]}, '"input" must be'),
    ({"input": [5.0, 6.5]}, '"input" must be'),
    ({"input": [[5], [6.5]]}, "input[1] must be a list of token ids"),
    ({"input": []}, "input is an empty token list"),
    ({"input": ""}, "input[0] is an empty string"),
    ({"input": ["a", ""]}, "input[1] is an empty string"),
    ({"input": [[5], []]}, "input[1] is an empty token list"),
    ({"input": [[5], [-1, 5]]}, "input[1] contains the negative token id -1"),
    ({"input": [[5, 2**63], [5]]}, f"input[0] contains token id {2**63}, which is >= vocab_size"),
    ({"input": [{"type": "video"}]}, "input[0] has type 'video'"),
    ({"input": [{"type": "text", "text": None}]}, 'input[0] is a text part, so its "text" must be a string'),
    ({"input": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
     "input[0] is an image, but the loaded embedding model does not accept images"),
    ({"input": "a", "dimensions": 0}, "dimensions must be between 1 and 16 for this model, got 0"),
    ({"input": "a", "dimensions": 17}, "dimensions must be between 1 and 16 for this model, got 17"),
    ({"input": "a", "dimensions": "4"}, '"dimensions": expected int, got str'),
    ({"input": "a", "dimensions": True}, '"dimensions": expected int, got bool'),
    ({"input": "a", "embd_normalize": -2}, "embd_normalize must be between -1 and 2147483647, got -2"),
    ({"input": "a", "embd_normalize": 10**400}, "embd_normalize must be between"),
    ({"input": "a", "encoding_format": "hex"}, "encoding_format 'hex' is not supported"),
    ({"input": "a", "model": 5}, '"model": expected str, got int'),
    ({"input": "\ud800"}, "JSON"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "message"), ERRORS)
async def test_what_cannot_be_right_is_a_400_and_the_next_is_served(client: Any, body: Any, message: str) -> None:
    error = (await post(client, body, 400))["error"]
    assert message in error["message"]
    assert (error["type"], error["code"]) == ("invalid_request_error", 400)
    await post(client, {"input": "rain"})


ORDER: list[tuple[dict[str, Any], str]] = [
    ({"model": "x", "encoding_format": "x", "dimensions": 0, "input": 5}, '"input" must be'),
    ({"model": "x", "encoding_format": "x", "dimensions": 0, "input": [""]}, "model 'x' does not match"),
    ({"encoding_format": "x", "dimensions": 0, "input": [""]}, "encoding_format"),
    ({"dimensions": 0, "input": []}, "dimensions"),
    ({"input": ["", [5]]}, '"input" must be'),
]


@pytest.mark.parametrize(("body", "message"), ORDER)
async def test_the_first_thing_wrong_is_told(client: Any, body: dict[str, Any], message: str) -> None:
    assert message in (await post(client, body, 400))["error"]["message"]


async def test_another_model_is_refused_by_both_names(client: Any, folders: Path) -> None:
    message = (await post(client, {"input": "a", "model": "gpt"}, 400))["error"]["message"]
    assert "'gpt'" in message
    assert "'bert'" in message
    for name in ("bert", str(folders / "bert"), "", None):
        await post(client, {"input": "a", "model": name})


async def test_aliases(start: Any) -> None:
    client = await start(alias=("text-embedding-3-small",))
    answer = await post(client, {"input": "a", "model": "text-embedding-3-small"})
    assert answer["model"] == "bert"
    listed = await (await client.get("/v1/models")).json()
    assert listed["data"][0]["aliases"] == ["text-embedding-3-small"]


async def test_null_is_absent_and_unknown_fields_are_ignored(client: Any, wanted: np.ndarray) -> None:
    nulls = dict.fromkeys(("model", "encoding_format", "dimensions", "user", "instruction", "embd_normalize"))
    for extra in (nulls, {"truncate": True, "extra_body": {"x": 1}, "service_tier": "auto", "user": {"id": 1}}):
        answer = await post(client, {"input": TEXTS, **extra})
        np.testing.assert_allclose([row["embedding"] for row in answer["data"]], wanted, atol=1e-6)
        assert b"null" not in await (await client.post("/v1/embeddings", json={"input": "a", **extra})).read()


async def test_truncation_is_told_and_can_be_refused(client: Any) -> None:
    long = "rain " * 100
    reply = await client.post("/v1/embeddings", json={"input": ["rain", long]})
    assert reply.headers["X-Truncated-Tokens"] == "38"
    message = (await post(client, {"input": ["rain", long], "truncate": False}, 400))["error"]["message"]
    assert "input[1] has 102 tokens, more than max_length 64" in message
    reply = await client.post("/v1/embeddings", json={"input": "rain"})
    assert "X-Truncated-Tokens" not in reply.headers


async def test_no_embedding_model(start: Any, folders: Path) -> None:
    client = await start(reranker_model=str(folders / "cross"))
    error = (await post(client, {"input": "a", "model": "x", "encoding_format": "x"}, 501))["error"]
    assert error["message"].startswith("No embedding model loaded; start with -m <embedding checkpoint>")
    assert error["type"] == "not_implemented"


@pytest.mark.parametrize(
    "options", [{}, {"encoding_format": "base64"}, *({"embd_normalize": n} for n in (-1, 0, 1, 7))]
)
async def test_numbers_that_are_none_are_a_500(start: Any, folders: Path, options: dict[str, Any]) -> None:
    client = await start(embedding_model=str(folders / "bert-nan"))
    for bad in ("hills", ["rain", "hills"]):
        error = (await post(client, {"input": bad, **options}, 500))["error"]
        assert error["message"] == "embedding inference returned an invalid numeric result"
        assert error["type"] == "server_error"
    await post(client, {"input": ["rain", "cat"], **options})


async def test_many_vectors_per_input_have_a_shape_in_base64() -> None:
    from theodolite.values import Embeddings
    from theodolite_server import jsons
    from theodolite_server.routes.embeddings import response

    vectors = [np.arange(6, dtype=np.float32).reshape(3, 2), np.ones((1, 2), np.float32)]
    made, served = Embeddings(vectors, 4), type("Served", (), {"id": "col"})()
    rows = json.loads(jsons.response(response(served, made, True)).body)["data"]
    assert [row["shape"] for row in rows] == [[3, 2], [1, 2]]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(rows[0]["embedding"]), "<f4"), np.arange(6))
    rows = json.loads(jsons.response(response(served, made, False)).body)["data"]
    assert rows[0]["embedding"] == [[0, 1], [2, 3], [4, 5]]
    assert "shape" not in rows[0]


async def test_an_instruction_without_a_place_is_ignored_and_logged_once(
    client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "theodolite.server"):
        first = await post(client, {"input": "rain", "instruction": "search"})
        await post(client, {"input": "rain", "instruction": "search"})
    assert first["data"] == (await post(client, {"input": "rain"}))["data"]
    assert caplog.text.count("no place for an instruction") == 1


async def test_prompts_by_name_and_by_what_an_input_is(start: Any, folders: Path, tmp_path: Path) -> None:
    side = {"prompts": {"query": "rain ", "document": "cat "}}
    folder = Path(shutil.copytree(folders / "bert", tmp_path / "prompted"))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(side))
    client = await start(embedding_model=str(folder))

    async def vector(text: str, **fields: Any) -> Any:
        reply = await client.post("/v1/embeddings", json={"input": text, **fields})
        assert reply.status == 200, await reply.text()
        return (await reply.json())["data"][0]["embedding"]

    plain, spelled = await vector("falls"), await vector("rain falls")
    assert plain != spelled
    for fields in ({"prompt_name": "query"}, {"input_type": "query"}, {"input_type": "search_query"}):
        assert await vector("falls", **fields) == spelled
    assert await vector("falls", input_type="passage") == await vector("cat falls")
    assert await vector("falls", input_type="clustering") == plain
    asked = {"texts": ["falls"], "input_type": "search_query", "embedding_types": ["float"]}
    reply = await (await client.post("/v2/embed", json=asked)).json()
    assert reply["embeddings"]["float"][0] == spelled
    reply = await client.post("/v1/embeddings", json={"input": "falls", "prompt_name": "nonsense"})
    assert reply.status == 400
    assert "document, query" in (await reply.json())["error"]["message"]
