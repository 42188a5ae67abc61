"""``theodolite bench``: how fast a checkpoint embeds on this machine, and how much memory that takes."""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time

from theodolite.locate import DEFAULT
from theodolite_cli import options

SENTENCE = "measure the angle between two words and the distance from one hill to the next "
LENGTHS = (3, 8, 15, 30, 60, 120)
"""Words of the texts that are embedded, in turn."""
SHORT_REPEATS = 20


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "bench",
        help="measure how fast a checkpoint embeds here",
        description="Measure load time, tokens a second on texts of 3 to 120 words, the time of one short text, and "
        "peak memory. tests/bench/run.py compares with other engines.",
        allow_abbrev=False,
    )
    options.add_model(parser, DEFAULT)
    parser.add_argument("--texts", type=options.positive, default=96, metavar="N", help="texts a round (default: 96)")
    parser.add_argument("--rounds", type=options.positive, default=3, metavar="N", help="rounds (default: 3)")
    options.add_running(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Load, measure, print."""
    import theodolite
    from theodolite.nn import kernels

    began = time.perf_counter()
    embedder = theodolite.load(args.model, **options.loading(args))
    load = time.perf_counter() - began
    words = (SENTENCE * (max(LENGTHS) // len(SENTENCE.split()) + 1)).split()
    texts = [" ".join(words[: LENGTHS[i % len(LENGTHS)]]) for i in range(args.texts)]
    rates = []
    for _ in range(args.rounds):
        began = time.perf_counter()
        made = embedder.embed(texts)
        rates.append(made.prompt_tokens / (time.perf_counter() - began))
    shorts = []
    for _ in range(SHORT_REPEATS):
        began = time.perf_counter()
        embedder.embed(texts[:1])
        shorts.append(time.perf_counter() - began)
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux kilobytes
    found = {
        "model": embedder.label,
        "kernels": kernels.active.name,
        "load_seconds": round(load, 3),
        "tokens_per_second": round(statistics.median(rates)),
        "short_text_ms": round(statistics.median(shorts) * 1000, 2),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6),
    }
    if args.json:
        options.print_json(found)
        return
    from theodolite_cli import render

    render.columns(None, [[name.replace("_", " "), str(value)] for name, value in found.items()])
