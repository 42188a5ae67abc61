"""Which checkpoints are served: what the flags ask for, resolved at start, loaded at start or on first use."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from theodolite import locate, registry
from theodolite.checkpoint import Checkpoint
from theodolite.errors import (
    BrokenPlugin,
    Busy,
    CheckpointError,
    MissingPlugin,
    NotLoaded,
    RequestError,
    UnknownFamily,
    Unsupported,
)
from theodolite.limits import EMBED_BATCH, RERANK_BATCH
from theodolite.values import Task
from theodolite_server.config import MIB, Config
from theodolite_server.errors import Loading
from theodolite_server.worker import Job, Limits, Worker

if TYPE_CHECKING:
    from theodolite.engine import Engine
    from theodolite_server.metrics import Metrics

log = logging.getLogger("theodolite.server")
WHAT = {Task.EMBED: "embedding model", Task.RERANK: "reranker"}
MISSING = {
    Task.EMBED: "No embedding model loaded; start with -m <embedding checkpoint> or --embedding-model <path>.",
    Task.RERANK: ("No reranker loaded; start with -m <sequence-classifier checkpoint> or --reranker-model <path>."),
}


@dataclass(eq=False)
class Served:
    """One checkpoint that requests may ask for."""

    asked: str
    """The name as it was given."""
    checkpoint: Checkpoint
    task: Task
    extra: bool = False
    aliases: tuple[str, ...] = ()
    worker: Worker | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    used: float = 0.0
    facts: dict[str, int] = field(default_factory=dict)
    """Parameters and bytes, known once it was loaded."""
    loading: asyncio.Task[Worker] | None = None
    """While an extra model is being loaded; it goes on even if every request for it has gone."""
    told: bool = False
    """Whether the log has been told that requests send an instruction which this model has no place for."""

    @property
    def id(self) -> str:
        return self.checkpoint.label

    @property
    def names(self) -> tuple[str, ...]:
        """Every name under which a request may ask for it."""
        repository = next((p for p in self.checkpoint.path.absolute().parts if p.startswith("models--")), "")
        full = repository.removeprefix("models--").replace("--", "/")
        found = (self.id, self.asked, self.checkpoint.name or "", full, *self.aliases)
        return tuple(dict.fromkeys(name for name in found if name))

    @property
    def engine(self) -> Any:
        """The loaded `Embedder` or `Reranker`; only its thread-safe parts may be used here."""
        if self.worker is None:
            raise Loading("Loading model")
        return self.worker.engine

    @property
    def disk(self) -> int:
        """Bytes of the weight files, which is about what the model takes."""
        files = (file for file in self.checkpoint.path.iterdir() if file.suffix in (".safetensors", ".bin"))
        return sum(file.stat().st_size for file in files)


def plan(config: Config) -> list[Served]:
    """Find the checkpoints that the flags name, and what each is for. Loads nothing.

    :raises RequestError: for flags that contradict each other.
    :raises CheckpointError: for a checkpoint that cannot be found, or that nobody serves.
    """
    found: list[Served] = []
    alone = not (config.embedding_model or config.reranker_model)
    main = config.model or (locate.DEFAULT if alone else None)
    if config.embedding_model:
        found.append(_served(config, config.embedding_model, Task.EMBED))
    if config.reranker_model:
        found.append(_served(config, config.reranker_model, Task.RERANK))
    if main is not None and (served := _main(config, main, found)) is not None:
        found.insert(0, served)
    _check_modes(config, found)
    for name in config.extra_model:
        task = _task(config, _checkpoint(config, name))
        if task is None:
            raise UnknownFamily(f"--extra-model {name} is neither an embedding checkpoint nor a cross-encoder")
        served = _served(config, name, task)
        served.extra = True
        found.append(served)
    _check_names(found)
    _check_memory(config, found)
    return found


def _checkpoint(config: Config, name: str) -> Checkpoint:
    # a revision belongs to Hub names; a folder beside one would otherwise be an error
    revision = None if Path(name).expanduser().is_dir() else config.revision
    return locate.checkpoint(name, revision, config.models_dir)


def _served(config: Config, name: str, task: Task) -> Served:
    checkpoint = _checkpoint(config, name)
    registry.installed().elect(checkpoint, task, config.family)
    return Served(name, checkpoint, task, aliases=config.alias)


def _task(config: Config, checkpoint: Checkpoint) -> Task | None:
    """What the checkpoint itself says it is for; None for one that nobody claims without being told."""
    try:
        return registry.installed().elect(checkpoint, None, config.family).profile.task
    except (MissingPlugin, BrokenPlugin, Unsupported):
        raise
    except UnknownFamily:
        return None


def _main(config: Config, name: str, others: list[Served]) -> Served | None:
    checkpoint = _checkpoint(config, name)
    same = [served for served in others if served.checkpoint.path.samefile(checkpoint.path)]
    if any(served.task is Task.RERANK for served in same):
        return None  # the rerank-only shape: one checkpoint, named twice
    task = _task(config, checkpoint)
    if task is None:
        _check_generator(config, name, checkpoint, others)
        return None
    if clash := next((served for served in others if served.task is task), None):
        flag = "--embedding-model" if task is Task.EMBED else "--reranker-model"
        what = "two embedding models" if task is Task.EMBED else "two rerankers"
        raise RequestError(f"{what}: -m {name} and {flag} {clash.asked}; give one of them")
    return Served(name, checkpoint, task, aliases=config.alias)


def _check_generator(config: Config, name: str, checkpoint: Checkpoint, others: list[Served]) -> None:
    what = f"-m {name} ({checkpoint.architecture or checkpoint.model_type})"
    if not checkpoint.architecture.endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")):
        registry.installed().elect(checkpoint, None, config.family)  # raises, with the reason
    if not others:
        raise UnknownFamily(
            f"{what} generates text, which is not served here; a generative reranker is named by "
            "--reranker-model, an embedding checkpoint by -m or --embedding-model"
        )
    log.warning("%s generates text, which is not served here; it is not loaded", what)


def _check_modes(config: Config, found: list[Served]) -> None:
    tasks = {served.task for served in found}
    if config.embeddings and Task.EMBED not in tasks:
        raise RequestError("--embeddings: there is no embedding checkpoint in -m or --embedding-model")
    if config.reranking and Task.RERANK not in tasks:
        raise RequestError(
            "--reranking (or --pooling rank): there is no cross-encoder in -m and no --reranker-model; "
            "a generative reranker is reached by --reranker-model only"
        )
    if config.pooling is not None and Task.EMBED not in tasks:
        raise RequestError(f"--pooling {config.pooling}: there is no embedding checkpoint that it could apply to")


def _check_names(found: list[Served]) -> None:
    for i, served in enumerate(found):
        for other in found[:i]:
            if (served.id, served.task) == (other.id, other.task):
                raise RequestError(
                    f"{other.asked} and {served.asked} would both be called {served.id!r}, so that a request could "
                    "not tell them apart; rename a folder"
                )


def _check_memory(config: Config, found: list[Served]) -> None:
    bound = config.max_loaded_mib * MIB
    if not bound:
        return
    always = sum(served.disk for served in found if not served.extra)
    for served in found:
        need = always + (served.disk if served.extra else 0)
        if need > bound:
            raise CheckpointError(
                f"--max-loaded-mib {config.max_loaded_mib}: {served.asked} beside the models that are always loaded "
                f"needs {need // MIB + 1} MiB"
            )


class Models:
    """The served checkpoints, their workers, and which of them a request means."""

    def __init__(self, config: Config, served: list[Served], metrics: Metrics) -> None:
        self.config, self.served, self.metrics = config, served, metrics
        self.ready = False
        self._room = asyncio.Lock()

    async def start(self) -> None:
        """Load what is always loaded.

        :raises CheckpointError: if one does not load.
        """
        for served in self.served:
            if not served.extra:
                await self._load(served)
        self.ready = True

    async def stop(self) -> None:
        """End every worker."""
        await asyncio.gather(*(served.worker.stop() for served in self.served if served.worker))

    def find(self, task: Task, name: str | None) -> Served:
        """The checkpoint that a request for ``task`` means by ``name``.

        :raises NotLoaded: if no checkpoint serves the task.
        :raises RequestError: if another one is served; names both.
        """
        able = [served for served in self.served if served.task is task]
        if not able:
            raise NotLoaded(MISSING[task])
        if not name:
            return able[0]
        for served in able:
            if name in served.names:
                return served
        ids = ", ".join(repr(served.id) for served in able)
        raise RequestError(f"model {name!r} does not match the loaded {WHAT[task]}: {ids}")

    async def worker(self, served: Served) -> Worker:
        """The worker of a checkpoint, loaded first where it is an extra one.

        :raises Loading: while the server starts.
        """
        served.used = time.monotonic()
        if served.worker is not None:
            return served.worker
        if not served.extra:
            raise Loading("Loading model")
        if served.loading is None:
            served.loading = asyncio.create_task(self._load_extra(served))
            served.loading.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(served.loading)

    async def reserve(self, served: Served) -> tuple[Worker, Job]:
        """A place in the queue of a checkpoint, loaded first where it is an extra one.

        :raises Busy: if the queue is full.
        """
        while True:
            worker = await self.worker(served)
            if (job := worker.reserve()) is not None:
                return worker, job
            await asyncio.sleep(0)  # it is being unloaded; ask for it anew

    async def _load_extra(self, served: Served) -> Worker:
        try:
            async with self._room:  # one at a time, so that two cannot both take the last of the memory
                await self._make_room(served)
                return await self._load(served)
        finally:
            served.loading = None

    async def _make_room(self, served: Served) -> None:
        bound = self.config.max_loaded_mib * MIB
        while bound and served.disk + sum(other.disk for other in self.served if other.worker) > bound:
            idle = [other for other in self.served if other.extra and other.worker and not other.worker.busy]
            if not idle:
                raise Busy("All memory for models is in use. Please try again later.")
            oldest = min(idle, key=lambda other: other.used)
            log.info("unloading %s to make room for %s", oldest.id, served.id)
            worker, oldest.worker = oldest.worker, None
            assert worker is not None
            await worker.stop()

    async def _load(self, served: Served) -> Worker:
        start = time.monotonic()
        worker = Worker(
            served.id,
            lambda: self._engine(served),
            self._limits,
            self.config.embedding_queue_depth,
            lambda forward: self.metrics.forward(served.id, forward),
        )
        await worker.start()
        served.worker = worker
        engine = served.engine
        family, kind = engine.profile.family, engine.profile.kind or WHAT[served.task]
        seconds = time.monotonic() - start
        log.info("loaded %s (%s, %s, max_length %d) in %.1f s", served.id, family, kind, engine.max_length, seconds)
        return worker

    def _limits(self, engine: Engine) -> Limits:
        config, profile = self.config, engine.profile
        if profile.task is Task.RERANK:
            rows = config.rerank_batch_size or profile.batch_size or RERANK_BATCH
        else:
            rows = config.embedding_batch_size or profile.batch_size or EMBED_BATCH
        return Limits(rows, config.max_batch_tokens)

    def _engine(self, served: Served) -> Engine:
        """Load, count and warm up, on the worker's thread."""
        from mlx.utils import tree_flatten

        from theodolite.embedder import Embedder
        from theodolite.engine import Options
        from theodolite.reranker import Reranker

        config, embeds = self.config, served.task is Task.EMBED
        options = Options(
            family=config.family,
            dtype=config.dtype,
            max_length=config.embedding_max_length,
            pooling=config.pooling if embeds and not served.extra else None,
            kernels=config.kernels,
        )
        engine: Engine = (Embedder if embeds else Reranker)(served.checkpoint, served.task, options)
        arrays = [array for _, array in tree_flatten(engine.model.parameters())]
        served.facts = {"n_params": sum(a.size for a in arrays), "size": sum(a.nbytes for a in arrays)}
        if not config.no_warmup:
            _warm_up(engine)
        return engine


def _warm_up(engine: Engine) -> None:
    from theodolite.values import Item, Pair, TextItem

    text = TextItem("warm up")
    item: Item = text if engine.profile.task is Task.EMBED else Pair(text, text)
    try:
        engine.run(engine.encode([item]), 1)
    except Exception as error:
        log.warning("warming up %s failed: %s", engine.label, error)
