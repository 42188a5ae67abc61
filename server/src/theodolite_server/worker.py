"""The thread that owns one model: it loads it there, and runs rows of all waiting requests in shared micro-batches."""

from __future__ import annotations

import asyncio
import bisect
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from theodolite.errors import Busy, InvalidResult
from theodolite_server.errors import WorkerFailed

if TYPE_CHECKING:
    from theodolite.engine import Engine
    from theodolite.values import Row

BUSY = "All slots are busy. Please try again later."
SPREAD = 2.0
"""Rows of different requests share a batch only if the longer is at most this many times the shorter,"""
SLACK = 16
"""or longer by at most this many tokens: so much padding costs less than another pass."""
GATHER = 0.1
"""After a pass, the next one waits at most this share of its time for callers that were just answered to ask again;
otherwise callers that send one text after the other settle into two halves, each waiting for the other's pass."""
log = logging.getLogger("theodolite.server")


class Job:
    """One request: a place in the queue, then rows, then answers. Its fields are guarded by the worker's lock."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.answer: asyncio.Future[list[np.ndarray]] = loop.create_future()
        self.rows: Sequence[Row] = ()
        self.results: list[Any] = []
        self.pending: list[tuple[int, int]] = []
        """(length, index) of rows that have not run, ascending."""
        self.missing = 0
        self.started = False
        self.gone = False
        self.submitted = self.began = 0.0

    def near(self, length: int, count: int) -> list[tuple[int, int]]:
        """At most ``2 * count`` pending rows whose lengths are nearest to ``length``."""
        at = bisect.bisect_left(self.pending, (length, -1))
        return self.pending[max(0, at - count) : at + count]

    def take(self, i: int) -> None:
        """Row ``i`` runs now; found by its length, as a search through many thousands would hold the lock."""
        del self.pending[bisect.bisect_left(self.pending, (len(self.rows[i].input_ids), i))]

    def settle(self, set_result: Callable[[], None]) -> None:
        """Answer on the request's own loop, unless it has gone."""

        def act() -> None:
            if not self.answer.done():
                set_result()

        try:
            self.loop.call_soon_threadsafe(act)
        except RuntimeError:  # the loop has ended, and nobody is waiting any more
            log.debug("an answer came after the end of its loop")


@dataclass(frozen=True)
class Limits:
    """How much one forward pass may hold."""

    rows: int
    tokens: int


@dataclass(frozen=True)
class Forward:
    """What one forward pass was, for the metrics."""

    rows: int
    tokens: int
    padded: int
    seconds: float


class Worker:
    """One model, its thread and its queue."""

    def __init__(
        self,
        name: str,
        load: Callable[[], Engine],
        limits: Callable[[Engine], Limits],
        depth: int,
        observe: Callable[[Forward], None] = lambda _: None,
    ) -> None:
        self.name, self.depth = name, depth
        self._load, self._limits, self._observe = load, limits, observe
        self._condition = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._waiting = 0
        self._closing = False
        self._around = 0
        """Rows that the last pass answered, and those that were waiting then."""
        self._gather_until = 0.0
        self._thread = threading.Thread(target=self._main, name=f"model-{name}", daemon=True)
        self.engine: Engine

    async def start(self) -> None:
        """Load on the thread, and return when it is ready for requests.

        :raises Exception: whatever loading raised; the thread has then ended.
        """
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._thread.start()
        try:
            await self._ready
        except Exception:
            await self._join()
            raise

    async def stop(self) -> None:
        """End the thread after the batch it is running; requests that wait are answered with an error."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        await self._join()

    async def _join(self) -> None:
        # a thread that is still inside MLX when the interpreter ends would abort the process
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    @property
    def waiting(self) -> int:
        """Requests that have not begun to run."""
        return self._waiting

    @property
    def busy(self) -> bool:
        """Whether any request has a place, running ones included."""
        return self._waiting > 0 or bool(self._jobs)

    def reserve(self) -> Job | None:
        """A place in the queue, before the request is tokenized; None if the worker is ending. Give it back by `drop`.

        :raises Busy: if the queue is full.
        """
        with self._condition:
            if self._closing:
                return None
            if self._waiting >= self.depth:
                raise Busy(BUSY)
            self._waiting += 1
        return Job(asyncio.get_running_loop())

    async def run(self, job: Job, rows: Sequence[Row]) -> list[np.ndarray]:
        """Every row's pooled numbers, in order, once the thread has run them."""
        with self._condition:
            job.rows, job.missing, job.results = rows, len(rows), [None] * len(rows)
            job.pending = sorted((len(row.input_ids), i) for i, row in enumerate(rows))
            job.submitted = time.monotonic()
            self._jobs.append(job)
            self._condition.notify()
        return await job.answer

    def drop(self, job: Job) -> None:
        """The request has ended, in whatever way: rows that have not run never will."""
        with self._condition:
            if job.gone:
                return
            job.gone = True
            job.pending = []
            if not job.started:
                self._waiting -= 1
            if job in self._jobs:
                self._jobs.remove(job)
        if not job.answer.cancel() and not job.answer.cancelled():
            job.answer.exception()  # looked at, so that asyncio does not report it as lost

    # ------------------------------------------------------------ on the thread

    def _main(self) -> None:
        try:
            self.engine = self._load()
            limits = self._limits(self.engine)
        except BaseException as error:
            caught = error
            self._loop.call_soon_threadsafe(lambda: self._ready.set_exception(caught))
            _leave_mlx()
            return
        self._loop.call_soon_threadsafe(lambda: self._ready.set_result(None))
        while (batch := self._next(limits)) is not None:
            self._serve(batch, limits)
        del self.engine
        _leave_mlx()

    def _next(self, limits: Limits) -> list[tuple[Job, int]] | None:
        """Wait for rows and choose some; None at the end."""
        with self._condition:
            while not (self._closing or any(job.pending for job in self._jobs)):
                self._condition.wait()
            wanted = min(limits.rows, self._around)
            while not self._closing and 0 < self._pending() < wanted:
                if (left := self._gather_until - time.monotonic()) <= 0:
                    break
                self._condition.wait(left)
            if self._closing:
                for job in list(self._jobs):
                    self._fail(job, WorkerFailed("the model was unloaded before the request could run"))
                return None
            if not self._pending():  # their callers have gone meanwhile
                return []
            chosen = choose(self._jobs, limits, self.engine.profile.width)
            for job, i in chosen:
                job.take(i)
                if not job.started:
                    job.started, job.began = True, time.monotonic()
                    self._waiting -= 1
            self._jobs.rotate(-1)
            return chosen

    def _pending(self) -> int:
        return sum(len(job.pending) for job in self._jobs)

    def _serve(self, batch: list[tuple[Job, int]], limits: Limits) -> None:
        """Run a batch; where it fails, run each request's rows apart, so that one cannot fail another."""
        batch = [(job, i) for job, i in batch if not job.gone]
        if not batch:
            return
        try:
            answers = self._forward([job.rows[i] for job, i in batch], limits)
        except Exception as error:
            jobs = list(dict.fromkeys(job for job, _ in batch))
            if len(jobs) > 1:
                for one in jobs:
                    self._serve([(job, i) for job, i in batch if job is one], limits)
                return
            if not isinstance(error, InvalidResult):
                log.error("model %s: a forward pass failed", self.name, exc_info=error)
            self._fail(jobs[0], error if isinstance(error, InvalidResult) else _failed(error))
            return
        for (job, i), answer in zip(batch, answers, strict=True):
            job.results[i] = answer
            job.missing -= 1
            if job.missing == 0:
                self._finish(job)

    def _forward(self, rows: list[Row], limits: Limits) -> list[np.ndarray]:
        start = time.perf_counter()
        answers = self.engine.run(rows, len(rows), batch_tokens=limits.tokens)
        seconds = time.perf_counter() - start
        width = self.engine.profile.width or max(len(row.input_ids) for row in rows)
        with self._condition:
            self._around = len(rows) + self._pending()
            self._gather_until = time.monotonic() + GATHER * seconds
        self._observe(Forward(len(rows), sum(len(row.input_ids) for row in rows), width * len(rows), seconds))
        return answers

    def _finish(self, job: Job) -> None:
        self._remove(job)
        job.settle(lambda: job.answer.set_result(job.results))

    def _fail(self, job: Job, error: Exception) -> None:
        self._remove(job)
        job.settle(lambda: job.answer.set_exception(error))

    def _remove(self, job: Job) -> None:
        with self._condition:
            job.pending = []
            if job in self._jobs:
                self._jobs.remove(job)


def choose(jobs: Sequence[Job], limits: Limits, width: int | None) -> list[tuple[Job, int]]:
    """Rows for one forward pass: the longest row of the request whose turn it is, and the rows nearest to it in length.

    The turn goes round, so that a request with thousands of rows delays nobody by more than its share; rows of similar
    length keep padding low. A row with an image goes alone, as its positions are its own.
    """
    turn = next(job for job in jobs if job.pending)
    length, first = turn.pending[-1]
    chosen = [(turn, first)]
    if turn.rows[first].image is not None:
        return chosen
    candidates = [
        (abs(near - length), job is not turn, order, near, i, job)
        for order, job in enumerate(jobs)
        for near, i in job.near(length, limits.rows)
        if job.rows[i].image is None and (job, i) != (turn, first)
    ]
    candidates.sort(key=lambda candidate: candidate[:5])
    longest = length
    for _, foreign, _, near, i, job in candidates:
        grown = max(longest, near)
        if len(chosen) >= limits.rows or (width or grown) * (len(chosen) + 1) > limits.tokens:
            break
        if foreign and max(near, length) > max(SPREAD * min(near, length), min(near, length) + SLACK):
            continue
        longest = grown
        chosen.append((job, i))
    return chosen


def _failed(error: Exception) -> WorkerFailed:
    kind = type(error).__name__
    return WorkerFailed(f"the forward pass failed ({kind}); the worker has recovered and goes on serving")


def _leave_mlx() -> None:
    """End the thread's streams: one that still frees arrays when the interpreter ends would abort the process."""
    import mlx.core as mx

    mx.synchronize()
    mx.clear_cache()
    mx.clear_streams()
