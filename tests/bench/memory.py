"""Load a checkpoint, embed, and say how long it took and how much memory it needed.

python tests/bench/memory.py FOLDER [--texts 16] [--tokens 200]
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=200)
    args = parser.parse_args()
    import theodolite

    began = time.perf_counter()
    embedder = theodolite.load(args.folder)
    loaded, after_load = time.perf_counter() - began, peak()
    rows = [[20 + (7 * i + j) % 60 for j in range(args.tokens)] for i in range(args.texts)]
    began = time.perf_counter()
    found = embedder.embed(rows)
    seconds = time.perf_counter() - began
    print(
        f"loaded in {loaded:.1f} s at {after_load:.0f} MB; {args.texts} x {args.tokens} tokens "
        f"({found.prompt_tokens} counted) in {seconds:.1f} s; peak {peak():.0f} MB"
    )


if __name__ == "__main__":
    main()
