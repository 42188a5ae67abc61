"""From items to vectors or scores: the way that the routes of every dialect share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from theodolite.errors import InvalidResult, RequestError, TimedOut
from theodolite.values import Embeddings, Item, Pair, Row, Scores, TextItem, TokenItem

if TYPE_CHECKING:
    from theodolite_server.models import Models, Served

log = logging.getLogger("theodolite.server")
T = TypeVar("T")
Cut = Literal["right", "left", "refuse"]
TIMED_OUT = "{} request timed out. Please try again later."
THREADS = 2
INVALID = "{} inference returned an invalid numeric result"


@dataclass(frozen=True)
class Result:
    """Rows as they ran, and the model's numbers for each."""

    engine: Any
    """Held here, as an extra model may be unloaded as soon as its rows have run."""
    rows: list[Row]
    numbers: list[np.ndarray]


class Service:
    """Tokenizes on a small pool, runs on the model's thread, finishes on the pool; the event loop only waits."""

    def __init__(self, models: Models) -> None:
        self.models = models
        self.pool = ThreadPoolExecutor(THREADS, thread_name_prefix="encode")

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)

    async def off(self, function: Callable[..., T], *args: Any) -> T:
        """Call on the pool."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, function, *args)

    async def embed(
        self,
        served: Served,
        items: Callable[[], Awaitable[list[Item]]],
        *,
        instruction: str | None = None,
        dimensions: int | None = None,
        embd_normalize: int | None = None,
        cut: Cut = "right",
    ) -> Embeddings:
        """Vectors for items; ``items`` is called once the request has its place in the queue, as images take long."""
        if instruction and not served.engine.profile.instruction and not served.told:
            served.told = True
            log.info("%s has no place for an instruction: the one in requests is ignored", served.id)
        result = await self._run(served, items, instruction, cut, "Embedding")
        norm = self.models.config.embd_normalize if embd_normalize is None else embd_normalize
        return await self.off(self._vectors, served, result, dimensions, norm)

    async def rank(
        self,
        served: Served,
        pairs: Callable[[], Awaitable[list[Item]]],
        *,
        instruction: str | None = None,
        raw_scores: bool = False,
        cut: Cut = "right",
    ) -> Scores:
        """Scores of pairs, in their order."""
        result = await self._run(served, pairs, instruction, cut, "Rerank")
        scores: Scores = result.engine.finish(result.rows, result.numbers, raw_scores=raw_scores)
        low, high = (-np.inf, np.inf) if raw_scores else (0.0, 1.0)
        if not (np.isfinite(scores.scores).all() and ((scores.scores >= low) & (scores.scores <= high)).all()):
            raise InvalidResult(INVALID.format("rerank"))
        return scores

    async def _run(
        self,
        served: Served,
        items: Callable[[], Awaitable[list[Item]]],
        instruction: str | None,
        cut: Cut,
        what: str,
    ) -> Result:
        worker, job = await self.models.reserve(served)
        engine = worker.engine
        stage = self.models.metrics.stage
        try:
            async with asyncio.timeout(self.models.config.timeout):
                made = await items()
                start = time.monotonic()
                rows = await self.off(encode, engine, made, instruction, cut)
                self._count(served, rows)
                stage.labels(served.id, "encode").observe(time.monotonic() - start)
                numbers = await worker.run(job, rows)
                stage.labels(served.id, "queue").observe(job.began - job.submitted)
                stage.labels(served.id, "inference").observe(time.monotonic() - job.began)
        except TimeoutError:
            raise TimedOut(TIMED_OUT.format(what)) from None
        finally:
            worker.drop(job)
        return Result(engine, rows, numbers)

    def _count(self, served: Served, rows: Sequence[Row]) -> None:
        metrics = self.models.metrics
        if tokens := sum(row.truncated for row in rows):
            metrics.cut.labels(served.id).inc(tokens)
            metrics.cut_inputs.labels(served.id).inc(sum(1 for row in rows if row.truncated))

    def _vectors(self, served: Served, result: Result, dimensions: int | None, norm: int | None) -> Embeddings:
        start = time.monotonic()
        made: Embeddings = result.engine.finish(result.rows, result.numbers, dimensions=dimensions, embd_normalize=norm)
        if not all(np.isfinite(vector).all() for vector in made.vectors):
            raise InvalidResult(INVALID.format("embedding"))
        self.models.metrics.stage.labels(served.id, "finish").observe(time.monotonic() - start)
        return made


def encode(engine: Any, items: Sequence[Item], instruction: str | None, cut: Cut) -> list[Row]:
    """Rows of the items, cut as the caller chose.

    :raises RequestError: for an item that cannot be served; with "refuse", also for one that is too long.
    """
    rows: list[Row] = engine.encode(items, instruction)
    if cut == "right" or not any(row.truncated for row in rows):
        return rows
    if cut == "refuse":
        i, row = next((i, row) for i, row in enumerate(rows) if row.truncated)
        name = "the pair of the query and documents" if isinstance(items[i], Pair) else "input"
        raise RequestError(
            f"{name}[{i}] has {row.prompt_tokens + row.truncated} tokens, more than max_length "
            f"{engine.max_length}, and truncation was refused"
        )
    for i, row in enumerate(rows):
        if row.truncated:
            rows[i] = _cut_left(engine, items[i], row, i)
    return rows


def _cut_left(engine: Any, item: Item, row: Row, i: int) -> Row:
    """Keep the end of an input instead of its beginning, its special tokens aside."""
    tokenizer = engine.tokenizer
    match item:
        case TextItem(text):
            ids = tokenizer.encode(text)
            over = row.truncated
            lead = len(tokenizer.leading)
            kept = (*ids[:lead], *ids[lead + over :])
            plain = tuple(ids[: len(row.input_ids) - len(tokenizer.trailing)])
            if len(kept) == len(row.input_ids) and row.input_ids[: len(plain)] == plain:
                return Row(kept, None, None, len(kept), over)
        case TokenItem(ids):
            kept = ids[-len(row.input_ids) :]
            return Row(kept, None, None, len(kept), row.truncated)
        case Pair():
            raise RequestError("truncation_direction left is not served for pairs: the longer side is cut at its end")
    raise RequestError(f"input[{i}]: truncation_direction left is not served by family {engine.profile.family!r}")
