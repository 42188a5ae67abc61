"""From hidden states to one vector: which mode a checkpoint asks for, and the four modes themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx

from theodolite.checkpoint import flag
from theodolite.errors import BrokenPlugin, CheckpointError, Unsupported
from theodolite.values import Pooling

if TYPE_CHECKING:
    from theodolite.checkpoint import Checkpoint

FLAG_PREFIX = "pooling_mode_"
FLAGS = {
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_max_tokens": Pooling.MAX,
    "pooling_mode_lasttoken": Pooling.LASTTOKEN,
}


def read(checkpoint: Checkpoint) -> Pooling | None:
    """The mode that the checkpoint's pooling module asks for, None where it has no such module.

    :raises Unsupported: for a mode that is not served, several modes at once, or ``include_prompt: false``.
    """
    folder = checkpoint.pooling_folder
    if folder is None:
        return None
    name = f"{folder}/config.json"
    if not checkpoint.has(name):
        raise CheckpointError(
            f"{checkpoint.path / name} is missing, though modules.json names the pooling module {folder}"
        )
    config = checkpoint.json(name)
    where = checkpoint.path / name
    if not flag(where, config, "include_prompt", True):
        raise Unsupported(f"{where}: pooling with include_prompt: false is not supported")
    if "pooling_mode" in config:
        return _named(config["pooling_mode"], where)
    flags = [key for key in config if key.startswith(FLAG_PREFIX) and flag(where, config, key, False)]
    if len(flags) > 1:
        raise Unsupported(
            f"{where}: more than one pooling mode is set ({', '.join(sorted(flags))}); exactly one is supported"
        )
    if not flags:
        return Pooling.MEAN
    if flags[0] not in FLAGS:
        mode = flags[0].removeprefix(FLAG_PREFIX)
        raise Unsupported(
            f"{where}: pooling mode {mode.removesuffix('_tokens') if 'weighted' in mode else mode} is not supported"
        )
    return FLAGS[flags[0]]


def _named(mode: Any, where: Any) -> Pooling:
    try:
        return Pooling(mode)
    except ValueError:
        known = ", ".join(m.value for m in Pooling)
        raise Unsupported(f"{where}: pooling_mode {mode!r} is not supported (supported: {known})") from None


def pool(hidden: mx.array, attention_mask: mx.array, mode: Pooling) -> mx.array:
    """Pool hidden states ``[B, L, D]`` over the real tokens of ``attention_mask`` ``[B, L]`` to ``[B, D]``.

    Right for left and for right padding. A row that is all padding takes its first (cls) or last (lasttoken) position,
    and zeros for mean; max gives -inf there, as there is nothing to take the maximum of.
    """
    if hidden.ndim != 3 or hidden.shape[:2] != attention_mask.shape:  # else a mask of one row is read for all of them
        wanted = ", ".join(map(str, attention_mask.shape))
        raise BrokenPlugin(f"hidden states to pool are {list(hidden.shape)}, forward should return [{wanted}, D]")
    match mode:
        case Pooling.CLS:
            return _at(hidden, mx.argmax(attention_mask, axis=1))
        case Pooling.LASTTOKEN:
            last = attention_mask.shape[1] - 1 - mx.argmax(attention_mask[:, ::-1], axis=1)
            return _at(hidden, last)
        case Pooling.MEAN:
            mask = attention_mask[..., None].astype(hidden.dtype)  # [B, L, 1]
            return (hidden * mask).sum(axis=1) / mx.maximum(mask.sum(axis=1), 1e-9)
        case Pooling.MAX:
            return mx.where(attention_mask[..., None] == 0, -mx.inf, hidden).max(axis=1)


def _at(hidden: mx.array, position: mx.array) -> mx.array:
    return mx.take_along_axis(hidden, position[:, None, None].astype(mx.int32), axis=1)[:, 0]  # [B, D]
