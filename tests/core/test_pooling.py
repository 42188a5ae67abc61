"""Pooling: every spelling of a mode, every refused one, and the four formulas on either padding."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import theodolite
from theodolite import pooling
from theodolite.checkpoint import Checkpoint
from theodolite.errors import CheckpointError, Unsupported
from theodolite.values import Pooling

LEGACY = [
    ({"pooling_mode_cls_token": True}, Pooling.CLS),
    ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, Pooling.MEAN),
    ({"pooling_mode_max_tokens": True}, Pooling.MAX),
    ({"pooling_mode_lasttoken": True}, Pooling.LASTTOKEN),
    ({}, Pooling.MEAN),
    ({"pooling_mode": "cls"}, Pooling.CLS),
    ({"pooling_mode": "mean"}, Pooling.MEAN),
    ({"pooling_mode": "max"}, Pooling.MAX),
    ({"pooling_mode": "lasttoken", "include_prompt": True}, Pooling.LASTTOKEN),
]
REFUSED = [
    ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
    ({"pooling_mode": "weightedmean"}, "weightedmean"),
    ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len_tokens"),
    ({"pooling_mode": "mean", "include_prompt": False}, "include_prompt"),
    ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "more than one"),
    ({"pooling_mode": ["cls", "mean"]}, "pooling_mode"),
]


@pytest.mark.parametrize(("config", "mode"), LEGACY)
def test_every_spelling(write, config, mode) -> None:
    assert pooling.read(Checkpoint(write(files={"1_Pooling/config.json": config}))) is mode


@pytest.mark.parametrize(("config", "word"), REFUSED)
def test_unsupported_modes_are_load_errors_that_name_them(write, config, word) -> None:
    with pytest.raises(Unsupported, match=word):
        theodolite.load(write(files={"1_Pooling/config.json": config}))


def test_no_pooling_module_leaves_it_to_the_family(write) -> None:
    assert pooling.read(Checkpoint(write(drop=("1_Pooling/config.json",)))) is None


def test_a_module_that_is_named_but_missing(write) -> None:
    modules = [{"idx": 0, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    folder = write(files={"modules.json": modules}, drop=("1_Pooling/config.json",))
    with pytest.raises(CheckpointError, match="1_Pooling"):
        pooling.read(Checkpoint(folder))


def test_the_pooling_folder_is_the_one_modules_json_names(write) -> None:
    modules = [{"idx": 0, "path": "7_Pool", "type": "sentence_transformers.models.Pooling"}]
    files = {"modules.json": modules, "7_Pool/config.json": {"pooling_mode": "max"}}
    assert pooling.read(Checkpoint(write(files=files))) is Pooling.MAX


HIDDEN = np.random.default_rng(0).standard_normal((2, 5, 3)).astype(np.float32)
RIGHT = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
LEFT = RIGHT[:, ::-1].copy()


def by_hand(rows: np.ndarray, mode: Pooling) -> np.ndarray:
    return {
        Pooling.CLS: rows[0],
        Pooling.LASTTOKEN: rows[-1],
        Pooling.MEAN: rows.sum(axis=0) / len(rows),
        Pooling.MAX: rows.max(axis=0),
    }[mode]


@pytest.mark.parametrize("mode", list(Pooling))
@pytest.mark.parametrize("mask", [RIGHT, LEFT], ids=["right", "left"])
def test_the_formulas(mode: Pooling, mask: np.ndarray) -> None:
    found = np.array(pooling.pool(mx.array(HIDDEN), mx.array(mask), mode))
    for row, keep, hidden in zip(found, mask, HIDDEN, strict=True):
        np.testing.assert_allclose(row, by_hand(hidden[keep == 1], mode), atol=1e-6)


def test_a_row_of_padding_takes_its_ends() -> None:
    mask = mx.zeros((2, 5), mx.int32)
    np.testing.assert_array_equal(np.array(pooling.pool(mx.array(HIDDEN), mask, Pooling.LASTTOKEN)), HIDDEN[:, -1])
    np.testing.assert_array_equal(np.array(pooling.pool(mx.array(HIDDEN), mask, Pooling.CLS)), HIDDEN[:, 0])
    assert np.array(pooling.pool(mx.array(HIDDEN), mask, Pooling.MEAN)).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("variable", ["THEODOLITE_EMBEDDING_POOLING", "MLXCEL_EMBEDDING_POOLING"])
def test_the_flag_beats_the_variable_beats_the_checkpoint(write, monkeypatch, variable, caplog) -> None:
    folder = write()
    assert theodolite.load(folder).pooling is Pooling.MEAN
    monkeypatch.setenv(variable, "max")
    assert theodolite.load(folder).pooling is Pooling.MAX
    assert f"pooling max is set by {variable}" in caplog.text
    assert theodolite.load(folder, pooling="last").pooling is Pooling.LASTTOKEN
    monkeypatch.setenv(variable, "nonsense")
    with pytest.raises(Unsupported, match=f"{variable}: 'nonsense' is not supported"):
        theodolite.load(folder)
