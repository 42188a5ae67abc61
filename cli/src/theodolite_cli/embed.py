"""``theodolite embed``: one vector per input, and how alike the inputs are."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from theodolite.errors import printable
from theodolite.limits import EMBED_BATCH
from theodolite.locate import DEFAULT
from theodolite_cli import options

if TYPE_CHECKING:
    import numpy as np

    from theodolite.embedder import Embedder
    from theodolite.values import Embeddings

SIMILARITY_LIMIT = 1000
"""Inputs beyond which no similarity matrix is made: it grows with the square."""
POOLING = ("mean", "cls", "last")
REFUSED_POOLING = {
    "none": "one vector per token cannot be had: every family pools inside its own forward pass",
    "rank": "that puts a model on its reranking path; use `theodolite rerank`",
    "max": "it has no spelling here; set THEODOLITE_EMBEDDING_POOLING=max",
}
EPILOG = """\
Without -p and --image, texts are read from stdin, one per line. stdout holds a
line per vector and, with two inputs or more, a similarity matrix; with --json
one object. Everything else goes to stderr. A text that begins with a dash is
given as --prompt=-TEXT.

examples:
  theodolite embed -p "a cat" -p "a kitten" -p "a car"
  theodolite embed -m nomic-ai/modernbert-embed-base -p "search_query: a cat?"
  theodolite embed -m Qwen/Qwen3-VL-Embedding-2B -p "a chart" --image chart.png
  theodolite embed --json < sentences.txt | jq .shapes
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "embed",
        help="print a vector per input, and their similarities",
        description="Embed texts and images, and compare them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_model(parser, DEFAULT)
    group = parser.add_argument_group("inputs")
    group.add_argument(
        "-p",
        "--prompt",
        action="append",
        default=[],
        metavar="TEXT",
        help="a text; repeatable; - reads lines from stdin",
    )
    group.add_argument("--image", action="append", default=[], metavar="FILE", help="an image file; repeatable")
    group.add_argument("--instruction", metavar="TEXT", help="task for families whose prompt has a place for one")
    group.add_argument(
        "--prompt-name", metavar="NAME", help="use this prompt of the checkpoint's own (see `theodolite show`)"
    )
    group = parser.add_argument_group("vectors")
    group.add_argument("--dimensions", type=options.positive, metavar="N", help="keep the first N components")
    group.add_argument(
        "--pooling", type=pooling, metavar="MODE", help="mean, cls or last (default: what the checkpoint says)"
    )
    group.add_argument(
        "--embd-normalize",
        type=norm,
        metavar="P",
        help="-1 none, 0 largest component to 32760, 1 taxicab, 2 euclidean, above that the p-norm "
        "(default: what the checkpoint says, else 2)",
    )
    options.add_running(parser, EMBED_BATCH)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.set_defaults(run=run)


def pooling(text: str) -> str:
    """The type of --pooling."""
    if text in REFUSED_POOLING:
        raise argparse.ArgumentTypeError(f"{text} is not served: {REFUSED_POOLING[text]}")
    if text not in POOLING:
        raise argparse.ArgumentTypeError(f"one of {', '.join(POOLING)} was expected, not {text!r}")
    return text


def norm(text: str) -> int:
    """The type of --embd-normalize."""
    try:
        value = int(text)
    except ValueError:
        value = -2
    if value < -1:
        raise argparse.ArgumentTypeError(f"-1, 0, 1, 2 or a higher p was expected, not {text!r}")
    return value


def run(args: argparse.Namespace) -> None:
    """Load, embed, print."""
    from theodolite.errors import RequestError

    texts = options.texts(args.prompt)
    if not args.prompt and not args.image and not sys.stdin.isatty():
        texts = options.lines()
    if not texts and not args.image:
        raise RequestError("nothing to embed: give -p TEXT, --image FILE, or lines of text on stdin")
    for i, text in enumerate(texts):
        if not text:
            raise RequestError(f"prompt {i} is empty")
    for file in args.image:
        options.check_file("--image", file)

    import theodolite
    from theodolite_cli import render

    embedder = theodolite.load(args.model, pooling=args.pooling, **options.loading(args))
    embedder.check(args.dimensions, args.embd_normalize)
    if args.instruction and not embedder.profile.instruction:
        options.log.warning("--instruction is ignored: family %r has no place for one", embedder.profile.family)
    with render.progress("embedding") as progress:
        made = embedder.embed(
            [*texts, *(options.image(file) for file in args.image)],
            instruction=args.instruction,
            prompt_name=args.prompt_name,
            dimensions=args.dimensions,
            embd_normalize=args.embd_normalize,
            batch_size=args.batch_size,
            progress=progress,
        )
    options.report_cut(made.truncated, embedder.max_length)
    labels = [*texts, *args.image]
    matrix = similarity(made)
    if args.json:
        options.print_json(answer(embedder, made, matrix, labels))
        return
    for vector in made.vectors:
        print(line(vector))
    if matrix is not None:
        kind = "MaxSim" if embedder.multi_vector else "cosine"
        print()
        render.similarity(f"{kind} similarity ({len(labels)} inputs):", matrix, labels)
    inputs, tokens = options.count(len(labels), "input"), options.count(made.prompt_tokens, "prompt token")
    width = args.dimensions or embedder.dim
    print(
        f"{printable(embedder.label)}: {inputs}, {tokens}, dim {width}, max_length {embedder.max_length}",
        file=sys.stderr,
    )


def similarity(made: Embeddings) -> np.ndarray | None:
    """Every input against every other: ``[N, N]``; None for one input, or too many."""
    import theodolite

    if len(made) < 2:
        return None
    if len(made) > SIMILARITY_LIMIT:
        options.log.warning("no similarity matrix: %d inputs are more than %d", len(made), SIMILARITY_LIMIT)
        return None
    return theodolite.similarity(made.vectors, made.vectors)


def line(vector: np.ndarray) -> str:
    """``[0.123456, ...]``, or a list of such rows."""
    if vector.ndim == 2:
        return f"[{', '.join(line(row) for row in vector)}]"
    return f"[{', '.join(f'{x:.6f}' for x in vector.tolist())}]"


def answer(embedder: Embedder, made: Embeddings, matrix: np.ndarray | None, labels: list[str]) -> dict[str, Any]:
    """What --json prints."""
    shapes = [list(vector.shape) for vector in made.vectors]
    return {
        "model": embedder.label,
        "model_type": embedder.checkpoint.model_type,
        "dim": shapes[0][-1],
        "max_length": embedder.max_length,
        "multi_vector": embedder.multi_vector,
        "prompt_tokens": made.prompt_tokens,
        "inputs": labels,
        "shapes": shapes,
        "similarity": None if matrix is None else matrix.tolist(),
        "embeddings": [vector.tolist() for vector in made.vectors],
    }
