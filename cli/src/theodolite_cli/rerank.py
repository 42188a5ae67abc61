"""``theodolite rerank``: how relevant each document is to a query."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from theodolite.errors import printable
from theodolite.limits import RERANK_BATCH
from theodolite_cli import options

if TYPE_CHECKING:
    from theodolite.values import ImageItem

LABEL = 60
"""Columns of a document that the text output shows."""
EPILOG = """\
Documents are numbered in the order given, texts before images. A score is a
probability, or with --raw-scores the model's logit.

examples:
  theodolite rerank -m BAAI/bge-reranker-v2-m3 -q "what is a panda?" \\
      -d "hi" -d "The giant panda is a bear of China."
  theodolite rerank -m Qwen/Qwen3-VL-Reranker-2B -q "a chart" --image a.png
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "rerank",
        help="score documents for a query",
        description="Score how relevant documents are to a query, and rank them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_model(parser, None)
    group = parser.add_argument_group("inputs")
    group.add_argument("-q", "--query", metavar="TEXT", help="the query")
    group.add_argument("--query-image", metavar="FILE", help="an image as the query, or beside its text")
    group.add_argument(
        "-d",
        "--document",
        action="append",
        default=[],
        metavar="TEXT",
        help="a document; repeatable; - reads lines from stdin",
    )
    group.add_argument("--image", action="append", default=[], metavar="FILE", help="an image document; repeatable")
    group.add_argument("--instruction", metavar="TEXT", help="task, for generative rerankers")
    group = parser.add_argument_group("scores")
    group.add_argument("--top-n", type=options.positive, metavar="N", help="rank the best N only")
    group.add_argument("--raw-scores", action="store_true", help="logits instead of probabilities")
    options.add_running(parser, RERANK_BATCH)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Load, score, print."""
    from theodolite.errors import RequestError

    query = (args.query or "").strip()
    if not query and not args.query_image:
        raise RequestError("there is no query: give -q TEXT or --query-image FILE")
    documents = options.texts(args.document)
    if not documents and not args.image:
        raise RequestError("there are no documents: give -d TEXT or --image FILE")
    for i, document in enumerate(documents):
        if not document.strip():
            raise RequestError(f"document {i} is empty")
    for option, files in (("--query-image", [args.query_image] if args.query_image else []), ("--image", args.image)):
        for file in files:
            options.check_file(option, file)

    import theodolite
    from theodolite_cli import render

    reranker = theodolite.load_reranker(args.model, **options.loading(args))
    asked: str | ImageItem = options.image(args.query_image, query) if args.query_image else query
    with render.progress("scoring") as progress:
        made = reranker.rank(
            asked,
            [*documents, *(options.image(file) for file in args.image)],
            instruction=args.instruction,
            raw_scores=args.raw_scores,
            batch_size=args.batch_size,
            progress=progress,
        )
    options.report_cut(made.truncated, reranker.max_length)
    scores = [float(score) for score in made.scores]
    ranking = made.ranking()[: args.top_n]
    labels = [*documents, *args.image]
    if args.json:
        shown: Any = {"text": query or None, "image": args.query_image} if args.query_image else query
        options.print_json(
            {
                "model": reranker.label,
                "model_type": reranker.checkpoint.model_type,
                "kind": made.kind,
                "max_length": reranker.max_length,
                "batch_size": args.batch_size or reranker.profile.batch_size or RERANK_BATCH,
                "prompt_tokens": made.prompt_tokens,
                "query": shown,
                "documents": labels,
                "scores": scores,
                "ranking": ranking,
            }
        )
        return
    print("scores (document order):")
    for i, score in enumerate(scores):
        print(row(i, score, labels[i]))
    print()
    print("ranking (most relevant first):")
    for i in ranking:
        print(row(i, scores[i], labels[i]))
    count, tokens = options.count(len(labels), "document"), options.count(made.prompt_tokens, "prompt token")
    print(
        f"{printable(reranker.label)}: {made.kind}, {count}, {tokens}, max_length {reranker.max_length}",
        file=sys.stderr,
    )


def row(index: int, score: float, label: str) -> str:
    """One document of the text output, on one line."""
    from theodolite_cli import render

    return f"  [{index}] {score:.6f} {render.short(label, LABEL)}"
