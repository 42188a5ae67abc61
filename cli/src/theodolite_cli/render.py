"""What a terminal sees beyond plain lines.

rich is imported here only, and only where there is a terminal, or characters that are two columns wide.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from theodolite.errors import printable

if TYPE_CHECKING:
    import numpy as np

    from theodolite.engine import Progress

LONG = 1.0
"""Seconds of work before a progress bar appears."""
WIDTH = 80
CELL = 10
"""Columns that a number takes in a table, with its borders."""


def cells(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def short(text: str, most: int) -> str:
    """A label on one line, cut to at most ``most`` columns."""
    text = printable(" ".join(text.split()))
    if cells(text) <= most:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, most - 3).rstrip() + "..."


@contextmanager
def progress(what: str) -> Iterator[Progress | None]:
    """A callback ``(done, total)`` that shows a bar on stderr for long work; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    began = time.monotonic()
    bars: list[tuple[Any, Any]] = []

    def step(done: int, total: int) -> None:
        if not bars and (time.monotonic() - began < LONG or done == total):
            return
        if not bars:
            from rich.console import Console
            from rich.progress import Progress as Bar

            bar = Bar(console=Console(stderr=True), transient=True)
            bars.append((bar, bar.add_task(what, total=total)))
            bar.start()
        bar, task = bars[0]
        bar.update(task, completed=done)

    try:
        yield step
    finally:
        for bar, _ in bars:
            bar.stop()


def similarity(title: str, matrix: np.ndarray, labels: Sequence[str]) -> None:
    """Print a matrix ``[N, N]``: a coloured table on a terminal that is wide enough for it, else plain lines."""
    if sys.stdout.isatty() and len(labels) * CELL + 2 * CELL <= WIDTH:
        _table(title, matrix, labels)
        return
    print(title)
    for i, row in enumerate(matrix.tolist()):
        print(f"  [{i}] " + " ".join(f"{x:7.4f}" for x in row))


def _table(title: str, matrix: np.ndarray, labels: Sequence[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    table.add_column("", no_wrap=True, overflow="ellipsis", max_width=WIDTH - len(labels) * CELL - 4)
    for i in range(len(labels)):
        table.add_column(f"[{i}]".replace("[", "\\["), justify="right", no_wrap=True)
    low, high = float(matrix.min()), float(matrix.max())
    for i, row in enumerate(matrix.tolist()):
        cells = [Text(f"{x:.4f}", style=_colour((x - low) / max(high - low, 1e-9))) for x in row]
        table.add_row(Text(f"[{i}] {short(labels[i], WIDTH)}"), *cells)
    Console(width=WIDTH).print(table)


def _colour(share: float) -> str:
    return ("bright_black", "blue", "cyan", "green", "bold green")[min(4, int(share * 5))]


def columns(header: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> None:
    """Print rows of text as aligned columns, indented by two; a long last column wraps below itself."""
    if not rows:
        return
    shown = [[printable(cell) for cell in row] for row in ([header] if header else []) + list(rows)]
    widths = [max(cells(row[i]) for row in shown) for i in range(len(shown[0]) - 1)]
    indent = 2 + sum(width + 2 for width in widths)
    for row in shown:
        start = "  " + "".join(cell + " " * (width - cells(cell) + 2) for cell, width in zip(row, widths, strict=False))
        lines = _wrapped(row[-1], max(20, WIDTH - indent))
        print((start + lines[0]).rstrip())
        for line in lines[1:]:
            print(" " * indent + line)


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of at most ``width`` columns, broken at spaces only: a path stays whole."""
    first, *words = text.split(" ")
    lines = [first]
    for word in words:
        if cells(lines[-1]) + 1 + cells(word) > width:
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return lines
