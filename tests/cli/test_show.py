"""`theodolite show`, `families` and `arch`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from theodolite import catalog, registry
from theodolite.errors import CONTROL
from theodolite.hookspecs import hookimpl
from theodolite_cli import show
from theodolite_cli.main import main

Checkpoint = Callable[..., str]
Capture = pytest.CaptureFixture[str]
CATALOG = {
    "toy-embed": {"distribution": "toys", "task": "embed", "model_types": ["toy-embed"]},
    "absent": {"distribution": "theodolite-absent", "task": "embed", "model_types": ["absent", "absent2"]},
    "absent-generative": {"distribution": "theodolite-absent", "task": "rerank", "model_types": ["absent-generative"]},
    "absent-rerank": {"distribution": "theodolite-absent", "task": "rerank", "model_types": ["absent"]},
}


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "_entries", lambda: CATALOG)


def test_show(checkpoint: Checkpoint, capsys: Capture) -> None:
    folder = checkpoint(
        config_sentence_transformers={"prompts": {"query": "q: "}, "default_prompt_name": "query"},
        sentence_bert_config={"max_seq_length": 12},
    )
    assert main(["show", folder, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    size = told.pop("size_on_disk")
    assert 12 * 8 * 4 < size < 10_000
    assert told == {
        "model": "toy-embed",
        "path": folder,
        "model_type": "toy-embed",
        "architecture": "Toy",
        "family": "toy-embed",
        "plugin": "toys 1.2.3",
        "task": "embed",
        "dim": 8,
        "matryoshka": [],
        "multi_vector": False,
        "pooling": "mean",
        "normalize": True,
        "prompts": {"query": "q: "},
        "default_prompt_name": "query",
        "instruction": False,
        "images": False,
        "max_length": 12,
        "limits": {"hard cap": 8192, "position table": 16, "sentence_bert_config.json": 12},
        "vocab_size": 12,
        "dtype": ["float32"],
        "parameters": 96,
        "quantization": None,
    }


def test_show_text(checkpoint: Checkpoint, capsys: Capture) -> None:
    folder = checkpoint(config_sentence_transformers={"prompts": {"query": "q: "}})
    assert main(["show", folder]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  dim                  8" in lines
    assert "  prompts              query: 'q: '" in lines
    assert "  quantization         -" in lines
    [size] = [line for line in lines if line.startswith("  size on disk")]
    assert re.search(r" \d\.\d kB$", size)
    assert "  images               no" in lines


def test_show_multi_vector_and_reranker(checkpoint: Checkpoint, capsys: Capture) -> None:
    assert main(["show", checkpoint("toy-multi"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["multi_vector"], told["images"], told["pooling"]) == (True, True, "its own")
    assert main(["show", checkpoint("toy-rerank"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["task"], told["kind"]) == ("rerank", "generative_text")
    assert "pooling" not in told


@pytest.mark.parametrize("args", [[], ["--family", "toy-generative"]])
def test_show_generative_reranker(checkpoint: Checkpoint, capsys: Capture, args: list[str]) -> None:
    assert main(["show", checkpoint("toy-generative"), "--json", *args]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["family"], told["task"], told["kind"]) == ("toy-generative", "rerank", "generative_text")


@pytest.mark.parametrize(
    ("model_type", "words"),
    [
        ("unheard-of", "docs/writing-a-family.md"),
        ("absent", "pip install theodolite-absent"),
        ("absent-generative", "family 'absent-generative', which is not installed: pip install theodolite-absent"),
    ],
)
def test_show_says_what_is_missing(
    published: None, checkpoint: Checkpoint, capsys: Capture, model_type: str, words: str
) -> None:
    assert main(["show", checkpoint(model_type)]) == 1
    assert words in capsys.readouterr().err


def test_names_of_prompts_cannot_steer_the_terminal(checkpoint: Checkpoint, capsys: Capture) -> None:
    prompts = {"a\x1b[31m\nb": "x", "c": "\x9b2J"}
    assert main(["show", checkpoint(config_sentence_transformers={"prompts": prompts})]) == 0
    out = capsys.readouterr().out
    assert r"a\x1b[31m\nb: 'x'; c: '\x9b2J'" in out
    assert not CONTROL.search(out.replace("\n", ""))


def test_show_does_not_load(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    from theodolite import loading

    monkeypatch.setattr(loading, "model", None)
    assert main(["show", checkpoint()]) == 0


def test_size_leaves_hidden_files_out(checkpoint: Checkpoint) -> None:
    from pathlib import Path

    from theodolite.checkpoint import Checkpoint as Opened

    folder = Path(checkpoint())
    before = show.size(Opened(folder))
    (folder / ".git").mkdir()
    (folder / ".git/pack").write_bytes(b"x" * 1000)
    assert show.size(Opened(folder)) == before


def test_show_error(capsys: Capture) -> None:
    assert main(["show", "/no/such"]) == 1
    assert capsys.readouterr().err.startswith("error: /no/such: no such folder")


def test_families_json(published: None, capsys: Capture) -> None:
    assert main(["families", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [f["family"] for f in told["installed"]] == ["toy-embed", "toy-multi", "toy-rerank", "toy-generative"]
    assert told["installed"][0] == {
        "family": "toy-embed",
        "distribution": "toys",
        "version": "1.2.3",
        "model_types": ["toy-embed"],
    }
    broken = {"name": "toy-broken", "distribution": "toys", "version": "1.2.3"}
    assert {**broken, "error": "ImportError: no module named 'nothing'"} in told["broken"]
    line = "pip install theodolite-absent"
    assert told["available"] == [
        {"family": "absent", "model_types": ["absent", "absent2"], "install": line},
        {"family": "absent-generative", "model_types": ["absent-generative"], "install": line},
        {"family": "absent-rerank", "model_types": ["absent"], "install": line},
    ]
    assert [table["in_use"] for table in told["kernels"]].count(True) == 1
    assert "default" in [table["name"] for table in told["kernels"]]


def test_families_text(published: None, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THEODOLITE_KERNELS", "warp")
    assert main(["families"]) == 0
    out = capsys.readouterr().out
    for line in (
        "  toy-embed       1.2.3    toys          toy-embed",
        "  toy-broken (toys 1.2.3): ImportError: no module named 'nothing'",
        "  absent             pip install theodolite-absent",
        "  none can be chosen: there are no kernels 'warp' here",
    ):
        assert line in out


def test_arch(published: None, capsys: Capture) -> None:
    assert main(["arch"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "embedding:",
        "  absent*    absent, absent2",
        "  toy-embed  toy-embed",
        "",
        "reranker:",
        "  absent-generative*  absent-generative",
        "  absent-rerank*      absent",
        "",
        "from other plugins:",
        "  toy-generative",
        "  toy-multi",
        "  toy-rerank",
    ]


def test_families_outlives_plugins_that_raise(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    class Acme:
        @hookimpl
        def commands(self) -> None:
            raise KeyError("nokey")

        @hookimpl
        def kernels(self) -> None:
            raise SystemExit(3)

    found = (registry.Plugin("acme", "dist-acme", "1", Acme()),)
    monkeypatch.setattr(registry, "discover", lambda group: found if group.endswith(("commands", "kernels")) else ())
    assert main(["families"]) == 0
    out = capsys.readouterr().out
    assert "  acme (dist-acme 1): commands raised KeyError: 'nokey'\n" in out
    assert "  acme (dist-acme 1): kernels raised SystemExit: 3\n" in out
