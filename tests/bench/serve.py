"""The server under load, beside the same texts offline: `python tests/bench/serve.py [--clients 1,8,32] [--rounds 5]`.

Starts a server on a free port, and a process that calls `embed`. Each round measures one after the other, so that a
busy machine is as busy for all of them; the table holds medians over rounds, and latencies of all requests together.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np

TEXT = "the weather is lovely today it so sunny outside he drove to stadium rain falls over hills and city"
TARGETS = "targets: 32 clients >= 0.6 of offline and >= 1.5 of one client, rows per pass >= 8, p99 < 3 x p50"


def texts(count: int) -> list[str]:
    """Sentences of 5 to 40 words."""
    rng, words = np.random.default_rng(0), TEXT.split()
    return [" ".join(rng.choice(words, int(rng.integers(5, 41)))) for _ in range(count)]


@dataclass
class Measured:
    """One number of clients, over all rounds."""

    clients: int
    rates: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    passes: float = 0
    rows: float = 0
    cpu: float = 0
    seconds: float = 0

    def line(self) -> str:
        p50, p95, p99 = np.percentile(np.array(self.latencies) * 1000, [50, 95, 99])
        share = self.cpu / self.seconds / (os.cpu_count() or 1)
        return (
            f"| {self.clients} | {statistics.median(self.rates):.1f} | {p50:.0f} | {p95:.0f} | {p99:.0f} "
            f"| {self.rows / max(self.passes, 1):.1f} | {share:.1%} |"
        )


def offline(model: str | None) -> None:
    """Embed the texts whenever a line comes in, and answer how many there were in a second."""
    import theodolite

    embedder = theodolite.load(model) if model else theodolite.load()
    for line in sys.stdin:
        sentences = texts(int(line))
        start = time.perf_counter()
        embedder.embed(sentences)
        print(len(sentences) / (time.perf_counter() - start), flush=True)


@contextlib.contextmanager
def started(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, *command], text=True, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


async def ready(session: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(120):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{url}/health") as reply:
                    if reply.status == 200:
                        return
            await asyncio.sleep(0.1)


async def totals(session: aiohttp.ClientSession, url: str) -> tuple[float, float]:
    """Forward passes and rows so far."""
    async with session.get(f"{url}/metrics") as reply:
        lines = (await reply.text()).splitlines()

    def total(name: str) -> float:
        found = (line for line in lines if line.startswith(f"theodolite_batch_rows_{name}{{"))
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)

    return total("count"), total("sum")


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def measure(session: aiohttp.ClientSession, url: str, seconds: float, into: Measured) -> None:
    """Let the clients send one text after the other for some seconds."""
    sentences, latencies = texts(512), list[float]()

    async def client(number: int) -> None:
        i = number * 37
        while time.perf_counter() < end:
            start = time.perf_counter()
            async with session.post(f"{url}/v1/embeddings", json={"input": sentences[i % 512]}) as reply:
                await reply.read()
                reply.raise_for_status()
            latencies.append(time.perf_counter() - start)
            i += 1

    before, used, begin = await totals(session, url), cpu(), time.perf_counter()
    end = begin + seconds
    await asyncio.gather(*(client(i) for i in range(into.clients)))
    took = time.perf_counter() - begin
    into.cpu, into.seconds = into.cpu + cpu() - used, into.seconds + took
    after = await totals(session, url)
    into.passes, into.rows = into.passes + after[0] - before[0], into.rows + after[1] - before[1]
    into.rates.append(len(latencies) / took)
    into.latencies += latencies


async def compare(args: argparse.Namespace) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    model = ["-m", args.model] if args.model else []
    serve = ["-m", "theodolite_server", "--port", str(port), "--embedding-queue-depth", "256", *model]
    embed = [__file__, "--offline", *(["--model", args.model] if args.model else [])]
    found = [Measured(int(part)) for part in args.clients.split(",")]
    rates: list[float] = []
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    connector = aiohttp.TCPConnector(limit=0)
    with started(serve, stderr=subprocess.DEVNULL), started(embed, **pipes) as embedder:
        async with aiohttp.ClientSession(connector=connector) as session:
            await ready(session, url)
            for number in range(args.rounds + 1):
                print(args.texts, file=embedder.stdin, flush=True)
                rate = float(await asyncio.to_thread(embedder.stdout.readline))
                rates += [rate] if number else []  # the first round is a warm-up
                for one in found:
                    await measure(session, url, args.seconds, one if number else Measured(one.clients))
    print("| clients | texts/s | p50 ms | p95 ms | p99 ms | rows per pass | clients' share of the CPUs |")
    print("|---|---|---|---|---|---|---|")
    print(*(one.line() for one in found), sep="\n")
    first, last = found[0], found[-1]
    whole = statistics.median(now / alone for now, alone in zip(last.rates, rates, strict=True))
    gain = statistics.median(now / one for now, one in zip(last.rates, first.rates, strict=True))
    print(f"\noffline `embed`: {statistics.median(rates):.1f} texts/s")
    print(f"{last.clients} clients: {whole:.2f} of offline, {gain:.2f} x {first.clients} client(s)\n{TARGETS}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a checkpoint; the default one if left out")
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4, help="for each number of clients, in each round")
    parser.add_argument("--texts", type=int, default=128, help="embedded offline in each round")
    parser.add_argument("--offline", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.offline:
        offline(args.model)
    else:
        asyncio.run(compare(args))


if __name__ == "__main__":
    main()
