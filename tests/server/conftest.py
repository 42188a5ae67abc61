"""Applications over tiny checkpoints, run as the command runs them."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp.test_utils import TestClient

from theodolite_server import app as application
from theodolite_server.config import Config
from theodolite_server.routes.common import CONTEXT, Context

_spec = importlib.util.spec_from_file_location("server_checkpoints", Path(__file__).with_name("checkpoints.py"))
assert _spec is not None
assert _spec.loader is not None
checkpoints = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(checkpoints)

Start = Callable[..., Awaitable[TestClient[Any, Any]]]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds ``bert``, ``bert-nan``, ``cross`` and ``cross-nan``."""
    folder = tmp_path_factory.mktemp("served")
    checkpoints.write(folder / "bert")
    checkpoints.write(folder / "cross", head=True)
    checkpoints.spoil(checkpoints.write(folder / "bert-nan"))
    checkpoints.spoil(checkpoints.write(folder / "cross-nan", head=True))
    return folder


@pytest.fixture
def start(aiohttp_client: Any, folders: Path) -> Start:
    """Start an application; by default with an embedder and a reranker, loaded and without any warm-up."""

    async def run(load: bool = True, **fields: Any) -> TestClient[Any, Any]:
        models = {"embedding_model": str(folders / "bert"), "reranker_model": str(folders / "cross")}
        named = {key: fields.pop(key) for key in ("model", *models) if key in fields}
        app = application.make_app(Config(**(named or models), **{"no_warmup": True, **fields}))
        if load:
            await application.load(app)
        client: TestClient[Any, Any] = await aiohttp_client(app, server_kwargs=application.RUNNER)
        return client

    return run


@pytest.fixture
async def client(start: Start) -> TestClient[Any, Any]:
    return await start()


def inside(client: TestClient[Any, Any]) -> Context:
    return client.app[CONTEXT]


async def post(client: TestClient[Any, Any], path: str, body: Any, status: int = 200) -> Any:
    """The JSON answer of a POST that has to have ``status``."""
    reply = await client.post(path, json=body)
    answer = await reply.json()
    assert reply.status == status, answer
    return answer


class Slow:
    """Makes every forward pass of a model wait, and counts the rows of each."""

    def __init__(self, engine: Any, seconds: float) -> None:
        self.rows: list[int] = []
        self.seconds = seconds
        self._forward = engine.forward
        engine.forward = self

    def __call__(self, rows: Any) -> np.ndarray:
        self.rows.append(len(rows))
        time.sleep(self.seconds)
        answer: np.ndarray = self._forward(rows)
        return answer
