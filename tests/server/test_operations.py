"""Health, models, metrics, documents, several models, and the process itself from start to SIGTERM."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from theodolite_server import app as application
from theodolite_server.config import MIB
from theodolite_server.routes.common import CONTEXT, ROUTE_TABLE

SECONDS = 30


async def test_not_ready_while_loading(start: Any) -> None:
    client = await start(load=False)
    loading = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
    for method, path in (("GET", "/health"), ("GET", "/readyz"), ("POST", "/v1/embeddings")):
        reply = await client.request(method, path, json={"input": "a"} if method == "POST" else None)
        assert (reply.status, await reply.json()) == (503, loading)
    for path in ("/livez", "/v1/models", "/props", "/metrics"):
        assert (await client.get(path)).status == 200
    await application.load(client.app)
    assert await (await client.get("/health")).json() == {"status": "ok"}


async def test_chat_and_properties_are_a_501(client: Any) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/props"):
        reply = await client.post(path, json={})
        assert (reply.status, (await reply.json())["error"]["type"]) == (501, "not_implemented")
    assert "model is not loaded" in await (await client.post("/v1/chat/completions", json={})).text()


async def test_models(client: Any, folders: Path) -> None:
    listed = await (await client.get("/v1/models")).json()
    assert [(m["id"], m["object"], m["capabilities"]) for m in listed["data"]] == [
        ("bert", "model", ["embedding"]),
        ("cross", "model", ["rerank"]),
    ]
    meta = listed["data"][0]["meta"]
    assert meta["n_embd"] == 16
    assert meta["n_ctx"] == 64
    assert meta["n_params"] * 4 == meta["size"] > 0
    assert b"null" not in await (await client.get("/v1/models")).read()
    assert (await (await client.get("/v1/models/cross")).json())["id"] == "cross"
    assert (await client.get("/v1/models/nothing")).status == 404


async def test_metrics(client: Any) -> None:
    await client.post("/v1/embeddings", json={"input": ["rain", "cat " * 100]})
    await client.post("/v1/embeddings", json={"input": ""})
    lines = (await (await client.get("/metrics")).text()).splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert values['theodolite_requests_total{method="POST",route="/v1/embeddings",status="200"}'] == "1.0"
    assert values['theodolite_requests_total{method="POST",route="/v1/embeddings",status="400"}'] == "1.0"
    assert values['theodolite_tokens_total{model="bert"}'] == "67.0"
    assert float(values['theodolite_padded_tokens_total{model="bert"}']) >= 67
    assert values['theodolite_truncated_tokens_total{model="bert"}'] == "38.0"
    assert values['theodolite_queue_requests{model="bert"}'] == "0.0"
    assert values['theodolite_model_loaded{model="cross"}'] == "1.0"
    assert float(values["theodolite_mlx_active_bytes"]) > 0
    for stage in ("encode", "queue", "inference", "finish"):
        assert values[f'theodolite_stage_seconds_count{{model="bert",stage="{stage}"}}'] == "1.0"


async def test_the_document_describes_every_route(client: Any) -> None:
    document = await (await client.get("/openapi.json")).json()
    for route in client.app[ROUTE_TABLE]:
        operation = document["paths"][route.path.replace(":.+", "")][route.method.lower()]
        if route.body is not None:
            reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            schema = document["components"]["schemas"][reference.rsplit("/", 1)[-1]]
            assert set(schema["properties"]) == set(route.body.__struct_fields__)
    references = {part.split('"')[0] for part in json.dumps(document).split('"#/components/schemas/')[1:]}
    assert references <= set(document["components"]["schemas"])
    operations = [o["operationId"] for methods in document["paths"].values() for o in methods.values()]
    assert len(operations) == len(set(operations))


@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_pages_need_nothing_from_outside(client: Any, path: str) -> None:
    reply = await client.get(path)
    text = await reply.text()
    assert reply.content_type == "text/html"
    assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
    assert "http://" not in text
    assert "https://" not in text
    assert "<html lang" in text
    assert "light dark" in text


# ------------------------------------------------------------ several models


async def test_extra_models_are_loaded_when_they_are_named(start: Any, folders: Path) -> None:
    client = await start(model=str(folders / "bert"), extra_model=(str(folders / "bert-nan"), str(folders / "cross")))
    served = client.app[CONTEXT].models.served
    assert [s.worker is not None for s in served] == [True, False, False]
    answers = await asyncio.gather(
        *(client.post("/v1/embeddings", json={"input": "rain", "model": "bert-nan"}) for _ in range(4))
    )
    assert [reply.status for reply in answers] == [200] * 4
    assert (await answers[0].json())["model"] == "bert-nan"
    reply = await client.post("/v1/rerank", json={"query": "a", "documents": ["b"]})
    assert reply.status == 200
    assert [s.worker is not None for s in served] == [True, True, True]
    assert (await (await client.post("/v1/embeddings", json={"input": "rain"})).json())["model"] == "bert"


async def test_a_load_goes_on_when_its_request_has_gone(start: Any, folders: Path, monkeypatch: Any) -> None:
    from theodolite_server.models import Models

    real = Models._engine

    def slow(self: Models, served: Any) -> Any:
        time.sleep(0.3 if served.extra else 0)
        return real(self, served)

    monkeypatch.setattr(Models, "_engine", slow)
    client = await start(model=str(folders / "bert"), extra_model=(str(folders / "cross"),))
    body = {"query": "a", "documents": ["b"]}
    first = asyncio.create_task(client.post("/v1/rerank", json=body))
    await asyncio.sleep(0.1)
    first.cancel()
    assert (await client.post("/v1/rerank", json=body)).status == 200
    assert sum(thread.name == "model-cross" for thread in threading.enumerate()) == 1


async def test_a_model_that_does_not_load_on_demand_is_a_500(start: Any, folders: Path, monkeypatch: Any) -> None:
    from theodolite.errors import CheckpointError
    from theodolite_server.models import Models

    real = Models._engine

    def broken(self: Models, served: Any) -> Any:
        if served.extra:
            raise CheckpointError("/secret/model.safetensors is truncated")
        return real(self, served)

    monkeypatch.setattr(Models, "_engine", broken)
    client = await start(model=str(folders / "bert"), extra_model=(str(folders / "cross"),))
    reply = await client.post("/v1/rerank", json={"query": "a", "documents": ["b"]})
    assert reply.status == 500
    assert "secret" not in await reply.text()
    assert (await client.post("/v1/embeddings", json={"input": "rain"})).status == 200


async def test_the_model_that_was_idle_longest_makes_room(start: Any, folders: Path, monkeypatch: Any) -> None:
    from theodolite_server.models import Served

    monkeypatch.setattr(Served, "disk", 10 * MIB)
    extra = tuple(str(folders / name) for name in ("bert-nan", "cross", "cross-nan"))
    client = await start(model=str(folders / "bert"), extra_model=extra, max_loaded_mib=30)
    served = client.app[CONTEXT].models.served

    async def rank(model: str) -> int:
        return (await client.post("/v1/rerank", json={"query": "a", "documents": ["b"], "model": model})).status

    assert (await client.post("/v1/embeddings", json={"input": "rain", "model": "bert-nan"})).status == 200
    assert await rank("cross") == 200
    assert await rank("cross-nan") == 200
    assert [s.id for s in served if s.worker] == ["bert", "cross", "cross-nan"]
    assert (await client.post("/v1/embeddings", json={"input": "rain", "model": "bert-nan"})).status == 200
    assert [s.id for s in served if s.worker] == ["bert", "bert-nan", "cross-nan"]


# ------------------------------------------------------------ the process


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "theodolite_server", *flags]


@contextmanager
def running(*flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    port = free_port()
    process = subprocess.Popen(command("--port", str(port), *flags), stderr=subprocess.PIPE, text=True)
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and process.poll() is None:
            try:
                urllib.request.urlopen(f"{url}/health", timeout=1).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        yield process, url
    finally:
        process.kill()
        process.communicate()


def post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=SECONDS) as reply:
        return json.load(reply)


@pytest.mark.slow
def test_from_start_to_sigterm_no_accepted_request_is_lost(folders: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with running("-m", str(folders / "bert"), "--embedding-queue-depth", "64") as (process, url):
        body = {"input": ["the cat sat on a mat " * 8] * 400}
        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(post, f"{url}/v1/embeddings", body) for _ in range(4)]
            time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            assert all(len(answer.result()["data"]) == 400 for answer in answers)
        assert process.wait(SECONDS) == 0
        assert "Traceback" not in process.stderr.read()


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["bert-missing-tensor", "nothing"])
def test_a_checkpoint_that_does_not_load_ends_the_start(folders: Path, tmp_path: Path, broken: str) -> None:
    folder = tmp_path / broken
    if broken == "bert-missing-tensor":
        from safetensors.numpy import load_file, save_file

        folder.mkdir()
        for file in (folders / "bert").rglob("*"):
            if file.is_file():
                (folder / file.relative_to(folders / "bert")).parent.mkdir(exist_ok=True)
                (folder / file.relative_to(folders / "bert")).write_bytes(file.read_bytes())
        weights = load_file(folder / "model.safetensors")
        del weights["encoder.layer.1.output.dense.weight"]
        save_file(weights, folder / "model.safetensors")
    done = subprocess.run(command("--port", "0", "-m", str(folder)), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert broken.removeprefix("bert-missing-") in lines[0]
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_usage_and_help() -> None:
    wrong = subprocess.run(command("--nothing"), capture_output=True, text=True, timeout=SECONDS)
    assert (wrong.returncode, len(wrong.stderr.splitlines())) == (2, 1)
    shown = subprocess.run(command("--help"), capture_output=True, text=True, timeout=SECONDS)
    assert shown.returncode == 0
    assert "THEODOLITE_EMBEDDING_QUEUE_DEPTH" in shown.stdout
    environment = {**os.environ, "MLXCEL_PORT": "x"}
    wrong = subprocess.run(command(), capture_output=True, text=True, timeout=SECONDS, env=environment)
    assert (wrong.returncode, "--port" in wrong.stderr) == (1, True)
