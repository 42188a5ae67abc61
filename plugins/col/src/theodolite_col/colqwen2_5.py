"""ColQwen2.5: the windowed Qwen2.5-VL stack, one projected row per token (Bai et al. 2025; Faysse et al. 2024)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite import nn
from theodolite.checkpoint import Checkpoint
from theodolite.errors import CheckpointError
from theodolite.hookspecs import hookimpl
from theodolite.nn import decoder, qwen_vision, vision
from theodolite.pixels import QwenProcessor
from theodolite.values import Batch, Fit, ImageItem, Item, Profile, Prompt, TextItem, TokenItem
from theodolite_col import late_interaction, qwen2_5_vision
from theodolite_col.late_interaction import Page

if TYPE_CHECKING:
    from theodolite.tokenize import Tokenizer

DOCUMENT = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|><|endoftext|>"
END = "<|endoftext|>"
PATCH_SIZE = 14
ARCHITECTURES = {"ColQwen2_5", "ColQwen2ForRetrieval"}
DROPPED = re.compile(r"^lm_head\.|(^|\.)inv_freq$")
RENAMES = [
    (re.compile(r"^vlm\."), ""),
    (re.compile(r"^embedding_proj_layer\."), "custom_text_proj."),
    (re.compile(r"^(model\.)?visual\."), "vision_tower."),
    (re.compile(r"^(model\.language_model|language_model(\.model)?)\."), "model."),
]
"""The three layouts: published (model, visual), transformers' own (vlm), mlx conversions (vision_tower)."""


MAX_WINDOW_LAYERS, ROPE_BASE = 80, 1_000_000.0
"""Where config.json says nothing, as the reference."""


def inner(checkpoint: Checkpoint) -> dict[str, Any]:
    """The settings of the Qwen2.5-VL model: the whole of config.json, or its ``vlm_config``."""
    nested: dict[str, Any] = checkpoint.config.get("vlm_config") or checkpoint.config
    return nested


def text_config(checkpoint: Checkpoint) -> decoder.Config:
    """The decoder's settings: a ``text_config`` block, or in older exports the whole config.json."""
    config = inner(checkpoint)
    return decoder.Config.of(
        config.get("text_config") or config,
        qkv_bias=True,
        windowed=True,
        max_window_layers=MAX_WINDOW_LAYERS,
        rope_base=ROPE_BASE,
    )


class ColQwen2_5(mlx_nn.Module):
    """Tower, decoder, and the projection of its states."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        text = text_config(checkpoint)
        self.vision_tower = qwen2_5_vision.Visual(qwen2_5_vision.Config.of(inner(checkpoint)["vision_config"]))
        self.model = decoder.Decoder(text)
        self.custom_text_proj = nn.Linear(text.hidden_size, late_interaction.embedding_dim(checkpoint))

    def __call__(self, batch: Batch) -> mx.array:
        x = self.model.embed_tokens(batch.input_ids)  # [B, L, D]
        positions = None
        page: Page | None = batch.image
        if page is not None:
            image: qwen_vision.Vision = page.pixels
            x = vision.place(x, page.slots, self.vision_tower(image.images[0]))
            positions = mx.array(image.positions[:, None])  # [3, 1, L]
        return self.model(x, self.model.mask(batch.attention_mask), positions)


@hookimpl
def detect(checkpoint: Checkpoint) -> Profile | None:
    if checkpoint.architecture not in ARCHITECTURES:
        return None
    config = inner(checkpoint)
    if (found := config.get("model_type")) != "qwen2_5_vl":
        raise CheckpointError(f"{checkpoint.path / 'config.json'}: a qwen2_5_vl model was expected, not {found!r}")
    return Profile(
        family="colqwen2_5",
        fit=Fit.ARCHITECTURE,
        vocab_size=text_config(checkpoint).vocab_size,
        dim=late_interaction.embedding_dim(checkpoint),
        normalize=checkpoint.config.get("normalize") is not False,
        multi_vector=True,
        images=True,
        modules=frozenset({"Dense"}),
    )


@hookimpl
def build(checkpoint: Checkpoint) -> mlx_nn.Module:
    # a folder that cannot see is refused now, not at the first page
    process(checkpoint)
    qwen_vision.check(text_config(checkpoint), checkpoint.path / "config.json")
    late_interaction.check_tokens(checkpoint, image_token_id=inner(checkpoint).get("image_token_id"))
    return ColQwen2_5(checkpoint)


def process(checkpoint: Checkpoint) -> QwenProcessor:
    """The image processor of the checkpoint."""
    return QwenProcessor.of(checkpoint, inner(checkpoint)["vision_config"], PATCH_SIZE)


@hookimpl
def sanitize(checkpoint: Checkpoint, weights: dict[str, mx.array]) -> dict[str, mx.array]:
    renamed = {}
    for name, tensor in weights.items():
        for pattern, into in RENAMES:
            name = pattern.sub(into, name)
        renamed[name] = tensor
    kept = {name: tensor for name, tensor in renamed.items() if not DROPPED.search(name)}
    patches = "vision_tower.patch_embed.proj.weight"
    if patches in kept:
        channels = qwen2_5_vision.Config.of(inner(checkpoint)["vision_config"]).channels
        kept[patches] = qwen_vision.flat_filter(kept[patches], channels)
    return late_interaction.projection(kept, "custom_text_proj")


@hookimpl
def prompt(checkpoint: Checkpoint, item: Item, tokenizer: Tokenizer, limit: int) -> Prompt | None:
    match item:
        case TokenItem():
            return None
        case TextItem(text):
            return late_interaction.query(text, END)
    assert isinstance(item, ImageItem)
    image_token = inner(checkpoint)["image_token_id"]
    patches = process(checkpoint)(item.image)
    ids = qwen_vision.expand(tokenizer.encode(DOCUMENT), image_token, [patches])
    slots = late_interaction.page(item, ids, image_token, patches.tokens, limit)
    image = qwen_vision.vision(ids, image_token, [patches])
    return Prompt(ids=tuple(ids), image=Page(image, slots, slots.reshape(patches.grid)))


@hookimpl
def forward(model: ColQwen2_5, batch: Batch) -> mx.array:
    return model(batch)


@hookimpl
def pool(model: ColQwen2_5, hidden: mx.array, batch: Batch) -> mx.array:
    return late_interaction.rows(model.custom_text_proj, hidden, batch)
