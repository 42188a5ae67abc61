"""A server process under clients that are killed and loads that go on: what it holds afterwards."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow
SECONDS = 30
WORDS = ["the cat sat on a mat", "rain falls over hills", "paris is the capital of france"]
CLIENT = """
import sys, urllib.request
url, headers = sys.argv[1] + "/v1/embeddings", {"Content-Type": "application/json"}
request = urllib.request.Request(url, sys.stdin.buffer.read(), headers)
print("sent", flush=True)
urllib.request.urlopen(request).read()
"""


class Live:
    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.process, self.url, self.log = process, url, log

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def metric(self, start: str) -> float:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=SECONDS) as reply:
            lines = reply.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(start))

    def resident(self) -> int:
        """Bytes of memory that the process holds."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * 4096


@pytest.fixture
def live(folders: Path, tmp_path: Path) -> Iterator[Live]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path / "log"
    models = ["--embedding-model", str(folders / "bert"), "--reranker-model", str(folders / "cross")]
    command = [sys.executable, "-m", "theodolite_server", "--port", str(port), "--embedding-queue-depth", "16", *models]
    with log.open("wb") as stderr, subprocess.Popen(command, stderr=stderr) as process:
        server = Live(process, f"http://127.0.0.1:{port}", log)
        try:
            deadline = time.monotonic() + SECONDS
            while True:
                try:
                    urllib.request.urlopen(f"{server.url}/health", timeout=1).close()
                    break
                except OSError:
                    assert process.poll() is None, log.read_text()
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            yield server
            process.terminate()
            assert process.wait(SECONDS) == 0
            assert not [
                line for line in log.read_text().splitlines() if "Traceback" in line or "never retrieved" in line
            ]
        finally:
            process.kill()


def test_killed_clients_leave_nothing_behind(live: Live) -> None:
    body = json.dumps({"input": WORDS * 4000}).encode()
    clients = [
        subprocess.Popen([sys.executable, "-c", CLIENT, live.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(6)
    ]
    for client in clients:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(body)
        client.stdin.close()
        client.stdout.readline()
    time.sleep(0.5)
    for client in clients:
        client.kill()
        client.wait()
        assert client.stdout is not None
        client.stdout.close()
    assert live.post("/v1/embeddings", {"input": "rain"})[0] == 200
    deadline = time.monotonic() + SECONDS
    while live.metric('theodolite_requests_total{method="POST",route="/v1/embeddings",status="499"}') == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    while live.metric("theodolite_queue_requests") > 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.2)
    rows = live.metric("theodolite_batch_rows_sum")
    time.sleep(0.5)
    assert live.metric("theodolite_batch_rows_sum") == rows < len(clients) * len(WORDS) * 4000


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_memory_is_bounded_over_ten_thousand_requests(live: Live) -> None:
    def one(i: int) -> None:
        rng = np.random.default_rng(i)
        text = " ".join(rng.choice(WORDS, int(rng.integers(1, 14))))
        path, body, status = [
            ("/v1/embeddings", {"input": [text] * int(rng.integers(1, 5))}, 200),
            ("/v1/embeddings", {"input": text, "encoding_format": "base64"}, 200),
            ("/v1/rerank", {"query": "rain", "documents": [text, "mat"]}, 200),
            ("/similarity", {"inputs": {"source_sentence": "rain", "sentences": [text]}}, 200),
            ("/v1/embeddings", {"input": [text, ""]}, 400),
            ("/nowhere", {}, 404),
        ][i % 6]
        assert live.post(path, body)[0] == status

    resident, active = [], []
    with ThreadPoolExecutor(8) as pool:
        for start in range(0, 10_000, 1000):
            list(pool.map(one, range(start, start + 1000)))
            resident.append(live.resident())
            active.append(live.metric("theodolite_mlx_active_bytes"))
            assert live.metric("theodolite_mlx_cache_bytes") <= 512 * 1024 * 1024
    assert max(active) - min(active) < 1_000_000
    assert resident[-1] - resident[1] < 16 * 1024 * 1024, resident
    print("resident MiB", [size >> 20 for size in resident])


def test_what_is_no_http_is_a_line_of_the_log(live: Live) -> None:
    """The fixture wants no traceback in it."""
    host, port = live.url.removeprefix("http://").split(":")
    for sent in (b"\x16\x03\x01\x02\x00", b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
        with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
            connection.sendall(sent)
            connection.recv(12)
    deadline = time.monotonic() + SECONDS
    while live.log.read_text().count("refused what is no HTTP request") < 2:
        assert time.monotonic() < deadline, live.log.read_text()
        time.sleep(0.05)
