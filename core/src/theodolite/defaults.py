"""The core's own answers to the stages, used where a family gives none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

from theodolite import pooling
from theodolite.errors import RequestError
from theodolite.hookspecs import hookimpl
from theodolite.values import Batch, ImageItem, Item, Pair, Pooling, Prompt, TextItem, TokenItem

if TYPE_CHECKING:
    from theodolite.checkpoint import Checkpoint


@hookimpl(trylast=True)
def sanitize(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    return weights


@hookimpl(trylast=True)
def prompt(checkpoint: Checkpoint, item: Item) -> Prompt:
    match item:
        case TextItem(text):
            return Prompt(text=text)
        case TokenItem(ids):
            return Prompt(ids=ids)
        case Pair(TextItem(query), TextItem(document)):
            return Prompt(text=query, pair=document)
        case ImageItem():
            raise RequestError(f"{checkpoint.model_type} takes text, not images")
    raise RequestError(f"{checkpoint.model_type} scores pairs of texts, not images")


@hookimpl(trylast=True)
def pool(hidden: mx.array, batch: Batch, mode: Pooling) -> mx.array:
    return pooling.pool(hidden, batch.attention_mask, mode)
