"""ColIdefics3: SigLIP tiles, a pixel-shuffle connector and a Llama decoder, one projected row per token.

Laurençon et al. 2024 (Idefics3), Marafioti et al. 2025 (SmolVLM), Faysse et al. 2024 (ColPali).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite import nn
from theodolite.checkpoint import Checkpoint
from theodolite.hookspecs import hookimpl
from theodolite.nn import decoder, vision, vit
from theodolite.values import Batch, Fit, ImageItem, Item, Profile, Prompt, TextItem, TokenItem
from theodolite_col import late_interaction
from theodolite_col.late_interaction import Page
from theodolite_col.tiles import Processor, tower_config

if TYPE_CHECKING:
    from theodolite.tokenize import Tokenizer

DOCUMENT = "<|im_start|>User:{}Describe the image.<end_of_utterance>\nAssistant:"
END = "<end_of_utterance>"
DROPPED = re.compile(r"^lm_head\.|(^|\.)(position_ids|inv_freq)$")


class ModalityProjection(mlx_nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.proj = nn.Linear(inputs, outputs, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return self.proj(x)


class Connector(mlx_nn.Module):
    """Every ``side * side`` square of patches to one token of the decoder's width."""

    def __init__(self, side: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.modality_projection = ModalityProjection(inputs * side**2, outputs)
        self._side = side

    def __call__(self, x: mx.array) -> mx.array:
        return self.modality_projection(vision.pixel_shuffle(x, self._side))


class Idefics3(mlx_nn.Module):
    """Tower, connector and decoder."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        text = decoder.Config.of(checkpoint.config["text_config"])
        tower = tower_config(checkpoint)
        self.vision_model = vit.VisionTower(tower)
        self.connector = Connector(checkpoint.config.get("scale_factor", 2), tower.hidden_size, text.hidden_size)
        self.text_model = decoder.Decoder(text)

    def __call__(self, batch: Batch) -> mx.array:
        x = self.text_model.embed_tokens(batch.input_ids)  # [B, L, D]
        page: Page | None = batch.image
        if page is not None:
            tiles = self.connector(vision.by_tile(self.vision_model, page.pixels, x.dtype))  # [T, n, D]
            x = vision.place(x, page.slots, tiles.reshape(-1, tiles.shape[-1]))
        return self.text_model(x, self.text_model.mask(batch.attention_mask))


class ColIdefics3(mlx_nn.Module):
    """The trunk and the projection of its states."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self.model = Idefics3(checkpoint)
        width = checkpoint.config["text_config"]["hidden_size"]
        self.linear = nn.Linear(width, late_interaction.embedding_dim(checkpoint))


@hookimpl
def detect(checkpoint: Checkpoint) -> Profile | None:
    if checkpoint.architecture != "ColIdefics3":
        return None
    config = checkpoint.config
    return Profile(
        family="colidefics3",
        fit=Fit.ARCHITECTURE,
        vocab_size=decoder.Config.of(config["text_config"]).vocab_size,
        dim=late_interaction.embedding_dim(checkpoint),
        normalize=config.get("normalize") is not False,
        multi_vector=True,
        images=True,
        modules=frozenset({"Dense"}),
    )


@hookimpl
def build(checkpoint: Checkpoint) -> mlx_nn.Module:
    # a folder that cannot see is refused now, not at the first page
    Processor.of(checkpoint)
    late_interaction.check_tokens(checkpoint, image_token_id=checkpoint.config.get("image_token_id"))
    return ColIdefics3(checkpoint)


@hookimpl
def sanitize(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    kept = {name: tensor for name, tensor in weights.items() if not DROPPED.search(name)}
    return late_interaction.projection(vit.channels_first(kept), "linear")


@hookimpl
def prompt(checkpoint: Checkpoint, item: Item, tokenizer: Tokenizer, limit: int) -> Prompt | None:
    match item:
        case TokenItem():
            return None
        case TextItem(text):
            return late_interaction.query(text, END)
    assert isinstance(item, ImageItem)
    process = Processor.of(checkpoint)
    pixels, (rows, columns) = process(item.image)
    ids = tokenizer.encode(DOCUMENT.format(process.framed(rows, columns)))
    tokens = len(pixels) * process.side**2
    slots = late_interaction.page(item, ids, checkpoint.config["image_token_id"], tokens, limit)
    return Prompt(ids=tuple(ids), image=Page(pixels, slots, process.cells(slots, rows, columns)))


@hookimpl
def forward(model: ColIdefics3, batch: Batch) -> mx.array:
    return model.model(batch)


@hookimpl
def pool(model: ColIdefics3, hidden: mx.array, batch: Batch) -> mx.array:
    return late_interaction.rows(model.linear, hidden, batch)
