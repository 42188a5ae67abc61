"""The NumPy attention against MLX's: masks of every kind, grouped heads, blocks of long rows."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from theodolite.nn import kernels, numpy_kernels
from theodolite.nn.masks import Mask

KINDS = [None, {}, {"causal": True}, {"window": 9}, {"causal": True, "window": 30}]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("batch", "heads", "groups", "length"), [(1, 4, 4, 7), (3, 4, 2, 50), (2, 2, 1, 1100)])
def test_both_attentions_agree(batch, heads, groups, length, kind):
    rng = np.random.default_rng(length)

    def draw(n):
        return mx.array(rng.standard_normal((batch, length, n, 8)).astype(np.float32)).swapaxes(1, 2)

    q, k, v = draw(heads), draw(groups), draw(groups)
    real = np.ones((batch, length), np.int32)
    real[0, length // 2 + 1 :] = 0  # padding on the right, and in the last row on the left
    real[-1, : length // 3] = 0
    mask = None if kind is None else Mask(mx.array(real), **kind)
    made = np.array(numpy_kernels.attention(q, k, v, 0.35, mask))
    assert np.isfinite(made).all()
    np.testing.assert_allclose(made, np.array(kernels.attention(q, k, v, 0.35, mask)), atol=2e-6)
    whole = mx.fast.scaled_dot_product_attention(
        q, k, v, scale=0.35, mask=None if mask is None else mask.block(0, length)
    )
    np.testing.assert_allclose(made, np.array(whole.swapaxes(1, 2)).reshape(batch, length, -1), atol=2e-6)


def test_other_types_go_to_mlx():
    q = mx.random.normal((1, 2, 5, 8)).astype(mx.bfloat16)
    assert numpy_kernels.attention(q, q, q, 0.35, None).dtype == mx.bfloat16
