"""`theodolite embed`: what it prints where, and what it refuses."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from theodolite.errors import CONTROL
from theodolite_cli.main import main

Checkpoint = Callable[..., str]
Capture = pytest.CaptureFixture[str]


def embed(*args: str) -> int:
    return main(["embed", *args])


def stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


def test_text(checkpoint: Checkpoint, capsys: Capture) -> None:
    assert embed("-m", checkpoint(), "-p", "a cat", "-p", "a kitten", "-p", "car") == 0
    out, err = capsys.readouterr()
    *vectors, blank, title, first, second, third = out.splitlines()
    parsed = np.array([json.loads(line) for line in vectors])
    assert parsed.shape == (3, 8)
    assert blank == ""
    assert title == "cosine similarity (3 inputs):"
    cosines = parsed @ parsed.T
    for i, line in enumerate((first, second, third)):
        assert line == f"  [{i}] " + " ".join(f"{x:7.4f}" for x in cosines[i])
    assert err == "toy-embed: 3 inputs, 11 prompt tokens, dim 8, max_length 16\n"


def test_one_input_has_no_matrix(checkpoint: Checkpoint, capsys: Capture) -> None:
    assert embed("-m", checkpoint(), "-p", "a cat") == 0
    [line] = capsys.readouterr().out.splitlines()
    assert len(json.loads(line)) == 8


def test_json(checkpoint: Checkpoint, capsys: Capture) -> None:
    assert embed("-m", checkpoint(), "-p", "a cat", "-p", "größe", "--json", "--dimensions", "4") == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert err == ""
    assert list(answer) == [
        "model",
        "model_type",
        "dim",
        "max_length",
        "multi_vector",
        "prompt_tokens",
        "inputs",
        "shapes",
        "similarity",
        "embeddings",
    ]
    assert answer["inputs"] == ["a cat", "größe"]
    assert answer["shapes"] == [[4], [4]]
    assert (answer["dim"], answer["prompt_tokens"], answer["multi_vector"]) == (4, 7, False)
    vectors = np.array(answer["embeddings"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(answer["similarity"], vectors @ vectors.T, atol=1e-6)


def test_json_holds_no_control_character(checkpoint: Checkpoint, capsys: Capture) -> None:
    assert embed("-m", checkpoint(), "-p", "\x1b[31m\x7f\x9b", "--json") == 0
    out = capsys.readouterr().out
    assert json.loads(out)["inputs"] == ["\x1b[31m\x7f\x9b"]
    assert not CONTROL.search(out.removesuffix("\n"))


def test_json_of_one_input_has_null_similarity(checkpoint: Checkpoint, capsys: Capture) -> None:
    assert embed("-m", checkpoint(), "-p", "cat", "--json") == 0
    assert json.loads(capsys.readouterr().out)["similarity"] is None


def test_multi_vector(checkpoint: Checkpoint, capsys: Capture) -> None:
    folder = checkpoint("toy-multi")
    assert embed("-m", folder, "-p", "a cat", "-p", "car", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["shapes"] == [[4, 8], [3, 8]]
    query, document = (np.array(rows) for rows in answer["embeddings"])
    assert answer["similarity"][0][1] == pytest.approx((query @ document.T).max(axis=1).sum(), abs=1e-5)
    assert embed("-m", folder, "-p", "a cat", "-p", "car") == 0
    first, _, _, title, *_ = capsys.readouterr().out.splitlines()
    assert np.array(json.loads(first)).shape == (4, 8)
    assert title == "MaxSim similarity (2 inputs):"


@pytest.mark.parametrize("args", [[], ["-p", "-"]])
@pytest.mark.parametrize("data", [b"a cat\nkitten\n", b"a cat\r\nkitten", b"\xef\xbb\xbfa cat\nkitten\n"])
def test_stdin(
    checkpoint: Checkpoint, capsys: Capture, monkeypatch: pytest.MonkeyPatch, args: list, data: bytes
) -> None:
    stdin(monkeypatch, data)
    assert embed("-m", checkpoint(), *args, "--json") == 0
    assert json.loads(capsys.readouterr().out)["inputs"] == ["a cat", "kitten"]


def test_stdin_between_texts(checkpoint: Checkpoint, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, b"car\n")
    assert embed("-m", checkpoint(), "-p", "cat", "-p", "-", "-p", "kitten", "--json") == 0
    assert json.loads(capsys.readouterr().out)["inputs"] == ["cat", "car", "kitten"]


def test_prompt_name_and_instruction(checkpoint: Checkpoint, capsys: Capture) -> None:
    side = {"prompts": {"query": "query "}, "default_prompt_name": "query"}
    folder = checkpoint(config_sentence_transformers=side)

    def vector(*args: str) -> tuple[list[float], str]:
        assert embed("-m", folder, "--json", *args) == 0
        out, err = capsys.readouterr()
        return json.loads(out)["embeddings"][0], err

    plain, err = vector("-p", "cat")
    assert "note:" in err
    assert "--prompt-name query" in err  # sentence-transformers would have put it there
    assert vector("-p", "cat", "--prompt-name", "query")[0] == vector("-p", "query cat")[0] != plain
    same, err = vector("-p", "cat", "--instruction", "query")
    assert same == plain
    assert "warning: --instruction is ignored: family 'toy-embed'" in err
    folder = checkpoint("toy-multi")
    told, err = vector("-p", "cat", "--instruction", "query")
    assert (len(told), err) == (4, "")


@pytest.mark.parametrize(
    ("p", "measure"),
    [("0", lambda v: np.abs(v).max() / 32760), ("1", lambda v: np.abs(v).sum()), ("3", lambda v: (abs(v) ** 3).sum())],
)
def test_normalize(checkpoint: Checkpoint, capsys: Capture, p: str, measure: Callable[[np.ndarray], float]) -> None:
    assert embed("-m", checkpoint(), "-p", "cat", "--json", "--embd-normalize", p) == 0
    assert measure(np.array(json.loads(capsys.readouterr().out)["embeddings"][0])) == pytest.approx(1, abs=1e-5)


def test_no_normalize_and_pooling(checkpoint: Checkpoint, capsys: Capture) -> None:
    vectors = []
    for mode in ("cls", "last", "mean"):
        assert embed("-m", checkpoint(), "-p", "cat", "--json", "--embd-normalize", "-1", "--pooling", mode) == 0
        vectors.append(json.loads(capsys.readouterr().out)["embeddings"][0])
    table = np.random.default_rng(7).normal(size=(12, 8))
    np.testing.assert_allclose(vectors, [table[2], table[3], table[[2, 5, 3]].mean(axis=0)], atol=1e-6)


def test_truncation_is_told(checkpoint: Checkpoint, capsys: Capture) -> None:
    assert embed("-m", checkpoint(), "-p", "a cat a car", "-p", "cat", "--max-length", "4", "--json") == 0
    out, err = capsys.readouterr()
    assert err == "warning: 2 tokens were cut to keep every input within max_length 4\n"
    assert json.loads(out)["max_length"] == 4


def test_too_many_for_a_matrix(checkpoint: Checkpoint, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, b"cat\n" * 1001)
    assert embed("-m", checkpoint(), "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["similarity"] is None
    assert err == "warning: no similarity matrix: 1001 inputs are more than 1000\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["-p", ""], ["prompt 0 is empty"]),
        (["-p", "a", "-p", ""], ["prompt 1 is empty"]),
        (["-p", "cat", "--image", "none.png"], ["--image none.png: no such file"]),
        (["-p", "cat", "--image", "http://x/y.png"], ["--image http://x/y.png", "server", "download"]),
        (["-p", "cat", "--image", "/"], ["--image /: this is a folder"]),
        (["-m", "", "-p", "cat"], ["the model's name is empty"]),
        (["-p", "cat", "--dimensions", "9"], ["dimensions must be between 1 and 8"]),
        (["-p", "cat", "-p", "nan"], ["invalid numeric result"]),
        (["-p", "cat", "--prompt-name", "x"], ["no prompt named 'x'", "none"]),
        (["-p", "cat", "--family", "toy-multi"], ["'toy-multi' does not serve", "toy-embed"]),
        (["-p", "cat", "--family", "nothing"], ["no family 'nothing'"]),
        (["-p", "cat", "--family", "toy-broken"], ["toy-broken", "no module named 'nothing'"]),
        (["-p", "cat", "--kernels", "warp"], ["no kernels 'warp'", "default"]),
        (["-p", "cat", "--revision", "v1"], ["is a folder", "v1"]),
    ],
)
def test_errors(checkpoint: Checkpoint, capsys: Capture, args: list[str], words: list[str]) -> None:
    assert embed("-m", checkpoint(), *args) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert not [word for word in words if word not in err], err


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", ["nothing to embed", "-p", "--image", "stdin"]),
        (b"cat\n\ncar\n", ["line 2 of stdin is empty"]),
        (b"cat\n\xff\n", ["not UTF-8", "byte 4", "0xff"]),
    ],
)
def test_stdin_errors(capsys: Capture, monkeypatch: pytest.MonkeyPatch, data: bytes, words: list[str]) -> None:
    stdin(monkeypatch, data)
    assert embed() == 1
    err = capsys.readouterr().err
    assert not [word for word in words if word not in err], err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--dimensions", "0"], ["--dimensions", "at least 1", "'0'"]),
        (["--max-length", "x"], ["--max-length", "'x'"]),
        (["--batch-size", "-4"], ["--batch-size"]),
        (["--embd-normalize", "-2"], ["--embd-normalize", "'-2'"]),
        (["--pooling", "none"], ["--pooling", "one vector per token", "pools inside"]),
        (["--pooling", "rank"], ["--pooling", "theodolite rerank"]),
        (["--pooling", "max"], ["--pooling", "THEODOLITE_EMBEDDING_POOLING=max"]),
        (["--pooling", "median"], ["--pooling", "mean, cls, last"]),
        (["--dtype", "int8"], ["--dtype", "float32"]),
        (["--dim", "4"], ["unrecognized arguments: --dim"]),
    ],
)
def test_usage_errors(capsys: Capture, args: list[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        embed("-p", "cat", *args)
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "--help" in err
    assert not [word for word in words if word not in err], err


def test_multi_vector_refuses_pooling(checkpoint: Checkpoint, capsys: Capture) -> None:
    assert embed("-m", checkpoint("toy-multi"), "-p", "cat", "--pooling", "mean") == 1
    assert "--pooling mean" in capsys.readouterr().err


def test_images(checkpoint: Checkpoint, capsys: Capture, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    file = tmp_path / "red.png"
    image.new("RGB", (2, 2), "red").save(file)
    assert embed("-m", checkpoint("toy-multi"), "--image", str(file), "-p", "cat", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["inputs"] == ["cat", str(file)]  # texts first
    assert answer["shapes"] == [[3, 8], [3, 8]]
    assert embed("-m", checkpoint(), "--image", str(file)) == 1
    assert "does not accept images" in capsys.readouterr().err
    (tmp_path / "text.png").write_text("not an image")
    assert embed("-m", checkpoint("toy-multi"), "--image", str(tmp_path / "text.png")) == 1
    assert "text.png" in capsys.readouterr().err
