"""A live server process on loopback, for real clients. `nox -s clients` sets up both interpreters and runs this."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SERVER_PYTHON = os.environ.get("THEODOLITE_PYTHON", sys.executable)
"""The interpreter that has Theodolite; the clients' own dependencies need not agree with it."""
START_SECONDS = 60


@dataclass(frozen=True)
class Server:
    url: str
    embedder: str
    reranker: str


@contextmanager
def running(*flags: str) -> Iterator[str]:
    """Start a server on a free port and wait until it is ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [SERVER_PYTHON, "-m", "theodolite_server", "--host", "127.0.0.1", "--port", str(port), *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(START_SECONDS * 10):
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with {process.returncode}: {process.stderr.read()}")
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=1):
                    break
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    subprocess.run([SERVER_PYTHON, str(HERE / "make_checkpoints.py"), str(folder)], check=True)
    return folder


@pytest.fixture(scope="session")
def server(checkpoints: Path) -> Iterator[Server]:
    flags = ("--embedding-model", str(checkpoints / "tiny-bert"), "--reranker-model", str(checkpoints / "tiny-cross"))
    with running(*flags) as url:
        yield Server(url, "tiny-bert", "tiny-cross")


@pytest.fixture(scope="session")
def object_server(checkpoints: Path) -> Iterator[Server]:
    """The same with `document` as an object, which some clients need."""
    flags = ("--embedding-model", str(checkpoints / "tiny-bert"), "--reranker-model", str(checkpoints / "tiny-cross"))
    with running(*flags, "--rerank-documents", "object") as url:
        yield Server(url, "tiny-bert", "tiny-cross")
