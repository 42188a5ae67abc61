"""What an embedder does between the stages: batches, norms, dimensions, bad numbers, bad inputs."""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import theodolite
from theodolite import embedder as module
from theodolite import engine
from theodolite.errors import InvalidResult, RequestError, Unsupported
from theodolite.values import Embeddings, Row

TEXTS = ["the cat sat on a mat", "rain", "what falls over the hills is rain", "query"]


@pytest.fixture
def embedder(write) -> theodolite.Embedder:
    return theodolite.load(write())


def test_any_batch_size_gives_the_same_vectors(embedder) -> None:
    texts = [text * (i % 5 + 1) for i, text in enumerate(TEXTS * 6)]
    alone = embedder.embed(texts, batch_size=1).vectors
    for batch_size in (2, 7, 100):
        np.testing.assert_allclose(embedder.embed(texts, batch_size=batch_size).vectors, alone, atol=1e-5)


def test_batches_are_sorted_bounded_and_complete(embedder) -> None:
    rows = [Row(tuple(range(1 + 37 * i % 900)), image=object() if i == 5 else None) for i in range(60)]
    batches = list(embedder.batches(rows, batch_size=16))
    assert sorted(i for batch in batches for i in batch) == list(range(60))
    assert [5] in batches
    for batch in batches:
        lengths = [len(rows[i].input_ids) for i in batch]
        assert len(batch) <= 16
        assert len(batch) * max(lengths) <= 16_384
        assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize("seed", range(8))
def test_rows_are_cut_where_passes_and_padding_cost_least(seed: int) -> None:
    rng = np.random.default_rng(seed)
    widths = sorted((int(n) for n in rng.integers(1, 200, 9)), reverse=True)
    batch_size, batch_tokens = int(rng.integers(2, 10)), int(rng.integers(100, 700))

    def cost(starts: tuple[int, ...]) -> float:
        parts = [widths[a:b] for a, b in zip((0, *starts), (*starts, 9), strict=True)]
        if any(len(part) > batch_size or (len(part) > 1 and len(part) * part[0] > batch_tokens) for part in parts):
            return math.inf
        return sum(len(part) * part[0] + engine.PASS_TOKENS for part in parts)

    every = (starts for count in range(9) for starts in itertools.combinations(range(1, 9), count))
    parts = engine.cut(widths, batch_size, batch_tokens)
    assert [i for part in parts for i in range(9)[part]] == list(range(9))
    assert cost(tuple(part.start for part in parts[1:])) == min(map(cost, every))


def test_texts_tokens_and_counts(embedder) -> None:
    [row] = embedder.encode([module.as_item("the cat sat")])
    made = embedder.embed(["the cat sat", list(row.input_ids)])
    assert made.prompt_tokens == 2 * len(row.input_ids)
    np.testing.assert_allclose(made.vectors[0], made.vectors[1], atol=1e-6)
    assert np.asarray(made).shape == (2, 64)
    assert made.vectors.dtype == np.float32


def test_dimensions_keep_the_first_components_and_normalize_again(embedder) -> None:
    whole = embedder.embed(TEXTS).vectors
    cut = embedder.embed(TEXTS, dimensions=10).vectors
    first = whole[:, :10].astype(np.float64)
    np.testing.assert_allclose(cut, first / np.linalg.norm(first, axis=1, keepdims=True), atol=1e-6)
    for bad in (0, -1, 65):
        with pytest.raises(RequestError, match=f"between 1 and 64 for this model, got {bad}"):
            embedder.embed(TEXTS, dimensions=bad)


@pytest.mark.parametrize(
    "argument",
    [
        *({"batch_size": value} for value in (0, -1, "4", 2.0, True)),
        *({"dimensions": value} for value in (2.5, "8", True, np.float32(3))),
        *({"embd_normalize": value} for value in (-2, 1.5, "2")),
    ],
)
def test_arguments_are_whole_numbers(embedder, argument) -> None:
    [name] = argument
    with pytest.raises(RequestError, match=f"^{name} must be .*, got "):
        embedder.embed(TEXTS, **argument)
    whole = embedder.embed(TEXTS, batch_size=np.int64(2), dimensions=np.int32(8), embd_normalize=np.int8(2))
    assert whole.vectors.shape == (4, 8)


@pytest.mark.parametrize("value", [0, -3, "5", 2.5, True])
def test_options_are_checked_as_they_enter(write, value) -> None:
    with pytest.raises(RequestError, match=r"max_length must be (a whole number, )?1 or more, got "):
        theodolite.load(write(), max_length=value)
    with pytest.raises(RequestError, match="dtype must be one of auto, float32, float16, bfloat16, got 'float8'"):
        theodolite.load(write(), dtype="float8")


@pytest.mark.parametrize(
    "inputs", [b"ab", {"a": 1}, {"a", "b"}, 5, None, np.array("a"), [b"ab"], [bytearray(b"ab")], [memoryview(b"ab")]]
)
def test_inputs_of_another_kind_are_refused(embedder, inputs) -> None:
    with pytest.raises(RequestError, match="should be"):
        embedder.embed(inputs)


def test_inputs_may_be_numpys(embedder) -> None:
    wanted = embedder.embed(TEXTS[:2]).vectors
    np.testing.assert_array_equal(embedder.embed(np.array(TEXTS[:2])).vectors, wanted)
    ids = np.array([[5, 6, 7], [7, 6, 5]])
    np.testing.assert_array_equal(embedder.embed(ids).vectors, embedder.embed(ids.tolist()).vectors)
    with pytest.raises(RequestError, match="empty"):
        embedder.embed(np.array([]))
    with pytest.raises(RequestError, match="not int64"):
        embedder.embed(np.array([1, 2, 3]))


@pytest.mark.parametrize(
    ("p", "size"),
    [
        (1, lambda v: np.abs(v).sum()),
        (2, lambda v: math.sqrt((v * v).sum())),
        (3, lambda v: (np.abs(v) ** 3).sum() ** (1 / 3)),
        (40, lambda v: (np.abs(v) ** 40).sum() ** (1 / 40)),
        (0, lambda v: np.abs(v).max() / 32760),
        (-1, lambda v: 1.0),
    ],
)
def test_norms(embedder, p, size) -> None:
    raw = embedder.embed(TEXTS, embd_normalize=-1).vectors.astype(np.float64)
    found = embedder.embed(TEXTS, embd_normalize=p).vectors
    for row, vector in zip(raw, found, strict=True):
        np.testing.assert_allclose(vector, row / size(row), rtol=2e-5)
    zeros = np.zeros((2, 5), np.float32)
    np.testing.assert_array_equal(module.normalize(zeros, p), zeros)
    with pytest.raises(RequestError, match="embd_normalize"):
        embedder.embed(TEXTS, embd_normalize=-2)


def test_config_can_turn_normalization_off(write, embedder) -> None:
    raw = theodolite.load(write({"normalize": False})).embed(TEXTS).vectors
    np.testing.assert_allclose(raw, embedder.embed(TEXTS, embd_normalize=-1).vectors, atol=1e-6)


def poisoned(folder: Path, token: int) -> theodolite.Embedder:
    """One token whose row is not a number (case D05)."""
    tensors = mx.load(str(folder / "model.safetensors"))
    table = np.array(tensors["embeddings.word_embeddings.weight"])
    table[token] = np.nan
    tensors["embeddings.word_embeddings.weight"] = mx.array(table)
    mx.eval(tensors)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    return theodolite.load(folder)


@pytest.mark.parametrize("norm", [None, -1, 0, 1, 2, 5])
def test_what_is_no_number_is_an_error_and_nothing_else_suffers(write, norm) -> None:
    folder = write()
    token = theodolite.load(folder).tokenizer.id_of("rain")
    embedder = poisoned(folder, token)
    for texts in (["rain"], ["the cat", "rain"]):
        with pytest.raises(InvalidResult):
            embedder.embed(texts, embd_normalize=norm)
    assert np.isfinite(embedder.embed(["the cat"], embd_normalize=norm).vectors).all()


@pytest.mark.parametrize("bad", [[""], [], "a text", [None], [3], [{}], ["ok", ""]])
def test_bad_inputs_are_request_errors(embedder, bad) -> None:
    with pytest.raises(RequestError):
        embedder.embed(bad)


def test_an_image_for_a_text_model_names_its_place(embedder) -> None:
    from PIL import Image

    with pytest.raises(RequestError, match=r"input\[1\] is an image"):
        embedder.embed(["a text", Image.new("RGB", (4, 4))])


def test_max_length_only_lowers_and_what_is_cut_is_counted(write) -> None:
    assert theodolite.load(write(), max_length=1000).max_length == 24
    short = theodolite.load(write(), max_length=5)
    made = short.embed(["the cat sat on a mat"])
    assert made.prompt_tokens == 5
    assert made.truncated == 3


def test_multi_vector_results_are_no_array() -> None:
    made = Embeddings([np.zeros((2, 3)), np.zeros((1, 3))], 3)
    assert len(made) == 2
    with pytest.raises(ValueError, match="multi-vector"):
        np.asarray(made)


def test_pooling_that_a_family_fixes_cannot_be_chosen(write, monkeypatch, caplog) -> None:
    from theodolite.checkpoint import Checkpoint
    from theodolite.engine import resolve_pooling
    from theodolite.values import Fit, Pooling, Profile

    fixed = Profile(family="own", fit=Fit.EXACT, vocab_size=1, dim=1, pooling=Pooling.CLS, pooling_fixed=True)
    checkpoint = Checkpoint(write())
    with pytest.raises(Unsupported, match="own"):
        resolve_pooling(checkpoint, fixed, "mean")
    monkeypatch.setenv("THEODOLITE_EMBEDDING_POOLING", "mean")
    assert resolve_pooling(checkpoint, fixed) is Pooling.CLS
    assert "ignored" in caplog.text


def test_the_buffer_pool_is_bounded_while_lengths_change(embedder) -> None:
    """Case D03, in small: new lengths never hit the pool, so without a bound it only grows."""
    from theodolite.engine import CACHE_LIMIT

    embedder.embed(TEXTS)
    active = mx.get_active_memory()
    for i in range(60):
        embedder.embed([("the cat " * (1 + (7 * i + j) % 11)) for j in range(1 + i % 16)])
        assert mx.get_cache_memory() <= CACHE_LIMIT
    assert mx.get_active_memory() <= active * 1.01 + 1_000_000


def test_a_fixed_width_counts_when_batches_are_cut(embedder, monkeypatch) -> None:
    """Families that pad every row to one width compute that width, however short the rows are."""
    monkeypatch.setattr(embedder, "profile", dataclasses.replace(embedder.profile, width=64))
    rows = [Row((2, 5, 3), None, None, 3, 0)] * 10
    assert sorted(len(batch) for batch in embedder.batches(rows, batch_size=16, batch_tokens=256)) == [2, 4, 4]


def test_the_memory_limit_is_lent_for_a_pass() -> None:
    """Two models of a server run at once; the limit is one for the process, and has to be what it was in the end."""
    before = mx.set_memory_limit(1 << 40)
    try:

        def run(rows: int) -> None:
            for _ in range(50):
                engine._computed(mx.ones((rows, 8)) @ mx.ones((8, 8)))

        threads = [threading.Thread(target=run, args=(rows,)) for rows in (5, 7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert mx.set_memory_limit(1 << 40) == 1 << 40
    finally:
        mx.set_memory_limit(before)
