"""What a terminal sees: a table that fits, a bar for long work; and neither where there is no terminal."""

from __future__ import annotations

import re

import numpy as np
import pytest

from theodolite_cli import render

Capture = pytest.CaptureFixture[str]
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for variable in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)


def show(count: int, capsys: Capture) -> str:
    labels = ["a [bold]cat[/bold]", "a\nvery " + "long " * 30 + "text", *["x"] * (count - 2)]
    render.similarity(
        f"cosine similarity ({count} inputs):", np.linspace(-1, 1, count * count).reshape(count, count), labels
    )
    return capsys.readouterr().out


def test_a_label_cannot_steer_the_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch)
    render.similarity("cosine similarity (2 inputs):", np.eye(2), ["\x1b]0;title\x07", "漢" * 60])
    lines = ANSI.sub("", capsys.readouterr().out).splitlines()
    assert any(r"\x1b]0;title\x07" in line for line in lines)
    assert "\x1b" not in "".join(lines)
    assert max(map(render.cells, lines)) <= 80


@pytest.mark.parametrize("count", [2, 3, 6])
def test_table(capsys: Capture, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    terminal(monkeypatch)
    out = show(count, capsys)
    assert ANSI.search(out)
    lines = ANSI.sub("", out).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].rstrip() == f"cosine similarity ({count} inputs):"
    rows = [line for line in lines if re.match(r"\s*\[\d+\] ", line) and "." in line]
    assert len(rows) == count
    assert rows[0].split()[1] == "a"  # the text itself, its brackets no markup
    assert rows[-1].split()[-1] == "1.0000"


def test_a_wide_matrix_stays_plain(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch)
    out = show(7, capsys)
    assert not ANSI.search(out)
    assert out.splitlines()[1].startswith("  [0] -1.0000 ")


def test_no_table_in_a_pipe(capsys: Capture) -> None:
    assert show(2, capsys).splitlines()[1] == "  [0] -1.0000 -0.3333"


def test_no_progress_in_a_pipe(capsys: Capture) -> None:
    with render.progress("embedding") as step:
        assert step is None


@pytest.mark.parametrize(("long", "shown"), [(0.0, True), (60.0, False)])
def test_progress(capsys: Capture, monkeypatch: pytest.MonkeyPatch, long: float, shown: bool) -> None:
    terminal(monkeypatch)
    monkeypatch.setattr(render, "LONG", long)
    with render.progress("embedding") as step:
        assert step is not None
        step(1, 2)
        step(2, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert ("embedding" in err) == shown


def test_columns_wrap_below_themselves(capsys: Capture) -> None:
    render.columns(["A", "B"], [["x", "word " * 30], ["longer", ""]])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "  A       B"
    assert max(map(len, lines)) <= 80
    assert lines[2].startswith("          word")
    assert lines[-1] == "  longer"


def test_columns_are_aligned_by_width(capsys: Capture) -> None:
    render.columns(None, [["猫", "a", "字 " * 30], ["a", "b\x1b[31m", "c"]])
    first, *rest, last = capsys.readouterr().out.splitlines()
    assert first.startswith("  猫  a")
    assert last.startswith("  a   b\\x1b[31m  c")
    assert max(render.cells(line) for line in (first, *rest)) <= 80


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("a\n cat", "a cat"),
        ("\x1b]0;x\x07\x9b", r"\x1b]0;x\x07\x9b"),
        ("x" * 61, "x" * 57 + "..."),
        ("漢" * 30, "漢" * 30),
        ("漢" * 60, "漢" * 28 + "..."),
    ],
)
def test_short(text: str, label: str) -> None:
    assert render.short(text, 60) == label
