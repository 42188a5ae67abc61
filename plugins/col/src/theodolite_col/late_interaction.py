"""What ColIdefics3 and ColQwen2.5 share: one projected, normalized row per token (Faysse et al. 2024, ColPali)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from theodolite.checkpoint import Checkpoint
from theodolite.errors import CheckpointError, RequestError, Unsupported
from theodolite.nn import Linear, vision
from theodolite.values import Batch, ImageItem, Prompt

DENSE = "1_Dense"
DIM = 128
AUGMENTATION = 10
"""End tokens after a query: the more vectors a short query has, the better MaxSim tells pages apart."""
EPSILON = 1e-9


@dataclass(frozen=True, eq=False)
class Page:
    """An image ready for the tower, and where its visual tokens stand."""

    pixels: Any
    slots: np.ndarray
    """Indices of the image's tokens in the row: ``[T]``."""
    cells: np.ndarray
    """Index of the vector of each cell of the page, in reading order: ``[R, C]``."""


def embedding_dim(checkpoint: Checkpoint) -> int:
    """Width of a row: the projection in ``1_Dense`` where the checkpoint has one, else ``embedding_dim``, else 128.

    :raises Unsupported: for settings that this family does not serve.
    """
    if checkpoint.config.get("mask_non_image_embeddings"):
        raise Unsupported(f"{checkpoint.path / 'config.json'}: mask_non_image_embeddings: true is not supported")
    dense = checkpoint.json(f"{DENSE}/config.json")
    activation = str(dense.get("activation_function") or "Identity")
    if not activation.endswith("Identity"):
        raise Unsupported(f"{checkpoint.path / DENSE / 'config.json'}: activation {activation} is not supported")
    return int(dense.get("out_features") or checkpoint.config.get("embedding_dim") or DIM)


def projection(weights: dict[str, mx.array], name: str) -> dict[str, mx.array]:
    """The weights with the projection called ``name``; that of ``1_Dense`` replaces the one in the main shard."""
    dense = {key: tensor for key, tensor in weights.items() if key.startswith(f"{DENSE}.")}
    kept = {key: tensor for key, tensor in weights.items() if key not in dense}
    if dense:
        kept = {key: tensor for key, tensor in kept.items() if not key.startswith(f"{name}.")}
    return kept | {key.replace(f"{DENSE}.linear.", f"{name}."): tensor for key, tensor in dense.items()}


def query(text: str, end: str) -> Prompt:
    """The prompt of a search query; special tokens spelled in it stay text."""
    return Prompt(text=f"Query: {text}", suffix=end * AUGMENTATION, literal=True)


def page(item: ImageItem, ids: Sequence[int], image_token: int, tokens: int, limit: int) -> np.ndarray:
    """Indices of the image's tokens in the row of a page.

    :param tokens: how many there should be.
    :raises CheckpointError: if there are others.
    :raises RequestError: for a text beside the page, which the format has no place for, or a page that does not fit.
    """
    if item.text:
        raise RequestError("this model takes an image or a text, not both in one input")
    if len(ids) > limit:
        raise RequestError(f"the image needs {len(ids)} tokens, max_length is {limit}")
    return vision.slots(ids, image_token, tokens)


def rows(linear: Linear, hidden: mx.array, batch: Batch) -> mx.array:
    """``[B, L, D]`` -> unit rows ``[B, L, K]``, those of padding zero."""
    projected = linear(hidden)
    length = mx.sqrt((projected * projected).sum(axis=-1, keepdims=True))
    unit = projected / mx.maximum(length, EPSILON)
    return unit * batch.attention_mask[..., None]


def check_tokens(checkpoint: Checkpoint, **ids: Any) -> None:
    """Refuse a config.json without the token ids it should name.

    :raises CheckpointError: naming the key.
    """
    for key, value in ids.items():
        if not isinstance(value, int):
            raise CheckpointError(f"{checkpoint.path / 'config.json'}: {key} should be a token id, not {value!r}")
