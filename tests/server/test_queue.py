"""One queue per model: rows of several requests share passes, and no request can harm another (D05, D11, D13)."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import theodolite
from theodolite.values import Row
from theodolite_server.routes.common import CONTEXT
from theodolite_server.worker import Job, Limits, choose

WAIT = 5.0


class Slow:
    """Makes every forward pass wait, and notes its rows."""

    def __init__(self, engine: Any, seconds: float) -> None:
        self.rows: list[int] = []
        self.seconds = seconds
        self.hold = threading.Event()
        self._forward = engine.forward
        engine.forward = self

    def __call__(self, rows: Any) -> Any:
        self.rows.append(len(rows))
        self.hold.wait(self.seconds)
        return self._forward(rows)


def worker(client: Any, i: int = 0) -> Any:
    return client.app[CONTEXT].models.served[i].worker


async def embed(client: Any, given: Any, **extra: Any) -> tuple[int, Any]:
    async with client.post("/v1/embeddings", json={"input": given, **extra}) as reply:
        return reply.status, await reply.json()


async def until(condition: Any) -> None:
    async with asyncio.timeout(WAIT):
        while not condition():
            await asyncio.sleep(0.005)


async def test_concurrent_requests_share_forward_passes(start: Any, folders: Path) -> None:
    client = await start(embedding_queue_depth=64)
    texts = [f"{'the cat ' * (1 + i % 3)}{i}" for i in range(24)]
    alone = np.asarray(theodolite.load(folders / "bert").embed(texts))
    slow = Slow(worker(client).engine, 0.1)
    answers = await asyncio.gather(*(embed(client, text) for text in texts))
    for (status, answer), vector in zip(answers, alone, strict=True):
        assert status == 200
        np.testing.assert_allclose(answer["data"][0]["embedding"], vector, atol=1e-5)
    assert sum(slow.rows) == 24
    assert len(slow.rows) <= 8
    assert max(slow.rows) <= 16


@pytest.mark.parametrize(("tokens", "passes"), [(1024, [16] * 32), (16_384, [256, 256]), (65_536, [512])])
async def test_a_pass_holds_as_many_tokens_as_the_flag_says(start: Any, tokens: int, passes: list[int]) -> None:
    client = await start(embedding_batch_size=1000, max_batch_tokens=tokens)
    slow = Slow(worker(client).engine, 0)
    status, _ = await embed(client, ["cat " * 100] * 512)  # each is cut to 64 tokens
    assert (status, slow.rows) == (200, passes)


async def test_one_bad_row_fails_its_own_request_only(start: Any, folders: Path) -> None:
    client = await start(embedding_model=str(folders / "bert-nan"), embedding_queue_depth=64)
    slow = Slow(worker(client).engine, 0.1)
    texts = ["rain", "hills", "cat", "mat", "the hills", "sat"]
    answers = await asyncio.gather(*(embed(client, text) for text in texts))
    assert [status for status, _ in answers] == [200, 500, 200, 200, 500, 200]
    assert max(slow.rows) > 1


async def test_a_failing_pass_is_a_500_and_the_worker_lives_on(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    engine = worker(client).engine
    forward = engine.forward

    def broken(rows: Any) -> Any:
        raise RuntimeError("/secret/path is not there")

    engine.forward = broken
    status, answer = await embed(client, "rain")
    assert status == 500
    assert answer["error"]["type"] == "server_error"
    assert "recovered" in answer["error"]["message"]
    assert "secret" not in answer["error"]["message"]
    engine.forward = forward
    assert (await embed(client, "rain"))[0] == 200


async def test_a_full_queue_is_a_503_that_says_when_to_come_back(start: Any) -> None:
    client = await start(embedding_queue_depth=2)
    slow = Slow(worker(client).engine, 1.0)
    running = asyncio.create_task(embed(client, "rain"))
    await until(lambda: slow.rows)
    waiting = [asyncio.create_task(embed(client, ["cat", "mat"])) for _ in range(2)]
    await until(lambda: worker(client).waiting == 2)
    reply = await client.post("/v1/embeddings", json={"input": "sat"})
    error = (await reply.json())["error"]
    assert reply.status == 503
    assert error == {"message": "All slots are busy. Please try again later.", "type": "server_busy", "code": 503}
    assert int(reply.headers["Retry-After"]) >= 1
    slow.hold.set()
    assert [status for status, _ in await asyncio.gather(running, *waiting)] == [200, 200, 200]
    assert (await embed(client, "sat"))[0] == 200


async def test_a_late_answer_is_a_504_and_its_rows_never_run(start: Any) -> None:
    client = await start(embedding_request_timeout_secs=0.2)
    slow = Slow(worker(client).engine, 0.5)
    first, second = await asyncio.gather(embed(client, "rain"), embed(client, ["cat", "the mat sat on the cat"]))
    for status, answer in (first, second):
        assert status == 504
        assert answer["error"]["type"] == "server_timeout"
        assert answer["error"]["message"] == "Embedding request timed out. Please try again later."
    await until(lambda: not worker(client).busy)
    assert worker(client).waiting == 0
    slow.hold.set()
    assert (await embed(client, "rain"))[0] == 200


async def test_callers_that_have_gone_are_dropped_and_harm_nobody(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    client = await start(embedding_queue_depth=8)
    slow = Slow(worker(client).engine, 0.3)
    big = asyncio.create_task(embed(client, ["the cat sat on a mat"] * 40))
    await until(lambda: slow.rows)
    gone = [asyncio.create_task(embed(client, ["what is it", "rain"])) for _ in range(6)]
    await until(lambda: worker(client).waiting == 6)
    before = sum(slow.rows)
    for task in gone:
        task.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    await until(lambda: worker(client).waiting == 0)
    late = asyncio.create_task(embed(client, "mat"))
    await asyncio.sleep(0.05)
    slow.seconds = 0.01
    status, answer = await big
    assert (status, len(answer["data"])) == (200, 40)
    assert (await late)[0] == 200
    assert sum(slow.rows) <= 41
    assert before >= 1
    with caplog.at_level(logging.ERROR):
        import gc

        gc.collect()
        await asyncio.sleep(0)
    assert "never retrieved" not in caplog.text
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_worker_that_ends_answers_those_that_wait(client: Any) -> None:
    one = worker(client)
    slow = Slow(one.engine, 0.3)
    running = [asyncio.create_task(embed(client, "rain"))]
    await until(lambda: slow.rows)
    running += [asyncio.create_task(embed(client, text)) for text in ("cat", "the cat sat on a mat")]
    await until(lambda: one.waiting == 2)
    await one.stop()
    assert [status for status, _ in await asyncio.gather(*running)] == [200, 500, 500]
    assert not one.busy
    assert "unloaded" in running[1].result()[1]["error"]["message"]


async def test_first_requests_of_two_models_without_warm_up(start: Any, folders: Path) -> None:
    client = await start()
    status, answer = await embed(client, "the cat sat")
    assert status == 200
    alone = np.asarray(theodolite.load(folders / "bert").embed(["the cat sat"]))[0]
    np.testing.assert_allclose(answer["data"][0]["embedding"], alone, atol=1e-6)
    reply = await client.post("/v1/rerank", json={"query": "cat", "documents": ["the cat", "rain"]})
    assert reply.status == 200
    assert threading.current_thread().name not in {f"model-{name}" for name in ("bert", "cross")}


async def test_memory_stays_bounded_over_ever_new_lengths(client: Any) -> None:
    await embed(client, "rain")
    rng = np.random.default_rng(0)
    active = mx.get_active_memory()
    for _ in range(60):
        texts = [" ".join(["cat"] * int(rng.integers(1, 60))) for _ in range(int(rng.integers(1, 17)))]
        assert (await embed(client, texts))[0] == 200
        assert mx.get_cache_memory() <= 128 * 1024 * 1024
    assert mx.get_active_memory() - active < 1_000_000


# ------------------------------------------------------------ the choice of rows


def job(lengths: list[int], loop: asyncio.AbstractEventLoop, image: bool = False) -> Job:
    made = Job(loop)
    made.rows = [Row((1,) * n, None, object() if image else None, n, 0) for n in lengths]
    made.pending = sorted((n, i) for i, n in enumerate(lengths))
    return made


async def test_rows_of_similar_length_go_together() -> None:
    loop = asyncio.get_running_loop()
    first, second = job([10, 300, 12], loop), job([290, 11], loop)
    chosen = choose([first, second], Limits(2, 10_000), None)
    assert chosen == [(first, 1), (second, 0)]


async def test_a_batch_keeps_to_its_tokens_and_rows() -> None:
    loop = asyncio.get_running_loop()
    long = job([100] * 50, loop)
    assert len(choose([long], Limits(16, 450), None)) == 4
    assert len(choose([long], Limits(16, 50), None)) == 1
    assert len(choose([long], Limits(16, 10_000), 200)) == 16
    assert len(choose([long], Limits(16, 1_000), 200)) == 5


async def test_a_row_with_an_image_goes_alone() -> None:
    loop = asyncio.get_running_loop()
    assert len(choose([job([10, 10], loop, image=True), job([10], loop)], Limits(16, 10_000), None)) == 1
    assert len(choose([job([10], loop), job([10, 10], loop, image=True)], Limits(16, 10_000), None)) == 1


async def test_padding_of_a_request_is_bounded() -> None:
    lengths = np.random.default_rng(1).integers(5, 301, 64).tolist()
    one, real, padded = job(lengths, asyncio.get_running_loop()), 0, 0
    while one.pending:
        chosen = choose([one], Limits(8, 16_384), None)
        sizes = [lengths[i] for _, i in chosen]
        real, padded = real + sum(sizes), padded + max(sizes) * len(sizes)
        for _, i in chosen:
            one.pending.remove((lengths[i], i))
    assert real / padded >= 0.85


async def test_callers_that_were_just_answered_meet_in_one_pass(start: Any) -> None:
    client = await start(embedding_queue_depth=64)
    slow = Slow(worker(client).engine, 0.2)

    async def caller() -> None:
        for _ in range(4):
            assert (await embed(client, "the cat"))[0] == 200

    await asyncio.gather(*(caller() for _ in range(6)))
    assert max(slow.rows) == 6
    assert len(slow.rows) <= 9
