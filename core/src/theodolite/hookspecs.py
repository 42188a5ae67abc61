"""The hooks: what a plugin may implement, and what the core calls.

``detect`` is asked of every family and all answers are collected; one owner is elected. ``build``, ``sanitize``,
``prompt``, ``forward`` and ``pool`` are then bound to that owner and the core's defaults, so the wrong plugin cannot
answer a stage. A hook implementation names only the arguments it uses.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    import argparse

    import mlx.core as mx
    import mlx.nn as nn
    from aiohttp import web

    from theodolite.checkpoint import Checkpoint
    from theodolite.nn.kernels import Kernels
    from theodolite.tokenize import Tokenizer
    from theodolite.values import Batch, Item, Pooling, Profile, Prompt, Task

PROJECT = "theodolite"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def detect(checkpoint: Checkpoint, task: Task | None) -> Profile | None:
    """Claim a checkpoint, or return None.

    :param task: what the checkpoint is asked for; None where the checkpoint alone decides (``-m`` of the server).
    :raises Unsupported: for a checkpoint that is this family's but asks for something it does not serve.
    """


@hookspec(firstresult=True)
def build(checkpoint: Checkpoint, profile: Profile) -> nn.Module:
    """Make the model's modules from the configuration; parameters are filled in later."""
    raise NotImplementedError


@hookspec(firstresult=True)
def sanitize(checkpoint: Checkpoint, weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """Rename, drop and permute the stored tensors until their names equal the parameters of ``build``'s model.

    Quantized layers come as ``NAME.weight``, ``NAME.scales`` and ``NAME.biases``; rename the three alike and do not
    look inside. Default: the weights as they are.
    """
    raise NotImplementedError


@hookspec(firstresult=True)
def prompt(checkpoint: Checkpoint, item: Item, instruction: str | None, tokenizer: Tokenizer, limit: int) -> Prompt:
    """Say what to tokenize for one item. Pure: no weights, no model, any thread.

    :param limit: the most tokens the row may have, special tokens and image placeholders included.
    :raises RequestError: for an item that the family cannot serve.

    Default: the text as it is sent; a pair as the tokenizer's own pair template.
    """
    raise NotImplementedError


@hookspec(firstresult=True)
def forward(model: Any, batch: Batch) -> mx.array:
    """Run the trunk, to the final norm: ``[B, L, D]``. Never logits over the vocabulary."""
    raise NotImplementedError


@hookspec(firstresult=True)
def pool(model: Any, hidden: mx.array, batch: Batch, mode: Pooling) -> mx.array:
    """Reduce hidden states ``[B, L, D]`` (float32) to what the family answers with.

    ``[B, D]`` vectors; ``[B, L, K]`` with padding rows zero for multi-vector families; ``[B]`` logits for rerankers.
    Not normalized: the core does that. Default: cls, mean, max or lasttoken.
    """
    raise NotImplementedError


@hookspec(firstresult=True)
def locate(name: str, revision: str | None, models_dir: Path | None) -> Path | None:
    """Find the folder of the checkpoint called ``name``, or return None.

    Packages that ship a checkpoint are asked before the Hub; a ``name`` that is a folder is never asked for.

    :raises CheckpointError: where the checkpoint is this locator's, but cannot be had.
    """


@hookspec
def kernels(device: str) -> Kernels | str | None:
    """Offer faster operations for a device (``"cpu"`` or ``"gpu"``), or None. The highest priority is used.

    A table that belongs on the device but cannot be had on this machine is answered by the reason, as one line.
    """


@hookspec
def commands(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add commands to the CLI: ``parser.set_defaults(run=function)`` with ``function(args) -> int | None``."""


@hookspec
def routes(app: web.Application) -> None:
    """Add routes to the HTTP server."""
