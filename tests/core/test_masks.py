"""Masks against brute force, written whole and in blocks."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from theodolite.nn import kernels, masks

ROWS = np.array([[1, 1, 1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1, 1], [1] * 9])


def by_hand(row: np.ndarray, causal: bool, window: int | None) -> np.ndarray:
    length = len(row)
    seen = np.zeros((length, length), bool)
    for q in range(length):
        for k in range(length):
            open_ = row[k] == 1 and (not causal or k <= q) and (window is None or abs(q - k) < window)
            seen[q, k] = open_
    return seen


@pytest.mark.parametrize("window", [None, 1, 2, 4, 100])
@pytest.mark.parametrize("causal", [False, True])
def test_real_queries_see_exactly_what_they_may(causal: bool, window: int | None) -> None:
    mask = masks.Mask(mx.array(ROWS), causal=causal, window=window)
    written = np.broadcast_to(np.array(mask.additive()), (3, 1, 9, 9))[:, 0]
    for row, found in zip(ROWS, written, strict=True):
        seen = found == 0
        assert set(np.unique(found[~seen])) <= {-np.inf}
        np.testing.assert_array_equal(seen[row == 1], by_hand(row, causal, window)[row == 1])
        assert seen.any(axis=1).all(), "an empty row of a softmax is NaN"


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_are_parts_of_the_whole(causal: bool, window: int | None) -> None:
    mask = masks.Mask(mx.array(ROWS), causal=causal, window=window)
    whole = np.broadcast_to(np.array(mask.additive()), (3, 1, 9, 9))
    part = np.array(mask.block(2, 5, keys=slice(1, 7)))
    np.testing.assert_array_equal(np.broadcast_to(part, (3, 1, 3, 6)), whole[:, :, 2:5, 1:7])


def test_a_row_of_padding_alone_is_finite() -> None:
    q = mx.random.normal((1, 2, 4, 8))
    for mask in (masks.padding(mx.zeros((1, 4))), masks.causal(mx.zeros((1, 4))), masks.window(mx.zeros((1, 4)), 2)):
        found = np.array(kernels.attention(q, q, q, 0.3, mask))
        assert np.isfinite(found).all()


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("causal", [False, True])
def test_long_attention_in_blocks_is_the_same(monkeypatch, causal: bool, window: int | None) -> None:
    rng = np.random.default_rng(1)
    q, k, v = (mx.array(rng.standard_normal((2, heads, 37, 8)).astype(np.float32)) for heads in (4, 2, 2))
    real = np.ones((2, 37), np.int32)
    real[0, 30:] = 0
    mask = masks.Mask(mx.array(real), causal=causal, window=window)
    whole = np.array(kernels.attention(q, k, v, 0.35, mask))
    monkeypatch.setattr(kernels, "QUERY_BLOCK", 8)
    blocks = np.array(kernels.attention(q, k, v, 0.35, masks.Mask(mx.array(real), causal=causal, window=window)))
    for row in range(2):
        np.testing.assert_allclose(blocks[row, real[row] == 1], whole[row, real[row] == 1], atol=1e-6)
