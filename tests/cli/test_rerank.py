"""`theodolite rerank`: scores in the documents' order, the ranking, and what it refuses."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import numpy as np
import pytest

from theodolite_cli.main import main

Checkpoint = Callable[..., str]
Capture = pytest.CaptureFixture[str]
DOCUMENTS = ["-d", "car", "-d", "a kitten", "-d", "größe"]


def rerank(*args: str) -> int:
    return main(["rerank", *args])


def logits() -> np.ndarray:
    column = np.random.default_rng(7).normal(size=(12, 8))[:, 0].astype(np.float32)
    return np.array([column[[2, 5, 3, *ids, 3]].sum() for ids in ([7], [4, 6], [9])])


def test_text(checkpoint: Checkpoint, capsys: Capture) -> None:
    assert rerank("-m", checkpoint("toy-rerank"), "-q", " cat ", *DOCUMENTS, "--top-n", "2") == 0
    out, err = capsys.readouterr()
    scores = 1 / (1 + np.exp(-logits()))
    rows = [f"  [{i}] {scores[i]:.6f} {label}" for i, label in enumerate(("car", "a kitten", "größe"))]
    best = [rows[i] for i in np.argsort(-scores)[:2]]
    assert out.splitlines() == ["scores (document order):", *rows, "", "ranking (most relevant first):", *best]
    assert err == "toy-rerank: generative_text, 3 documents, 16 prompt tokens, max_length 16\n"


def test_json(checkpoint: Checkpoint, capsys: Capture) -> None:
    assert rerank("-m", checkpoint("toy-rerank"), "-q", " cat ", *DOCUMENTS, "--top-n", "2", "--json") == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert err == ""
    np.testing.assert_allclose(answer.pop("scores"), 1 / (1 + np.exp(-logits())), atol=1e-6)
    assert answer == {
        "model": "toy-rerank",
        "model_type": "toy-rerank",
        "kind": "generative_text",
        "max_length": 16,
        "batch_size": 8,
        "prompt_tokens": 16,
        "query": "cat",
        "documents": ["car", "a kitten", "größe"],
        "ranking": np.argsort(-logits())[:2].tolist(),
    }


def test_raw_scores(checkpoint: Checkpoint, capsys: Capture) -> None:
    assert rerank("-m", checkpoint("toy-rerank"), "-q", "cat", *DOCUMENTS, "--raw-scores", "--json") == 0
    np.testing.assert_allclose(json.loads(capsys.readouterr().out)["scores"], logits(), atol=1e-5)


def test_long_labels_are_cut(checkpoint: Checkpoint, capsys: Capture) -> None:
    text = "a\ncat " + "x" * 60
    assert rerank("-m", checkpoint("toy-rerank"), "-q", "cat", "-d", text) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.endswith(" a cat " + "x" * 51 + "...")


def test_documents_from_stdin(checkpoint: Checkpoint, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"cat\ncar\n")))
    assert rerank("-m", checkpoint("toy-rerank"), "-q", "cat", "-d", "-", "--json") == 0
    assert json.loads(capsys.readouterr().out)["documents"] == ["cat", "car"]


def test_images(checkpoint: Checkpoint, capsys: Capture, tmp_path) -> None:
    file = str(tmp_path / "red.png")
    pytest.importorskip("PIL.Image").new("RGB", (2, 2), "red").save(file)
    folder = checkpoint("toy-rerank")
    assert rerank("-m", folder, "-q", "cat", "--query-image", file, "--image", file, "-d", "car", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["query"] == {"text": "cat", "image": file}
    assert answer["documents"] == ["car", file]


def test_truncation_is_told(checkpoint: Checkpoint, capsys: Capture) -> None:
    assert rerank("-m", checkpoint("toy-rerank"), "-q", "cat", "-d", "a " * 20, "--json") == 0
    assert capsys.readouterr().err == "warning: 8 tokens were cut to keep every input within max_length 16\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["-d", "car"], ["no query", "-q", "--query-image"]),
        (["-q", "  ", "-d", "car"], ["no query"]),
        (["-q", "cat"], ["no documents", "-d", "--image"]),
        (["-q", "cat", "-d", "car", "-d", " "], ["document 1 is empty"]),
        (["-q", "cat", "--image", "none.png"], ["--image none.png: no such file"]),
        (["--query-image", "none.png", "-d", "car"], ["--query-image none.png: no such file"]),
        (["-q", "cat", "-d", "nan"], ["reranker inference returned an invalid numeric result"]),
    ],
)
def test_errors(checkpoint: Checkpoint, capsys: Capture, args: list[str], words: list[str]) -> None:
    assert rerank("-m", checkpoint("toy-rerank"), *args) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert not [word for word in words if word not in err], err


def test_wrong_task(checkpoint: Checkpoint, capsys: Capture) -> None:
    assert rerank("-m", checkpoint("toy-embed"), "-q", "cat", "-d", "car") == 1
    assert "use it with `theodolite embed`" in capsys.readouterr().err
    assert main(["embed", "-m", checkpoint("toy-rerank"), "-p", "cat"]) == 1
    assert "use it with `theodolite rerank`" in capsys.readouterr().err


@pytest.mark.parametrize("args", [["-q", "cat", "-d", "car"], ["-m", "x", "--top-n", "0"]])
def test_usage_errors(capsys: Capture, args: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        rerank(*args)
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
