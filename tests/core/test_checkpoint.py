"""What is on disk: half a checkpoint never loads, and the message names the file or tensor (case D09 and its kind)."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import theodolite
from theodolite.checkpoint import Checkpoint
from theodolite.errors import CheckpointError, Unsupported

WEIGHTS = "model.safetensors"


def split(folder: Path, shards: int = 2, lost: int | None = None) -> None:
    """Cut the weights into shards with an index; leave shard number ``lost`` out."""
    tensors = mx.load(str(folder / WEIGHTS))
    (folder / WEIGHTS).unlink()
    names, places = sorted(tensors), {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[i::shards]}
        places |= dict.fromkeys(part, file)
        if i != lost:
            mx.save_safetensors(str(folder / file), part)
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def refused(folder: Path, *words: str, kind: type[Exception] = CheckpointError) -> None:
    with pytest.raises(kind) as caught:
        theodolite.load(folder)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_shards_give_the_same_vectors(write) -> None:
    whole, parts = write(), write()
    split(parts)
    first, second = (theodolite.load(folder).embed(["the cat sat"]).vectors for folder in (whole, parts))
    np.testing.assert_array_equal(first, second)


def test_shards_without_an_index_load_when_all_are_there(write) -> None:
    folder = write()
    split(folder, 3)
    (folder / f"{WEIGHTS}.index.json").unlink()
    assert theodolite.load(folder).dim == 64
    (folder / "model-00002-of-00003.safetensors").unlink()
    refused(folder, "model-00002-of-00003.safetensors")


def test_a_missing_shard_is_named(write) -> None:
    folder = write()
    split(folder, lost=1)
    refused(folder, "model-00002-of-00002.safetensors")


def test_a_tensor_that_its_shard_lacks_is_named(write) -> None:
    folder = write()
    split(folder)
    index = folder / f"{WEIGHTS}.index.json"
    places = json.loads(index.read_text())
    places["weight_map"]["encoder.layer.9.nowhere"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(places))
    refused(folder, "encoder.layer.9.nowhere")


def test_an_index_cannot_name_a_file_outside(write) -> None:
    folder = write()
    split(folder)
    index = folder / f"{WEIGHTS}.index.json"
    places = json.loads(index.read_text())
    places["weight_map"]["embeddings.LayerNorm.bias"] = "../elsewhere.safetensors"
    index.write_text(json.dumps(places))
    refused(folder, "../elsewhere.safetensors")


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.3, 0.999])
def test_truncated_weights_are_refused(write, share: float) -> None:
    folder = write()
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[: int(len(whole) * share)])
    refused(folder, WEIGHTS)


def test_a_git_lfs_pointer_is_named_as_one(write) -> None:
    folder = write()
    (folder / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n")
    refused(folder, WEIGHTS, "LFS")


def test_a_missing_tensor_is_named_as_the_file_names_it(write) -> None:
    folder = write()
    tensors = mx.load(str(folder / WEIGHTS))
    del tensors["encoder.layer.1.output.dense.weight"]
    mx.save_safetensors(str(folder / WEIGHTS), tensors)
    refused(folder, "encoder.layer.1.output.dense.weight", "missing")


def test_an_extra_tensor_is_named(write) -> None:
    folder = write()
    tensors = mx.load(str(folder / WEIGHTS))
    tensors["encoder.layer.7.output.dense.weight"] = mx.zeros((2, 2))
    mx.save_safetensors(str(folder / WEIGHTS), tensors)
    refused(folder, "encoder.layer.7.output.dense.weight", "no place")


def test_a_misshapen_tensor_is_named_with_both_shapes(write) -> None:
    refused(write({"intermediate_size": 95}), "[96, 64]", "[95, 64]")


def test_a_module_folder_nobody_applies_is_refused(write) -> None:
    folder = write()
    (folder / "2_Dense").mkdir()
    mx.save_safetensors(str(folder / "2_Dense" / WEIGHTS), {"linear.weight": mx.zeros((8, 64))})
    refused(folder, "2_Dense.linear.weight")


def test_links_are_followed_and_dangling_ones_named(write, tmp_path: Path) -> None:
    folder = write()
    snapshot = tmp_path / "models--acme--tiny" / "snapshots" / "0123abcd"
    blobs = tmp_path / "models--acme--tiny" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for i, file in enumerate(sorted(file for file in folder.rglob("*") if file.is_file())):
        target = snapshot / file.relative_to(folder)
        target.parent.mkdir(exist_ok=True)
        (blobs / str(i)).write_bytes(file.read_bytes())
        os.symlink(blobs / str(i), target)
    embedder = theodolite.load(snapshot)
    assert embedder.label == "tiny"
    expected = theodolite.load(folder).embed(["rain"]).vectors
    np.testing.assert_array_equal(embedder.embed(["rain"]).vectors, expected)
    (snapshot / WEIGHTS).resolve().unlink()
    refused(snapshot, WEIGHTS, "link")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", WEIGHTS])
def test_a_missing_file_is_named(write, name: str) -> None:
    refused(write(drop=(name,)), name)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "1_Pooling/config.json", "tokenizer_config.json"])
def test_a_broken_file_is_named(write, name: str) -> None:
    folder = write()
    (folder / name).write_text('{"model_type": ')
    refused(folder, name)


def test_a_byte_order_mark_is_no_part_of_a_file(write) -> None:
    folder = write()
    config = Checkpoint(folder).config
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8-sig")
    assert Checkpoint(folder).config == config


@pytest.mark.parametrize(("text", "kind"), [("null", "null"), ("[1]", "a list"), ("7", "7"), ('"x"', '"x"')])
def test_a_file_without_an_object_is_named(write, text: str, kind: str) -> None:
    for name in ("config.json", "tokenizer_config.json"):
        folder = write()
        (folder / name).write_text(text)
        refused(folder, f"{name}: an object was expected, not {kind}")
    folder = write()
    (folder / "modules.json").write_text("null")
    refused(folder, "modules.json: a list of objects was expected")


def test_a_file_nested_without_end_is_named(write) -> None:
    folder = write()
    (folder / "config.json").write_text("[" * 100_000 + "]" * 100_000)
    refused(folder, "config.json", "nested too deeply")


@pytest.mark.parametrize("key", ["quantization", "quantization_config"])
@pytest.mark.parametrize("value", ["x", "", 0, False, [4]])
def test_quantization_that_is_no_object_is_refused(write, key: str, value: object) -> None:
    refused(write({key: value}), f"config.json: {key} should be an object, not ")


@pytest.mark.parametrize("value", ["yes", 0, 1, []])
def test_switches_are_true_or_false(write, value: object) -> None:
    refused(write({"normalize": value}), "config.json: normalize should be true or false, not ")
    for key in ("include_prompt", "pooling_mode_mean_tokens"):
        files = {"1_Pooling/config.json": {key: value}}
        refused(write(files=files), f"1_Pooling/config.json: {key} should be true or false, not ")


def test_an_adapter_alone_says_to_merge(write) -> None:
    folder = write()
    (folder / WEIGHTS).rename(folder / "adapter_model.safetensors")
    refused(folder, "adapter", "merge", kind=Unsupported)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "nowhere")


def test_facts_of_a_checkpoint(write) -> None:
    checkpoint = Checkpoint(write({"normalize": False}))
    assert checkpoint.model_type == "bert"
    assert checkpoint.architecture == "BertModel"
    assert checkpoint.normalize is False
    assert checkpoint.pooling_folder == "1_Pooling"
    assert not checkpoint.is_classifier
    assert checkpoint.quantization == {}


def test_the_single_file_comes_before_an_index(write) -> None:
    """A leftover index beside it names shards that transformers does not look at."""
    folder = write()
    places = {"weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(places))
    assert "a" not in Checkpoint(folder).weights()


def test_a_module_folder_that_is_not_listed_is_no_part_of_the_model(write) -> None:
    folder = write(files={"modules.json": [{"type": "sentence_transformers.models.Transformer", "path": ""}]})
    (folder / "2_Dense").mkdir()
    shutil.copy(folder / WEIGHTS, folder / "2_Dense" / WEIGHTS)
    assert not any(name.startswith("2_Dense") for name in Checkpoint(folder).weights())
    (folder / "modules.json").unlink()
    assert any(name.startswith("2_Dense") for name in Checkpoint(folder).weights())
