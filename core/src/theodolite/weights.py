"""Reading a checkpoint's tensors: safetensors or pytorch_model.bin, sharded or not, and the module folders' own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import mlx.core as mx
from safetensors import SafetensorError, safe_open

from theodolite.errors import CheckpointError

if TYPE_CHECKING:
    from theodolite.checkpoint import Checkpoint

LFS_POINTER = b"version https://git-lfs"
LAYOUTS = (("model", ".safetensors"), ("pytorch_model", ".bin"))


def read(checkpoint: Checkpoint) -> dict[str, mx.array]:
    """All tensors of the main files and of the module folders, by stored name (module folders as ``2_Dense.NAME``).

    :raises CheckpointError: for a missing, truncated or unreadable file, or a tensor that only the index has.
    """
    tensors = _folder(checkpoint, "")
    if tensors is None:
        raise CheckpointError(f"{checkpoint.path}: no weights; expected model.safetensors (or pytorch_model.bin)")
    if checkpoint.has("modules.json"):  # a folder that it does not list is no part of the model
        folders = {module.path for module in checkpoint.modules if module.path}
    else:
        folders = {entry.name for entry in checkpoint.path.iterdir() if entry.is_dir() and _is_module(entry.name)}
    for folder in sorted(folders):
        for name, tensor in (_folder(checkpoint, f"{folder}/") or {}).items():
            tensors[f"{folder.replace('/', '.')}.{name}"] = tensor
    return tensors


def _is_module(folder: str) -> bool:
    number, _, kind = folder.partition("_")
    return number.isdigit() and bool(kind)


def _folder(checkpoint: Checkpoint, prefix: str) -> dict[str, mx.array] | None:
    for stem, suffix in LAYOUTS:
        if checkpoint.has(f"{prefix}{stem}{suffix}"):  # before the index, as transformers does
            return _file(checkpoint.path / f"{prefix}{stem}{suffix}")
        index = f"{prefix}{stem}{suffix}.index.json"
        if checkpoint.has(index):
            return _sharded(checkpoint, index, prefix)
    shards = sorted((checkpoint.path / prefix).glob("model-*-of-*.safetensors"))
    if shards:
        return _unindexed(checkpoint, prefix, shards)
    return None


def _sharded(checkpoint: Checkpoint, index: str, prefix: str) -> dict[str, mx.array]:
    places = checkpoint.json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{checkpoint.path / index} has no weight_map")
    tensors: dict[str, mx.array] = {}
    for shard in sorted(set(places.values())):
        if Path(shard).name != shard:
            raise CheckpointError(f"{checkpoint.path / index} names a file outside its folder: {shard!r}")
        if not checkpoint.has(prefix + shard):
            raise CheckpointError(f"{checkpoint.path / (prefix + shard)} is missing, though {index} names it")
        tensors |= _file(checkpoint.path / (prefix + shard))
    if lost := sorted(set(places) - set(tensors)):
        raise CheckpointError(
            f"{checkpoint.path / index} places {lost[0]} in {places[lost[0]]}, which does not hold it"
        )
    return tensors


def _unindexed(checkpoint: Checkpoint, prefix: str, shards: list[Path]) -> dict[str, mx.array]:
    total = int(shards[0].stem.rsplit("-of-", 1)[1])
    if len(shards) != total:
        names = {shard.name for shard in shards}
        wanted = (f"model-{i:05d}-of-{total:05d}.safetensors" for i in range(1, total + 1))
        lost = next((name for name in wanted if name not in names), "a shard")
        raise CheckpointError(f"{checkpoint.path / prefix / lost} is missing: {len(shards)} of {total} shards are here")
    return {name: tensor for shard in shards for name, tensor in _file(shard).items()}


def _file(file: Path) -> dict[str, mx.array]:
    with file.open("rb") as stream:
        if stream.read(len(LFS_POINTER)) == LFS_POINTER:
            raise CheckpointError(
                f"{file} is a Git LFS pointer, not the weights; run `git lfs pull` or download it again"
            )
    if file.suffix == ".bin":
        from theodolite import torch_reader

        return torch_reader.read(file)
    try:
        with safe_open(str(file), framework="numpy"):
            pass  # checks the header against the file's length, which mlx does not
        tensors = mx.load(str(file))
    except (SafetensorError, RuntimeError, ValueError) as error:
        if "unsupported dtype" in str(error):
            raise CheckpointError(f"{file} holds a number format that MLX does not read: {error}") from None
        raise CheckpointError(f"{file} is damaged or incomplete ({error}); download it again") from None
    assert isinstance(tensors, dict)
    return tensors
