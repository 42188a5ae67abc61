"""The Qwen3-VL family: what it claims, how it loads, how it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite.checkpoint import Checkpoint
from theodolite.hookspecs import hookimpl
from theodolite.pixels import QwenProcessor
from theodolite.values import Batch, Fit, ImageItem, Item, Pooling, Profile, Prompt, TextItem
from theodolite_qwen3_vl import model as qwen3_vl
from theodolite_qwen3_vl import prompts
from theodolite_qwen3_vl.template import Template

if TYPE_CHECKING:
    from theodolite.tokenize import Tokenizer


@hookimpl
def detect(checkpoint: Checkpoint) -> Profile | None:
    if checkpoint.model_type != "qwen3_vl" or not checkpoint.pooling_folder:
        return None
    text = qwen3_vl.Config.of(checkpoint).text
    return Profile(
        family="qwen3-vl",
        fit=Fit.MODEL_TYPE,
        vocab_size=text.vocab_size,
        dim=text.hidden_size,
        pooling=Pooling.LASTTOKEN,
        normalize=checkpoint.config.get("normalize") is not False,
        images=True,
        instruction=True,
        named_prompts="instruction",
    )


@hookimpl
def build(checkpoint: Checkpoint) -> mlx_nn.Module:
    # what only a prompt reads is read now, so that a folder without it is refused before anything is served
    chat = Template.of(checkpoint, *prompts.CHAT_TEMPLATES)
    chat.render([prompts.system(""), {"role": "user", "content": prompts.content(TextItem(""), "text")}])
    QwenProcessor.of(checkpoint, checkpoint.config["vision_config"], prompts.PATCH_SIZE)
    config = qwen3_vl.Config.of(checkpoint)
    config.check(checkpoint)
    return qwen3_vl.Qwen3VL(config)


@hookimpl
def sanitize(checkpoint: Checkpoint, weights: dict[str, mx.array]) -> dict[str, mx.array]:
    found = qwen3_vl.renamed(checkpoint, weights)
    return {name: tensor for name, tensor in found.items() if not name.startswith("lm_head.")}


@hookimpl
def prompt(
    checkpoint: Checkpoint, item: Item, instruction: str | None, tokenizer: Tokenizer, limit: int
) -> Prompt | None:
    if not isinstance(item, TextItem | ImageItem):
        return None
    return prompts.embed(checkpoint, item, instruction, tokenizer, limit)


@hookimpl
def forward(model: qwen3_vl.Qwen3VL, batch: Batch) -> mx.array:
    return model(batch)
