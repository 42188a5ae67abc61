"""Clients against a running server: `python tests/bench/server.py URL [--clients 1,8,32] [--seconds 10]`.

Prints throughput, latency and rows per forward pass for each number of clients, and how much of the machine the clients
themselves took. Start the server with a queue depth above the number of clients.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import time

import aiohttp
import numpy as np

TEXT = "the weather is lovely today it so sunny outside he drove to stadium rain falls over hills and city"


def texts(count: int) -> list[str]:
    """Sentences of 5 to 40 words."""
    rng, words = np.random.default_rng(0), TEXT.split()
    return [" ".join(rng.choice(words, int(rng.integers(5, 41)))) for _ in range(count)]


async def passes(session: aiohttp.ClientSession, url: str) -> tuple[float, float]:
    """Forward passes and rows so far."""
    async with session.get(f"{url}/metrics") as reply:
        lines = (await reply.text()).splitlines()
    totals = {"count": 0.0, "sum": 0.0}
    for line in lines:
        for name in totals:
            if line.startswith(f"theodolite_batch_rows_{name}{{"):
                totals[name] += float(line.rsplit(" ", 1)[1])
    return totals["count"], totals["sum"]


async def measure(url: str, clients: int, seconds: float) -> str:
    """One line of results."""
    sentences, latencies = texts(512), list[float]()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def client(number: int) -> None:
            i = number * 37
            while time.perf_counter() < end:
                start = time.perf_counter()
                async with session.post(f"{url}/v1/embeddings", json={"input": sentences[i % 512]}) as reply:
                    await reply.read()
                    reply.raise_for_status()
                latencies.append(time.perf_counter() - start)
                i += 1

        before, used = await passes(session, url), resource.getrusage(resource.RUSAGE_SELF)
        begin = time.perf_counter()
        end = begin + seconds
        await asyncio.gather(*(client(i) for i in range(clients)))
        took = time.perf_counter() - begin
        after, now = await passes(session, url), resource.getrusage(resource.RUSAGE_SELF)
    own = (now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime) / took
    p50, p95, p99 = np.percentile(np.array(latencies) * 1000, [50, 95, 99])
    rows = (after[1] - before[1]) / max(after[0] - before[0], 1)
    return f"| {clients} | {len(latencies) / took:.1f} | {p50:.0f} | {p95:.0f} | {p99:.0f} | {rows:.1f} | {own:.2f} |"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--seconds", type=float, default=10)
    args = parser.parse_args()
    print("| clients | texts/s | p50 ms | p95 ms | p99 ms | rows per pass | clients' cores |")
    print("|---|---|---|---|---|---|---|")
    for clients in (int(part) for part in args.clients.split(",")):
        print(await measure(args.url, clients, args.seconds), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
