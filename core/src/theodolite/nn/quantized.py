"""Quantized tensors as mlx-community stores them: ``NAME.weight`` (packed), ``NAME.scales``, ``NAME.biases``.

Whether a layer is quantized is decided by its ``.scales`` alone, and bits and group size by the shapes of its tensors:
the packed width is ``in * bits / 32`` and the scales' width ``in / group_size``, and ``in`` is known from the model. So
per-layer entries of the ``quantization`` block hold whatever prefix they are written with. The mode follows from the
tensors too (`MODES`). The block is only held against all that: it has to name the mode, and its bits and group size
must not make the same shapes out of another width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as mlx_nn
from mlx.utils import tree_flatten

from theodolite.errors import CheckpointError, Unsupported

if TYPE_CHECKING:
    from theodolite.checkpoint import Checkpoint

WORD = 32
MODES = {(4, 32): "mxfp4", (8, 32): "mxfp8", (4, 16): "nvfp4"}
"""The modes whose scales are bytes, by bits and group size; affine ones are floats."""
BITS, GROUP_SIZES = (2, 3, 4, 5, 6, 8), (32, 64, 128)
FEW_ROWS = 32
"""A layer with fewer rows (two answers of a head) is unpacked on every device, as a packed product gains nothing."""


def prepare(
    model: mlx_nn.Module, weights: dict[str, mx.array], checkpoint: Checkpoint, *, keep: bool
) -> dict[str, mx.array]:
    """Make weights and model agree about quantized layers.

    :param keep: quantize the model's layers and leave the tensors packed (GPU); else unpack the tensors (CPU, where
        a quantized product is many times slower than a dense one).
    :raises CheckpointError: for packed tensors that do not fit the layer they belong to.
    """
    stems = sorted(name.removesuffix(".scales") for name in weights if name.endswith(".scales"))
    if not stems:
        return weights
    parameters = dict(tree_flatten(model.parameters()))
    settings = {stem: _settings(stem, weights, parameters, checkpoint) for stem in stems}
    packed = {stem: s for stem, s in settings.items() if keep and parameters[f"{stem}.weight"].shape[0] >= FEW_ROWS}
    if packed:
        mlx_nn.quantize(model, class_predicate=lambda path, module: packed.get(path, False))
    dense = dict(weights)
    for stem in settings.keys() - packed.keys():
        setting = settings[stem]
        weight, scales = dense.pop(f"{stem}.weight"), dense.pop(f"{stem}.scales")
        biases = dense.pop(f"{stem}.biases", None)
        if setting["mode"] == "affine":
            scales = scales.astype(mx.float32)
            biases = None if biases is None else biases.astype(mx.float32)
        dense[f"{stem}.weight"] = mx.dequantize(weight, scales, biases, dtype=mx.float32, **setting)
    return dense


def _settings(
    stem: str, weights: dict[str, mx.array], parameters: dict[str, Any], checkpoint: Checkpoint
) -> dict[str, Any]:
    weight, parameter = weights.get(f"{stem}.weight"), parameters.get(f"{stem}.weight")
    if weight is None:
        raise CheckpointError(f"{checkpoint.path}: {stem}.scales has no {stem}.weight beside it")
    if parameter is None:
        raise CheckpointError(f"{checkpoint.path}: tensor {stem}.scales has no place in the model")
    scales = weights[f"{stem}.scales"]
    width, packed, groups = parameter.shape[-1], weight.shape[-1], scales.shape[-1]
    bits, group_size = packed * WORD // width, width // groups
    mode = "affine" if mx.issubdtype(scales.dtype, mx.floating) else MODES.get((bits, group_size), "unknown")
    _check_mode(stem, mode, checkpoint)
    fits = packed * WORD == bits * width and groups * group_size == width and weight.dtype == mx.uint32
    if mode == "affine":
        fits = fits and bits in BITS and group_size in GROUP_SIZES
        fits = fits and not _another_width(bits, group_size, packed, groups, checkpoint)
    if not fits or tuple(weight.shape[:-1]) != tuple(parameter.shape[:-1]):
        raise CheckpointError(
            f"{checkpoint.path}: {stem}.weight {list(weight.shape)} with {groups} groups a row does not unpack to the "
            f"{list(parameter.shape)} that config.json asks for"
        )
    if mode == "affine" and f"{stem}.biases" not in weights:
        raise CheckpointError(f"{checkpoint.path}: tensor {stem}.biases is missing beside {stem}.scales")
    return {"bits": bits, "group_size": group_size, "mode": mode}


def _another_width(bits: int, group_size: int, packed: int, groups: int, checkpoint: Checkpoint) -> bool:
    """Whether a tensor is one of another width, packed as the block says: 4 bits of a row twice as long look like 8."""
    block = checkpoint.quantization
    entries = [(part.get("bits"), part.get("group_size")) for part in block.values() if isinstance(part, dict)]
    said_bits, said_group = block.get("bits"), block.get("group_size")
    if said_bits is None or said_group is None or (bits, group_size) in ((said_bits, said_group), *entries):
        return False
    return bool(packed * WORD == said_bits * said_group * groups)


def _check_mode(stem: str, mode: str, checkpoint: Checkpoint) -> None:
    block = checkpoint.quantization
    entries = [block, *(entry for entry in block.values() if isinstance(entry, dict))]
    said = sorted({str(entry.get("mode") or "affine") for entry in entries})
    for name in said:
        try:
            mx.quantize(mx.zeros((32, 64)), mode=name)
        except (ValueError, TypeError, RuntimeError) as error:
            raise Unsupported(
                f"{checkpoint.path}: quantization mode {name!r} is not supported by this MLX: {error}"
            ) from None
    if mode not in said:
        raise CheckpointError(
            f"{checkpoint.path}: {stem}.scales are those of mode {mode!r}, config.json says {', '.join(said)}"
        )
