"""The Qwen3-Embedding family (Zhang et al. 2025): a causal decoder, pooled at its last token."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite.checkpoint import Checkpoint
from theodolite.errors import Unsupported
from theodolite.hookspecs import hookimpl
from theodolite.nn.decoder import Config, Decoder
from theodolite.values import Batch, Fit, Item, Pooling, Profile, Prompt, TextItem

INSTRUCTED = "Instruct: {task}\nQuery: {query}"
TRAINED_WIDTHS = (32, 64, 128, 256, 512, 768, 1024)


ARCHITECTURES = ("", "Qwen3Model", "Qwen3ForCausalLM")
MAX_WINDOW_LAYERS = 28


def settings(checkpoint: Checkpoint) -> Config:
    """Read config.json.

    :raises CheckpointError: for a missing key, or keys that contradict each other.
    :raises Unsupported: for options that are not served.
    """
    return Config.of(checkpoint.config, qk_norm=True, windowed=True, max_window_layers=MAX_WINDOW_LAYERS)


@hookimpl
def detect(checkpoint: Checkpoint) -> Profile | None:
    if checkpoint.model_type != "qwen3" or checkpoint.pooling_folder is None:
        return None  # without a pooling layout the same files are a text generator
    config = settings(checkpoint)
    return Profile(
        family="qwen3",
        fit=Fit.MODEL_TYPE,
        vocab_size=config.vocab_size,
        dim=config.hidden_size,
        pooling=Pooling.LASTTOKEN,
        normalize=checkpoint.normalize,
        instruction=True,
        matryoshka=tuple(width for width in TRAINED_WIDTHS if width <= config.hidden_size),
    )


def check_architecture(checkpoint: Checkpoint) -> None:
    """Refuse a model that only its own code describes.

    :raises Unsupported: naming the architecture.
    """
    if checkpoint.architecture not in ARCHITECTURES and checkpoint.config.get("auto_map"):
        raise Unsupported(
            f"{checkpoint.path / 'config.json'}: {checkpoint.architecture} is code of the checkpoint's own (auto_map), "
            "which is not run; it may attend or pool unlike Qwen3"
        )


@hookimpl
def build(checkpoint: Checkpoint) -> mlx_nn.Module:
    check_architecture(checkpoint)
    return Decoder(settings(checkpoint))


@hookimpl
def sanitize(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    bare = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
    return {name: tensor for name, tensor in bare.items() if not name.startswith("lm_head.")}


@hookimpl
def prompt(item: Item, instruction: str | None) -> Prompt | None:
    if instruction and isinstance(item, TextItem):
        return Prompt(text=INSTRUCTED.format(task=instruction, query=item.text))
    return None  # the text as it is sent


@hookimpl
def forward(model: Decoder, batch: Batch) -> mx.array:
    # padding is on the right, so positions 0..L are the real tokens' own
    return model(batch.input_ids, model.mask(batch.attention_mask))
