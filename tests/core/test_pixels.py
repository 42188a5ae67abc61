"""Image processing: sizes, layouts and bounds. The golden sizes come from transformers' Qwen2-VL processor."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from theodolite.checkpoint import Checkpoint
from theodolite.errors import CheckpointError, RequestError, Unsupported
from theodolite.nn import qwen_vision
from theodolite.pixels import Pixels, QwenProcessor

SETTINGS = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2, "min_pixels": 4096, "max_pixels": 49152}


def processor(folder, vision=None, **settings):
    import json

    (folder / "config.json").write_text("{}")
    (folder / "preprocessor_config.json").write_text(json.dumps(SETTINGS | settings))
    return QwenProcessor.of(Checkpoint(folder), {"patch_size": 16} | (vision or {}), 16)


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ((192, 96), (192, 96)),
        ((80, 112), (64, 128)),  # 2.5 and 3.5 steps: a half goes to the even number
        ((420, 300), (256, 160)),  # over the upper bound: scaled from the original size, then down to whole tokens
        ((40, 22), (96, 64)),  # under the lower bound
        ((5, 700), (32, 768)),
    ],
)
def test_an_image_is_seen_in_whole_tokens_within_the_bounds(tmp_path, given, seen):
    assert processor(tmp_path).size(*given) == seen


def test_bounds_are_read_in_both_spellings_and_pixels_come_first(tmp_path):
    sizes = {"shortest_edge": 1024, "longest_edge": 2048}
    both = processor(tmp_path, size=sizes)
    assert (both.min_pixels, both.max_pixels) == (4096, 49152)
    alone = processor(tmp_path, min_pixels=None, max_pixels=None, size=sizes)
    assert (alone.min_pixels, alone.max_pixels) == (1024, 2048)


def test_the_patches_of_a_token_are_neighbours_and_a_still_image_fills_both_frames(tmp_path):
    image = Image.fromarray(np.arange(64 * 96 * 3, dtype=np.uint32).reshape(64, 96, 3).astype(np.uint8))
    patches = processor(tmp_path, min_pixels=1, image_mean=[0.5] * 3, image_std=[0.5] * 3)(image)
    assert (patches.rows, patches.columns, patches.tokens, patches.grid) == (4, 6, 6, (2, 3))
    pixels = patches.pixels.reshape(24, 3, 2, 16, 16)
    assert (pixels[:, :, 0] == pixels[:, :, 1]).all()
    scaled = (np.asarray(image, np.float32) / 255 - 0.5) / 0.5
    for n, (row, column) in enumerate(qwen_vision.patch_positions(patches)):
        wanted = scaled[16 * row : 16 * row + 16, 16 * column : 16 * column + 16].transpose(2, 0, 1)
        np.testing.assert_allclose(pixels[n, :, 0], wanted, atol=1e-6)
    assert qwen_vision.patch_positions(patches)[:5].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2]]


def test_a_strip_is_refused(tmp_path):
    with pytest.raises(RequestError, match="3 x 700 pixels"):
        processor(tmp_path).size(3, 700)


def test_files_that_disagree_about_the_patches_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"patch_size 16, config\.json says 14"):
        processor(tmp_path, vision={"patch_size": 14})


@pytest.mark.parametrize("key", ["do_resize", "do_rescale", "do_normalize"])
def test_a_step_that_is_switched_off_is_refused_by_name(tmp_path, key):
    with pytest.raises(Unsupported, match=key):
        processor(tmp_path, **{key: False})


@pytest.mark.parametrize("mean", [[0.5, 0.5], "half", [0.5, 0.5, None]])
def test_a_mean_that_is_no_triple_is_refused(tmp_path, mean):
    with pytest.raises(CheckpointError, match="image_mean"):
        processor(tmp_path, image_mean=mean)


def test_an_image_of_the_right_size_is_not_resampled():
    image = Image.new("RGB", (8, 8))
    assert Pixels().resize(image, 8, 8) is image


def test_text_stands_on_a_line_and_an_image_on_a_grid(tmp_path):
    process = processor(tmp_path, min_pixels=1)
    images = [process(Image.new("RGB", (96, 64))), process(Image.new("RGB", (32, 96)))]
    ids = qwen_vision.expand([7, 9, 7, 9, 7, 7], 9, images)
    assert ids == [7, *[9] * 6, 7, *[9] * 3, 7, 7]
    time, row, column = qwen_vision.token_positions(ids, 9, images).tolist()
    assert time == [0, 1, 1, 1, 1, 1, 1, 4, 5, 5, 5, 8, 9]
    assert row == [0, 1, 1, 1, 2, 2, 2, 4, 5, 6, 7, 8, 9]
    assert column == [0, 1, 2, 3, 1, 2, 3, 4, 5, 5, 5, 8, 9]
    with pytest.raises(CheckpointError, match="image token 9 stands 1 times in a prompt with 2 images"):
        qwen_vision.expand([9], 9, images)
