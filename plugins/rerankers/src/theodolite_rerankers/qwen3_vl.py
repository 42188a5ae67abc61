"""Qwen3-VL-Reranker: the difference of two answer tokens' logits over a prompt that may hold images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite import nn, pooling
from theodolite.checkpoint import Checkpoint
from theodolite.errors import CheckpointError
from theodolite.hookspecs import hookimpl
from theodolite.pixels import QwenProcessor
from theodolite.values import Batch, Fit, Item, Pair, Pooling, Profile, Prompt, Task, TextItem
from theodolite_qwen3_vl import model as trunk
from theodolite_qwen3_vl import prompts
from theodolite_qwen3_vl.template import Message, Template

if TYPE_CHECKING:
    from theodolite.tokenize import Tokenizer

TEMPLATE = "additional_chat_templates/reranker.jinja"
ANSWERS = "1_LogitScore/config.json"
BATCH_SIZE = 2
TRUNK = ("language_model.", "visual.")


class Reranker(mlx_nn.Module):
    """The Qwen3-VL trunk, and the two rows of its head that are read."""

    def __init__(self, config: trunk.Config) -> None:
        super().__init__()
        self.model = trunk.Qwen3VL(config)
        self.score = nn.Linear(config.text.hidden_size, 2, bias=False)


@hookimpl
def detect(checkpoint: Checkpoint, task: Task | None) -> Profile | None:
    if task is not Task.RERANK or checkpoint.model_type != "qwen3_vl" or checkpoint.pooling_folder:
        return None
    config = trunk.Config.of(checkpoint)
    return Profile(
        family="qwen3-vl-reranker",
        fit=Fit.MODEL_TYPE,
        vocab_size=config.text.vocab_size,
        dim=1,
        task=Task.RERANK,
        kind="generative_vl",
        images=True,
        instruction=True,
        batch_size=BATCH_SIZE,
        modules=frozenset({"LogitScore"}),
    )


@hookimpl
def build(checkpoint: Checkpoint) -> mlx_nn.Module:
    # what only a prompt reads is read now, so that a folder without it is refused before anything is served
    text = TextItem("text")
    Template.of(checkpoint, TEMPLATE).render(messages(Pair(text, text))([text.text, text.text]))
    QwenProcessor.of(checkpoint, checkpoint.config["vision_config"], prompts.PATCH_SIZE)
    config = trunk.Config.of(checkpoint)
    config.check(checkpoint)
    return Reranker(config)


@hookimpl
def sanitize(checkpoint: Checkpoint, weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """The trunk, and of the head (or of the token table it is tied to) the rows of the two answers."""
    found = trunk.renamed(checkpoint, weights)
    # a head that is stored is read, tied or not: where it differs from the token table, the reference does not tie
    stored = "lm_head.weight" in found or not tied(checkpoint)
    head = "lm_head." if stored else "language_model.embed_tokens."
    answers = mx.array(answer_ids(checkpoint))
    score = {name.replace(head, "score."): tensor[answers] for name, tensor in found.items() if name.startswith(head)}
    if not score and "score.weight" not in found:
        raise CheckpointError(f"{checkpoint.path}: tensor {head}weight is missing, from which the answer is read")
    kept = {name: tensor for name, tensor in found.items() if not name.startswith("lm_head.")}
    return {f"model.{name}" if name.startswith(TRUNK) else name: tensor for name, tensor in kept.items()} | score


def tied(checkpoint: Checkpoint) -> bool:
    """Whether the head is the token table."""
    config = checkpoint.config
    return bool(config.get("tie_word_embeddings", config["text_config"].get("tie_word_embeddings", False)))


def answer_ids(checkpoint: Checkpoint) -> list[int]:
    """Ids of the tokens that say yes and no.

    :raises CheckpointError: if the checkpoint does not say which they are.
    """
    settings, vocab_size = checkpoint.json(ANSWERS), trunk.Config.of(checkpoint).text.vocab_size
    found: list[int] = []
    for key in ("true_token_id", "false_token_id"):
        value = settings.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < vocab_size:
            raise CheckpointError(
                f"{checkpoint.path / ANSWERS}: {key} should be a token id below {vocab_size}, not {value!r}"
            )
        found.append(value)
    return found


def messages(pair: Pair) -> Callable[[Sequence[str]], list[Message]]:
    """Makes the conversation out of the texts of query and document, and of the instruction where there is one.

    Without an instruction there is no system turn: the template has its own.
    """

    def of(texts: Sequence[str]) -> list[Message]:
        query, document, *instruction = texts
        return [
            *(prompts.system(text) for text in instruction),
            {"role": "query", "content": prompts.content(pair.query, query)},
            {"role": "document", "content": prompts.content(pair.document, document)},
        ]

    return of


@hookimpl
def prompt(
    checkpoint: Checkpoint, item: Item, instruction: str | None, tokenizer: Tokenizer, limit: int
) -> Prompt | None:
    if not isinstance(item, Pair):
        return None
    chat = Template.of(checkpoint, TEMPLATE)
    fixed = [instruction] if instruction else []
    return prompts.rendered(checkpoint, chat, messages(item), [item.query, item.document], tokenizer, limit, *fixed)


@hookimpl
def forward(model: Reranker, batch: Batch) -> mx.array:
    return model.model(batch)


@hookimpl
def pool(model: Reranker, hidden: mx.array, batch: Batch) -> mx.array:
    """``logit(yes) - logit(no)`` at the last position: ``[B]``."""
    last = pooling.pool(hidden, batch.attention_mask, Pooling.LASTTOKEN)
    logits = model.score(last)  # [B, 2], in float32: the difference of two large numbers is small
    return logits[:, 0] - logits[:, 1]
