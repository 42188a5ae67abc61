"""Strict loading, number formats, and quantized layers of different kinds (case D10 and its kind)."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as mlx_nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

import theodolite
from theodolite.errors import CheckpointError, Unsupported
from theodolite.nn import layers
from theodolite.nn import quantized as quantized_layers

TEXTS = ["the cat sat on a mat", "rain", "what falls over the hills is rain"]
WEIGHTS = "model.safetensors"


def rewrite(folder: Path, change: Any, config: dict[str, Any] | None = None) -> None:
    tensors = mx.load(str(folder / WEIGHTS))
    changed = change(tensors)
    mx.eval(changed)
    mx.save_safetensors(str(folder / WEIGHTS), changed)
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **(config or {})}))


def vectors(folder: Path) -> np.ndarray:
    return theodolite.load(folder).embed(TEXTS).vectors


@pytest.mark.parametrize("prefix", ["", "bert.", "model."])
def test_prefixes_and_dropped_heads(write, prefix: str) -> None:
    plain, renamed = write(), write()
    extra = {"cls.predictions.bias": mx.zeros((3,)), "embeddings.position_ids": mx.arange(8)[None]}
    rewrite(renamed, lambda found: {prefix + name: tensor for name, tensor in {**found, **extra}.items()})
    np.testing.assert_array_equal(vectors(renamed), vectors(plain))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_runs_in_float32_on_a_cpu(write, dtype: str) -> None:
    folder, rounded = write(), write()
    half = getattr(mx, dtype)
    rewrite(folder, lambda found: {name: tensor.astype(half) for name, tensor in found.items()})
    rewrite(rounded, lambda found: {name: t.astype(half).astype(mx.float32) for name, t in found.items()})
    embedder = theodolite.load(folder)
    assert {tensor.dtype for _, tensor in tree_flatten(embedder.model.parameters())} == {mx.float32}
    np.testing.assert_array_equal(embedder.embed(TEXTS).vectors, vectors(rounded))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_half_format_that_is_asked_for_is_that_of_the_matrices_on_a_cpu(write, dtype: str) -> None:
    """Norms, sums and activations stay in float32, where no activation overflows and MLX computes fast."""
    half = getattr(mx, dtype)
    embedder = theodolite.load(write(), dtype=dtype)
    matrices = {f"{path}.weight" for path, m in embedder.model.named_modules() if isinstance(m, layers.Linear)}
    found = {name: tensor.dtype for name, tensor in tree_flatten(embedder.model.parameters())}
    assert len(matrices) == 6 * 3
    assert {found.pop(name) for name in matrices} == {half}
    assert set(found.values()) == {mx.float32}
    rounded, exact = embedder.embed(TEXTS).vectors, vectors(write())
    assert ((rounded * exact).sum(axis=1) > 0.9999).all()
    assert not np.array_equal(rounded, exact)


LAYERS = {
    "embeddings.word_embeddings": (8, 64),
    "embeddings.position_embeddings": (4, 32),
    "encoder.layer.0.attention.self.query": (4, 32),
    "encoder.layer.0.output.dense": (4, 32),
    "encoder.layer.1.intermediate.dense": (8, 32),
    "encoder.layer.2.attention.output.dense": (3, 64),
    "encoder.layer.2.attention.self.key": (6, 32),
}


def quantized(found: dict[str, mx.array], keep: bool) -> dict[str, mx.array]:
    """The chosen layers packed, or what they unpack to."""
    made = dict(found)
    for stem, (bits, group) in LAYERS.items():
        weight, scales, biases = mx.quantize(found[f"{stem}.weight"], group_size=group, bits=bits)
        if keep:
            made |= {f"{stem}.weight": weight, f"{stem}.scales": scales, f"{stem}.biases": biases}
        else:
            made[f"{stem}.weight"] = mx.dequantize(weight, scales, biases, group_size=group, bits=bits)
    return made


@pytest.mark.parametrize("prefix", ["", "bert.", "model."])
def test_layers_of_different_bits_and_groups(write, prefix: str) -> None:
    packed, unpacked = write(), write()
    block: dict[str, Any] = {"group_size": 32, "bits": 4, "encoder.layer.1.output.dense": False}
    block |= {prefix + stem: {"bits": bits, "group_size": group} for stem, (bits, group) in LAYERS.items()}
    rewrite(packed, lambda found: quantized(found, keep=True), {"quantization": block})
    rewrite(unpacked, lambda found: quantized(found, keep=False))
    found, wanted = vectors(packed), vectors(unpacked)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert np.abs(found - vectors(write())).max() > 1e-3


def test_packed_tensors_that_do_not_fit_their_layer(write) -> None:
    folder = write({"quantization": {"group_size": 32, "bits": 4}})

    def wrong(found: dict[str, mx.array]) -> dict[str, mx.array]:
        stem = "encoder.layer.0.output.dense"
        weight, scales, biases = mx.quantize(mx.zeros((64, 128)), group_size=32, bits=4)
        return {**found, f"{stem}.weight": weight, f"{stem}.scales": scales, f"{stem}.biases": biases}

    rewrite(folder, wrong)
    with pytest.raises(CheckpointError, match=r"encoder\.layer\.0\.output\.dense"):
        theodolite.load(folder)


def test_twice_the_bits_at_half_the_width_is_no_fit(write) -> None:
    """4 bits of a layer twice as wide have the shape of 8 bits of this one."""
    folder = write({"quantization": {"group_size": 64, "bits": 4}})
    stem = "encoder.layer.0.output.dense"

    def wrong(found: dict[str, mx.array]) -> dict[str, mx.array]:
        rows, width = found[f"{stem}.weight"].shape
        weight, scales, biases = mx.quantize(mx.zeros((rows, 2 * width)), group_size=64, bits=4)
        return {**found, f"{stem}.weight": weight, f"{stem}.scales": scales, f"{stem}.biases": biases}

    rewrite(folder, wrong)
    with pytest.raises(CheckpointError, match="does not unpack"):
        theodolite.load(folder)


def test_layers_stay_packed_on_a_gpu_but_for_a_few_rows() -> None:
    model = mlx_nn.Sequential(layers.Linear(64, 64), layers.Linear(64, 2))
    stored, full = {}, {}
    for name, tensor in tree_flatten(model.parameters()):
        stored[name] = full[name] = tensor
        if name.endswith("weight"):
            stem = name.removesuffix(".weight")
            packed = mx.quantize(tensor, group_size=32, bits=4)
            stored |= dict(zip((name, f"{stem}.scales", f"{stem}.biases"), packed, strict=True))
            full[name] = mx.dequantize(*packed, group_size=32, bits=4)
    checkpoint = SimpleNamespace(path="somewhere", quantization={"group_size": 32, "bits": 4})
    x = mx.random.normal((3, 64))
    model.load_weights(list(full.items()))
    wanted = model(x)
    model.load_weights(list(quantized_layers.prepare(model, stored, checkpoint, keep=True).items()))
    assert isinstance(model.layers[0], layers.QuantizedLinear)
    assert isinstance(model.layers[1], layers.Linear)
    np.testing.assert_allclose(np.array(model(x)), np.array(wanted), atol=1e-4)


@pytest.mark.parametrize("lost", ["biases", "weight"])
def test_a_part_of_a_packed_layer_that_is_missing(write, lost: str) -> None:
    folder = write({"quantization": {"group_size": 32, "bits": 4}})

    def torn(found: dict[str, mx.array]) -> dict[str, mx.array]:
        made = quantized(found, keep=True)
        del made[f"encoder.layer.0.output.dense.{lost}"]
        return made

    rewrite(folder, torn)
    with pytest.raises(CheckpointError, match=rf"output\.dense\.{lost}"):
        theodolite.load(folder)


def test_scales_without_a_layer(write) -> None:
    folder = write()
    rewrite(folder, lambda found: {**found, "encoder.layer.0.nonsense.scales": mx.zeros((2, 2))})
    with pytest.raises(CheckpointError, match="nonsense"):
        theodolite.load(folder)


def test_a_mode_this_mlx_does_not_know_is_named(write) -> None:
    folder = write()
    block = {"quantization": {"group_size": 32, "bits": 4, "mode": "nonsense4"}}
    rewrite(folder, lambda found: quantized(found, keep=True), block)
    with pytest.raises(Unsupported, match="nonsense4"):
        theodolite.load(folder)


@pytest.mark.parametrize("stored", [mx.uint8, mx.int8, mx.int32])
def test_numbers_that_are_no_floats(write, stored: mx.Dtype) -> None:
    """What MLX reads 8-bit floats as is bytes, which would load as numbers of their own."""
    folder = write()
    name = "encoder.layer.0.output.dense.weight"
    rewrite(folder, lambda found: {**found, name: found[name].astype(stored)})
    with pytest.raises(CheckpointError, match=rf"output\.dense\.weight is read as {str(stored).rsplit('.', 1)[-1]}"):
        theodolite.load(folder)


@pytest.mark.parametrize(
    "block",
    [
        {"mode": "mxfp4", "group_size": 32, "bits": 4, "encoder.layer.0.output.dense": {"bits": 4, "group_size": 64}},
        {"group_size": 64, "bits": 4, "some.other.name": {"group_size": 32, "bits": 8, "mode": "mxfp8"}},
        {"mode": "nvfp4", "group_size": 16, "bits": 4, "encoder.layer.0.output.dense": {"mode": "affine"}},
    ],
)
def test_the_mode_of_a_layer_follows_from_its_tensors(write, block) -> None:
    packed, unpacked = write(), write()
    stem = "encoder.layer.0.output.dense"
    parts = mx.quantize(mx.load(str(packed / WEIGHTS))[f"{stem}.weight"], group_size=32, bits=4)
    own = dict(zip((f"{stem}.weight", f"{stem}.scales", f"{stem}.biases"), parts, strict=True))
    rewrite(packed, lambda found: {**found, **own}, {"quantization": block})
    full = mx.dequantize(*parts, group_size=32, bits=4)
    rewrite(unpacked, lambda found: {**found, f"{stem}.weight": full})
    wanted = theodolite.load(unpacked).embed(["the cat"]).vectors
    np.testing.assert_allclose(theodolite.load(packed).embed(["the cat"]).vectors, wanted, atol=1e-6)


@pytest.mark.parametrize("said", ["affine", "mxfp8", "nvfp4"])
def test_a_block_that_names_another_mode(write, said: str) -> None:
    folder = write()
    stem = "encoder.layer.0.output.dense"
    weight, scales = mx.quantize(mx.load(str(folder / WEIGHTS))[f"{stem}.weight"], mode="mxfp4")
    block = {"quantization": {"mode": said}}
    rewrite(folder, lambda found: {**found, f"{stem}.weight": weight, f"{stem}.scales": scales}, block)
    with pytest.raises(CheckpointError, match=f"mode 'mxfp4', config.json says {said}"):
        theodolite.load(folder)


@pytest.mark.parametrize("mode", ["mxfp4", "nvfp4", "mxfp8"])
def test_floating_point_modes(write, mode: str) -> None:
    packed, unpacked = write(), write()
    stem = "encoder.layer.0.output.dense"
    weight, scales = mx.quantize(mx.load(str(packed / WEIGHTS))[f"{stem}.weight"], mode=mode)
    rewrite(
        packed,
        lambda found: {**found, f"{stem}.weight": weight, f"{stem}.scales": scales},
        {"quantization": {"mode": mode}},
    )
    full = mx.dequantize(weight, scales, mode=mode).astype(mx.float32)
    rewrite(unpacked, lambda found: {**found, f"{stem}.weight": full})
    np.testing.assert_allclose(vectors(packed), vectors(unpacked), atol=1e-5)
