"""From a checkpoint to a model with its parameters: strict, and evaluated on this thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as mlx_nn
from mlx.utils import tree_flatten, tree_unflatten

from theodolite.errors import CheckpointError
from theodolite.nn import kernels, layers, quantized

if TYPE_CHECKING:
    from theodolite.checkpoint import Checkpoint
    from theodolite.registry import Family

GROUP_BYTES = 64 * 1024 * 1024
"""What is read and converted at once: enough for several threads, so little that a half-precision file is never held
twice."""


def model(family: Family, checkpoint: Checkpoint, dtype: str = "auto") -> mlx_nn.Module:
    """Build the family's model and fill in every parameter.

    :param dtype: ``auto`` computes in float32 on a CPU and as stored on a GPU; else one of `limits.DTYPES`. On a CPU a
        half format is that of the matrices of linear layers alone: everything between them is computed in float32.
    :raises CheckpointError: for a missing, left-over or misshapen tensor, or one that is not of floats, named.
    """
    built = family.build(checkpoint)
    weights = family.sanitize(checkpoint, checkpoint.weights())
    weights = quantized.prepare(built, weights, checkpoint, keep=kernels.device() == "gpu")
    _match(checkpoint, dict(tree_flatten(built.parameters())), weights)
    wanted = None if dtype == "auto" else getattr(mx, dtype)
    on_cpu = kernels.device() == "cpu"
    matrices = {f"{path}.weight" for path, module in built.named_modules() if isinstance(module, layers.Linear)}
    group: list[tuple[str, mx.array]] = []
    for name in list(weights):
        tensor = weights.pop(name)
        target = mx.float32 if on_cpu and (wanted is None or name not in matrices) else wanted
        if target is not None and mx.issubdtype(tensor.dtype, mx.floating):
            tensor = tensor.astype(target)
        group.append((name, tensor))
        if not weights or sum(tensor.nbytes for _, tensor in group) >= GROUP_BYTES:
            mx.eval([tensor for _, tensor in group])
            built.update(tree_unflatten(group), strict=False)
            group = []
    built.eval()
    built.freeze()
    mx.eval(_arrays(built))
    return built


def _match(checkpoint: Checkpoint, parameters: dict[str, Any], weights: dict[str, mx.array]) -> None:
    if missing := sorted(set(parameters) - set(weights)):
        raise CheckpointError(f"{checkpoint.path}: tensor {missing[0]} is missing{_more(missing)}")
    if extra := sorted(set(weights) - set(parameters)):
        raise CheckpointError(f"{checkpoint.path}: tensor {extra[0]} has no place in the model{_more(extra)}")
    for name, parameter in parameters.items():
        found, wanted = tuple(weights[name].shape), tuple(parameter.shape)
        if found != wanted:
            raise CheckpointError(
                f"{checkpoint.path}: tensor {name} has shape {list(found)}, config.json asks for {list(wanted)}"
            )
        floating = mx.issubdtype(weights[name].dtype, mx.floating)
        if mx.issubdtype(parameter.dtype, mx.floating) and not floating:
            stored = str(weights[name].dtype).removeprefix("mlx.core.")
            raise CheckpointError(
                f"{checkpoint.path}: tensor {name} is read as {stored}, without scales that would say what its numbers "
                "mean (8-bit floats are not supported); float32, float16 or bfloat16 was expected"
            )


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _arrays(module: Any) -> list[mx.array]:
    """Every array below a module, with the buffers whose names begin with ``_``, which parameters() leaves out."""
    if isinstance(module, mx.array):
        return [module]
    if isinstance(module, dict):
        own = [] if not isinstance(module, mlx_nn.Module) else list(vars(module).values())
        return [array for value in [*module.values(), *own] for array in _arrays(value)]
    if isinstance(module, (list, tuple)):
        return [array for value in module for array in _arrays(value)]
    return []
