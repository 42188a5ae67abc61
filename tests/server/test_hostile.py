"""Requests that nobody sends on purpose, many at once, and clients that vanish in the middle."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from theodolite.errors import RequestError
from theodolite_server import jsons
from theodolite_server.routes import TABLE
from theodolite_server.routes.common import CONTEXT
from theodolite_server.routes.embeddings import as_list, encoding

KEYS = sorted(
    {name for route in TABLE for name in getattr(route.body, "__struct_fields__", ())} | {"text", "url", "type"}
)
LEAVES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8)
VALUES = st.recursive(LEAVES, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.sampled_from(KEYS), v, max_size=4))
BODIES = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6)
POSTS = sorted({route.path for route in TABLE if route.method == "POST"})
QUICK = settings(max_examples=200, deadline=None)


@QUICK
@given(VALUES)
def test_inputs_are_a_list_or_a_request_error(value: Any) -> None:
    try:
        found = as_list(value)
    except RequestError:
        return
    assert isinstance(found, list)
    assert len({type(item) for item in found}) <= 1


@QUICK
@given(st.sampled_from([route.body for route in TABLE if route.body]), st.binary(max_size=64) | BODIES.map(repr))
def test_bodies_are_decoded_or_refused(kind: Any, body: bytes | str) -> None:
    raw = body if isinstance(body, bytes) else body.encode("utf-8", "replace")
    try:
        found = jsons.decode(raw, kind)
    except RequestError:
        return
    assert isinstance(found, kind)


@QUICK
@given(st.none() | st.text())
def test_encoding_formats(name: str | None) -> None:
    try:
        assert encoding(name) in ("float", "base64")
    except RequestError:
        assert name
        assert name.strip() not in ("float", "base64")


def finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(finite(v) for v in value.values())
    if isinstance(value, list):
        return all(finite(v) for v in value)
    return not isinstance(value, float) or math.isfinite(value)


async def test_no_body_makes_a_500(client: Any) -> None:
    loop = asyncio.get_running_loop()

    async def send(path: str, body: Any) -> None:
        data = json.dumps(body, allow_nan=False, default=str).encode()
        async with client.post(path, data=data, headers={"Content-Type": "application/json"}) as reply:
            assert reply.status in (200, 400, 413, 422, 424, 501), (path, body, await reply.text())
            assert finite(json.loads(await reply.read()))

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(POSTS), BODIES)
    def check(path: str, body: Any) -> None:
        try:
            json.dumps(body, allow_nan=False)
        except ValueError:
            return
        asyncio.run_coroutine_threadsafe(send(path, body), loop).result(30)

    await asyncio.to_thread(check)
    async with client.post("/v1/embeddings", json={"input": "rain"}) as reply:
        assert reply.status == 200


def worker(client: Any) -> Any:
    return client.app[CONTEXT].models.served[0].worker


async def test_two_hundred_at_once(start: Any) -> None:
    client = await start(embedding_queue_depth=256)

    async def one(i: int) -> tuple[int, list[float]]:
        async with client.post("/v1/embeddings", json={"input": f"the cat {i % 7}"}) as reply:
            return reply.status, (await reply.json())["data"][0]["embedding"]

    answers = await asyncio.gather(*(one(i) for i in range(200)))
    assert {status for status, _ in answers} == {200}
    for i in range(7):
        vectors = np.array([vector for _, vector in answers[i::7]])
        np.testing.assert_allclose(vectors, np.broadcast_to(vectors[0], vectors.shape), atol=1e-5)


async def test_clients_that_vanish_at_every_stage(client: Any) -> None:
    body = json.dumps({"input": ["the cat sat on a mat"] * 64}).encode()
    whole = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    for cut in (0, 10, 40, 70, len(whole) // 2, len(whole) - 1, len(whole)):
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", client.port)
            writer.write(whole[:cut])
            await writer.drain()
            await asyncio.sleep(0.01)
            writer.transport.abort()  # a reset, as from a process that was killed
    async with asyncio.timeout(10):
        while worker(client).busy:
            await asyncio.sleep(0.02)
    assert worker(client).waiting == 0
    async with client.post("/v1/embeddings", json={"input": "rain"}) as reply:
        assert reply.status == 200


@pytest.mark.slow
async def test_ten_thousand_mixed_requests_keep_memory_bounded(start: Any) -> None:
    client = await start(embedding_queue_depth=64)
    rng = np.random.default_rng(0)

    async def one(i: int) -> None:
        words = " ".join(["cat"] * int(rng.integers(1, 60)))
        kinds: list[tuple[str, Any, int]] = [
            ("/v1/embeddings", {"input": [words] * int(rng.integers(1, 4))}, 200),
            ("/v1/embeddings", {"input": words, "encoding_format": "base64", "dimensions": 4}, 200),
            ("/v1/rerank", {"query": "rain", "documents": [words, "mat"]}, 200),
            ("/embed", {"inputs": words, "truncate": True}, 200),
            ("/v1/embeddings", {"input": ["", words]}, 400),
        ]
        path, body, status = kinds[i % len(kinds)]
        async with client.post(path, json=body) as reply:
            assert reply.status == status
            await reply.read()

    peaks = []
    for start_at in range(0, 10_000, 1000):
        for i in range(start_at, start_at + 1000, 20):
            await asyncio.gather(*(one(j) for j in range(i, i + 20)))
        peaks.append(mx.get_active_memory())
        assert mx.get_cache_memory() <= 128 * 1024 * 1024
    assert max(peaks[1:]) - min(peaks[1:]) < 2_000_000
    assert len(asyncio.all_tasks()) < 80
