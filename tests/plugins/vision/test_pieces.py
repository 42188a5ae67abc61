"""The pieces of the vision families, each against its definition or the reference's own numbers."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import theodolite_col.tiles
import theodolite_nemotron.tiles
from theodolite.nn import qwen_vision, vision
from theodolite.pixels import LANCZOS, Pixels
from theodolite_col import qwen2_5_vision
from theodolite_qwen3_vl import vision as qwen3_vision


def test_pixel_shuffle_joins_squares():
    patches = mx.arange(2 * 16).reshape(2, 16, 1)  # two tiles of 4 x 4 patches
    joined = vision.pixel_shuffle(patches, 2)
    assert joined.shape == (2, 4, 4)
    assert joined[0].tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]


def test_placing_features_leaves_the_embeddings_alone():
    embeddings = mx.zeros((1, 4, 2))
    placed = vision.place(embeddings, np.array([1, 3]), mx.ones((2, 2)))
    assert placed[0, :, 0].tolist() == [0, 1, 0, 1]
    assert embeddings.sum().item() == 0


@pytest.mark.parametrize("grid", [(1, 1), (4, 4), (3, 11), (10, 7), (2, 15)])
def test_every_token_is_in_its_window_once(grid):
    order, windows = qwen2_5_vision.by_window(grid, 4)
    assert sorted(order.tolist()) == list(range(grid[0] * grid[1]))
    assert len(windows) <= 4
    first = 0
    for count, size in windows:
        for _ in range(count):
            members = order[first : first + size]
            assert len({(t // grid[1] // 4, t % grid[1] // 4) for t in members.tolist()}) == 1
            first += size
    assert first == len(order)


def test_windows_are_as_attention_with_a_mask():
    mx.random.seed(0)
    attention = qwen_vision.Attention(16, 2)
    x = mx.random.normal((12, 16))
    turn = qwen_vision.rotation(np.array([[i // 4, i % 4] for i in range(12)]), 8)
    whole = [np.array(attention(x[a:b], tuple(t[:, :, a:b] for t in turn))) for a, b in ((0, 3), (3, 6), (6, 12))]
    made = attention(x, turn, [(2, 3), (1, 6)])
    np.testing.assert_allclose(np.array(made), np.concatenate(whole), atol=1e-6)


@pytest.mark.parametrize("grid", [(1, 1), (2, 2), (6, 6), (4, 10), (40, 2)])
def test_positions_are_interpolated_between_the_corners_of_the_table(grid):
    where = np.stack(np.mgrid[0 : grid[0], 0 : grid[1]], axis=-1).reshape(-1, 2)
    corners, shares = qwen3_vision.corner_shares(where, grid, 6)
    assert corners.min() >= 0
    assert corners.max() < 36
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-6)
    table = np.stack(np.mgrid[0:6, 0:6], axis=-1).reshape(-1, 2)  # a table that holds its own coordinates
    found = (table[corners] * shares[..., None]).sum(axis=1)
    np.testing.assert_allclose(found, where * 5 / np.maximum(np.array(grid) - 1, 1), atol=1e-5)


@pytest.mark.parametrize("shape", [(4, 3, 2, 8, 8), (4, 2, 8, 8, 3)])
def test_a_patch_filter_is_read_in_either_layout(shape):
    published = np.arange(4 * 3 * 2 * 64).reshape(4, 3, 2, 8, 8)
    stored = published if shape[1] == 3 else published.transpose(0, 2, 3, 4, 1)
    assert (np.array(qwen_vision.flat_filter(mx.array(stored), 3)) == published.reshape(4, -1)).all()


@pytest.mark.parametrize(
    ("size", "grid"),
    [  # the reference's own answers, at the published size
        ((40, 32), (3, 2)),
        ((512, 512), (1, 1)),
        ((1024, 512), (2, 1)),
        ((1700, 2200), (2, 3)),
        ((3000, 400), (6, 1)),
        ((1763, 508), (4, 1)),
    ],
)
def test_nemotron_cuts_by_ratio_and_area(size, grid):
    process = theodolite_nemotron.tiles.Processor(pixels=Pixels(), tile=512, most=6, thumbnail=True)
    assert process.grid(*size) == grid


@pytest.mark.parametrize(
    ("size", "longest"),
    [  # the reference's own answers, at the published size
        ((64, 48), (2048, 1536)),
        ((850, 1100), (1582, 2048)),
        ((400, 90), (2048, 460)),
        ((5, 600), (18, 2048)),
    ],
)
def test_idefics_scales_the_longest_edge_up_or_down(size, longest):
    pixels = Pixels(resample=LANCZOS)
    process = theodolite_col.tiles.Processor(pixels=pixels, tile=512, longest_edge=2048, split=True, side=8)
    assert process.longest(*size) == longest
    width, height = process.whole_tiles(*longest)
    assert (width % 512, height % 512) == (0, 0)
    assert max(width, height) == 2048
