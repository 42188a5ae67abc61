"""Applications over tiny checkpoints, run as the command runs them."""

from __future__ import annotations

import importlib.util
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from theodolite_server import app as application
from theodolite_server.config import Config

_spec = importlib.util.spec_from_file_location("server_checkpoints", Path(__file__).with_name("checkpoints.py"))
assert _spec is not None
assert _spec.loader is not None
checkpoints = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(checkpoints)


class Server(TestServer):
    async def _make_runner(self, **kwargs: Any) -> web.AppRunner:
        return web.AppRunner(self.app, **application.RUNNER)


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
        client: TestClient[Any, Any] = await aiohttp_client(Server(app))
        return client

    return run


@pytest.fixture
async def client(start: Start) -> TestClient[Any, Any]:
    return await start()
