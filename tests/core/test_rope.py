"""Rotary embeddings: every scaling against its formula written out with plain numbers, in both spellings."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest

from theodolite.errors import CheckpointError, Unsupported
from theodolite.nn.rope import Rope, RopeConfig, Sections

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


def llama3_by_hand(i: int, base: float, dim: int) -> float:
    inverse = base ** (-2 * i / dim)
    wave = 2 * math.pi / inverse
    low, high = 64 / 1.0, 64 / 4.0
    if wave < high:
        return inverse
    if wave > low:
        return inverse / 8.0
    smooth = (64 / wave - 1.0) / (4.0 - 1.0)
    return (1 - smooth) * inverse / 8.0 + smooth * inverse


def yarn_by_hand(i: int, base: float, dim: int) -> float:
    def turn(rotations: float) -> float:
        return dim * math.log(128 / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(turn(32)), 0), min(math.ceil(turn(1)), dim - 1)
    ramp = min(max((i - low) / (high - low), 0), 1)
    inverse = base ** (-2 * i / dim)
    return inverse / 4.0 * ramp + inverse * (1 - ramp)


@pytest.mark.parametrize(
    ("scaling", "formula"),
    [
        (None, lambda i, base, dim: base ** (-2 * i / dim)),
        ({"type": "linear", "factor": 4.0}, lambda i, base, dim: base ** (-2 * i / dim) / 4.0),
        (LLAMA3, llama3_by_hand),
        (YARN, yarn_by_hand),
    ],
    ids=["default", "linear", "llama3", "yarn"],
)
@pytest.mark.parametrize("spelling", [4, 5])
def test_frequencies(scaling, formula, spelling: int) -> None:
    base, dim = 500.0, 32
    if spelling == 4:
        config = {"rope_theta": base, "rope_scaling": scaling}
    else:
        config = {"rope_parameters": {**(scaling or {"rope_type": "default"}), "rope_theta": base}}
    found = 1 / RopeConfig.of(config, dim).wavelengths()
    np.testing.assert_allclose(found, [formula(i, base, dim) for i in range(dim // 2)], rtol=1e-12)


def test_parameters_per_layer_type() -> None:
    config = {"rope_parameters": {"full_attention": {"rope_theta": 7.0}, "sliding_attention": {"rope_theta": 9.0}}}
    assert RopeConfig.of(config, 8, layer_type="full_attention").base == 7.0
    assert RopeConfig.of(config, 8, layer_type="sliding_attention").base == 9.0
    with pytest.raises(Unsupported, match="differ by layer type"):
        RopeConfig.of(config, 8)
    shared = {"rope_parameters": {"full_attention": {"rope_theta": 7.0}, "sliding_attention": {"rope_theta": 7.0}}}
    assert RopeConfig.of(shared, 8).base == 7.0


def test_nulls_and_missing_keys() -> None:
    for config in ({}, {"rope_theta": None, "rope_scaling": None}, {"rope_parameters": None}):
        assert RopeConfig.of(config, 8, base=123.0).base == 123.0


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, 0.1 * math.log(4) + 1),
        ({"mscale": 0.7, "mscale_all_dim": 1.0}, (0.07 * math.log(4) + 1) / (0.1 * math.log(4) + 1)),
        ({"attention_factor": 1.5}, 1.5),
        ({"factor": 1.0}, 1.0),
    ],
)
def test_yarn_magnitude(extra, expected) -> None:
    found = RopeConfig.of({"rope_parameters": {**YARN, **extra, "rope_theta": 500.0}}, 32).attention_factor
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "config",
    [
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}},
        {"partial_rotary_factor": 0.5},
    ],
)
def test_what_is_not_served_is_refused(config) -> None:
    with pytest.raises(Unsupported):
        RopeConfig.of(config, 32)


@pytest.mark.parametrize(
    "config",
    [
        {"rope_scaling": {"type": "linear"}},
        {"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 64}},
        {"rope_scaling": {"type": "yarn", "factor": 4.0}},
        {"rope_scaling": {"type": "llama3", "factor": 4.0}},
        {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_parameters": {"rope_theta": 5000.0}},
    ],
)
def test_keys_that_are_missing_or_contradict_each_other(config) -> None:
    with pytest.raises(CheckpointError, match="rope"):
        RopeConfig.of(config, 32)


def test_both_spellings_that_say_the_same() -> None:
    new = {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}
    found = RopeConfig.of({"rope_parameters": new, "rope_scaling": {"type": "linear", "factor": 4.0}}, 32)
    assert found == RopeConfig.of({"rope_parameters": new}, 32)


def test_the_original_length_beside_the_block_wins() -> None:
    block = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    both = RopeConfig.of({"rope_parameters": block, "original_max_position_embeddings": 128}, 32)
    assert both == RopeConfig.of({"rope_parameters": {**block, "original_max_position_embeddings": 128}}, 32)


def by_hand(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], axis=-1)


def test_rotation_by_position_and_by_given_positions() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 11, 8)).astype(np.float32)
    config = RopeConfig(8, base=50.0)
    rope = Rope(config)
    angles = np.arange(11)[:, None] / config.wavelengths()
    np.testing.assert_allclose(np.array(rope(mx.array(x))), by_hand(x, angles), atol=2e-6)
    positions = np.stack([np.arange(11), np.arange(11)[::-1]])
    given = np.array(rope(mx.array(x), mx.array(np.ascontiguousarray(positions))))
    np.testing.assert_allclose(given, by_hand(x, (positions[..., None] / config.wavelengths())[:, None]), atol=2e-6)


@pytest.mark.parametrize(
    ("sections", "axes"),
    [
        (Sections((2, 1, 1)), [0, 0, 1, 2]),
        (Sections((2, 1, 1), interleaved=True), [0, 1, 2, 0]),
        (Sections((3, 3, 2), interleaved=True), [0, 1, 2, 0, 1, 2, 0, 1]),
    ],
)
def test_three_axes_share_the_frequencies(sections: Sections, axes: list[int]) -> None:
    dim = 2 * len(axes)
    config = RopeConfig(dim, base=50.0, sections=sections)
    x = np.random.default_rng(0).standard_normal((1, 1, 5, dim)).astype(np.float32)
    positions = np.array([[[0, 1, 2, 3, 4]], [[5, 5, 6, 6, 7]], [[9, 8, 9, 8, 9]]])
    angles = np.stack([positions[axis, 0] / config.wavelengths()[i] for i, axis in enumerate(axes)], axis=-1)
    found = np.array(Rope(config)(mx.array(x), mx.array(positions)))
    np.testing.assert_allclose(found, by_hand(x, angles), atol=2e-6)
    with pytest.raises(Unsupported, match="mrope_section"):
        Rope(RopeConfig(dim))(mx.array(x), mx.array(positions))
