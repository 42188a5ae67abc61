"""What a configuration leaves out is what the reference takes then, and what stands elsewhere is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import theodolite
from theodolite.checkpoint import Checkpoint
from theodolite.errors import CheckpointError
from theodolite.pixels import QwenProcessor
from theodolite.values import ImageItem
from theodolite_col.tiles import Processor, tower_config

CONFIG, PREPROCESSOR, COMBINED = "config.json", "preprocessor_config.json", "processor_config.json"
CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


@pytest.fixture
def edited(checkpoint, tmp_path):
    """``edited(name, change)``: a copy of a checkpoint whose files ``change(files)`` has changed."""

    def make(name: str, change: Callable[[dict[str, Any]], None]) -> Path:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        shutil.copytree(checkpoint(name)[0], folder)
        files = {file.name: json.loads(file.read_text()) for file in folder.glob("*.json")}
        change(files)
        for file in folder.glob("*.json"):
            file.unlink()
        for file, value in files.items():
            (folder / file).write_text(json.dumps(value))
        return folder

    return make


def vector(folder: Path, picture) -> np.ndarray:
    return theodolite.load(folder).embed([ImageItem(picture(96, 64, 0.5))]).vectors[0]


def text_config(files: dict[str, Any]) -> dict[str, Any]:
    config = files[CONFIG].get("vlm_config") or files[CONFIG]
    return config.get("text_config") or config


def rotary(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Sets, or with None takes out, a key beside the rotary parameters and within them."""

    def change(files: dict[str, Any]) -> None:
        config = text_config(files)
        blocks = [config, *(config[name] for name in ("rope_scaling", "rope_parameters") if config.get(name))]
        for block in blocks:
            block.pop(key, None)
        if value is not None:
            blocks[-1][key] = value

    return change


@pytest.mark.parametrize(
    ("name", "key", "reference"),
    [
        ("qwen3_vl", "rope_theta", 500_000.0),
        ("colqwen2_5", "rope_theta", 1_000_000.0),
        ("qwen3_vl", "mrope_interleaved", True),
    ],
)
def test_rotary_parameters(edited, picture, name, key, reference):
    silent, stated = (vector(edited(name, rotary(key, value)), picture) for value in (None, reference))
    np.testing.assert_array_equal(silent, stated)


def test_colors_of_the_qwen_processor(edited):
    def silent(files):
        for key in CLIP:
            files[PREPROCESSOR].pop(key, None)

    for name in ("qwen3_vl", "colqwen2_5"):
        folder = edited(name, silent)
        found = QwenProcessor.of(Checkpoint(folder), {**json.loads((folder / CONFIG).read_text())["vision_config"]}, 14)
        assert found.pixels.mean == tuple(CLIP["image_mean"])
        assert found.pixels.std == tuple(CLIP["image_std"])


@pytest.mark.parametrize("name", ["qwen3_vl", "colqwen2_5", "colidefics3"])
@pytest.mark.parametrize("both", [True, False])
def test_the_combined_file_comes_first(checkpoint, edited, picture, name, both):
    def moved(files):
        files[COMBINED] = {"image_processor": files[PREPROCESSOR], "processor_class": "Acme"}
        files[PREPROCESSOR] = {**files[PREPROCESSOR], "rescale_factor": 0.5}
        if not both:
            del files[PREPROCESSOR]

    np.testing.assert_array_equal(vector(edited(name, moved), picture), vector(checkpoint(name)[0], picture))


def test_idefics3_without_a_model_type(edited):
    def silent(files):
        files[CONFIG]["vision_config"] = {"image_size": 32}

    found = tower_config(Checkpoint(edited("colidefics3", silent)))
    assert (found.hidden_size, found.num_attention_heads, found.patch_size) == (1152, 16, 32)


def test_the_size_of_a_page(edited):
    def size(value):
        def change(files):
            files[PREPROCESSOR].pop("size", None)
            if value is not None:
                files[PREPROCESSOR]["size"] = value

        return Checkpoint(edited("colidefics3", change))

    assert Processor.of(size(None)).longest_edge == 1456
    with pytest.raises(CheckpointError, match="longest_edge"):
        Processor.of(size({"height": 512, "width": 1024}))


def test_deepstack_layers_in_any_order(checkpoint, edited, picture):
    """Features reach the decoder in the order of the tower's layers; the list only says whose merger is whose."""

    def backwards(files):
        vision = files[CONFIG]["vision_config"]
        vision["deepstack_visual_indexes"] = vision["deepstack_visual_indexes"][::-1]

    folder = edited("qwen3_vl", backwards)
    count = len(json.loads((folder / CONFIG).read_text())["vision_config"]["deepstack_visual_indexes"])
    assert count > 1
    tensors = load_file(folder / "model.safetensors")
    swapped = dict(tensors)
    for name, tensor in tensors.items():
        for i in range(count):
            if f"deepstack_merger_list.{i}." in name:
                swapped[name.replace(f"list.{i}.", f"list.{count - 1 - i}.")] = tensor
    save_file(swapped, folder / "model.safetensors")
    np.testing.assert_array_equal(vector(folder, picture), vector(checkpoint("qwen3_vl")[0], picture))
