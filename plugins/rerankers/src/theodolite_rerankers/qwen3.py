"""Qwen3-Reranker (Zhang et al. 2025): a causal decoder asked for yes or no about one query and document.

The prompt is the model card's, byte for byte, tokenized in three pieces so that only the content is ever cut.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as mlx_nn

from theodolite import nn, pooling
from theodolite.checkpoint import Checkpoint
from theodolite.errors import CheckpointError, Unsupported
from theodolite.hookspecs import hookimpl
from theodolite.nn.decoder import Config, Decoder
from theodolite.tokenize import Tokenizer
from theodolite.values import Batch, Fit, Item, Pair, Pooling, Profile, Prompt, Task, TextItem
from theodolite_qwen3.plugin import check_architecture, settings

PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
CONTENT = "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
ANSWERS = ("yes", "no")
TRUNK = ("embed_tokens.", "layers.", "norm.")


class Reranker(mlx_nn.Module):
    """The trunk, and the two rows of the head (tied or not) that are read."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.model = Decoder(config)
        self.score = nn.Linear(config.hidden_size, len(ANSWERS), bias=False)


@hookimpl
def detect(checkpoint: Checkpoint, task: Task | None) -> Profile | None:
    # on disk this is a text generator like any other, so it has to be asked for
    if task is not Task.RERANK or checkpoint.model_type != "qwen3" or checkpoint.pooling_folder is not None:
        return None
    if checkpoint.is_classifier:  # it says so in labels of its own, not in yes and no
        return None
    return Profile(
        family="qwen3-reranker",
        fit=Fit.MODEL_TYPE,
        vocab_size=settings(checkpoint).vocab_size,
        dim=1,
        task=Task.RERANK,
        kind="generative_text",
        instruction=True,
        modules=frozenset({"LogitScore"}),
    )


@hookimpl
def build(checkpoint: Checkpoint) -> mlx_nn.Module:
    check_architecture(checkpoint)
    return Reranker(settings(checkpoint))


@hookimpl
def sanitize(checkpoint: Checkpoint, weights: dict[str, mx.array]) -> dict[str, mx.array]:
    named = {f"model.{name}" if name.startswith(TRUNK) else name: tensor for name, tensor in weights.items()}
    # a head that is stored is read, tied or not: where it differs from the token table, the reference does not tie
    stored = "lm_head.weight" in named or checkpoint.config.get("tie_word_embeddings") is False
    head = "lm_head." if stored else "model.embed_tokens."
    rows = mx.array(answer_ids(checkpoint))
    score = {name.replace(head, "score.", 1): t[rows] for name, t in named.items() if name.startswith(head)}
    if not score:
        raise CheckpointError(f"{checkpoint.path}: tensor {head}weight is missing, from which the answer is read")
    return {name: tensor for name, tensor in named.items() if not name.startswith("lm_head.")} | score


def answer_ids(checkpoint: Checkpoint) -> list[int]:
    """Ids of ``yes`` and ``no``.

    :raises CheckpointError: where either is more than one token, or sentence-transformers' module reads other tokens:
        such a checkpoint was trained with another prompt.
    """
    tokenizer = Tokenizer(checkpoint)
    found = [tokenizer.encode(answer, special_tokens=False) for answer in ANSWERS]
    for answer, ids in zip(ANSWERS, found, strict=True):
        if len(ids) != 1:
            raise CheckpointError(f"{checkpoint.path}: {answer!r} should be a single token, it is {len(ids)} tokens")
    answers = [ids[0] for ids in found]
    for module in checkpoint.modules:
        if module.name == "LogitScore":
            read = [module.config.get(key) for key in ("true_token_id", "false_token_id")]
            if read != answers:
                raise Unsupported(
                    f"{checkpoint.path / module.path / 'config.json'}: true_token_id and false_token_id are {read}; "
                    f"only those of yes and no ({answers}) are supported"
                )
    return answers


@hookimpl
def prompt(item: Item, instruction: str | None) -> Prompt | None:
    match item:
        case Pair(TextItem(query), TextItem(document)):
            content = CONTENT.format(instruction=instruction or INSTRUCTION, query=query, document=document)
            return Prompt(text=content, prefix=PREFIX, suffix=SUFFIX, special_tokens=False, literal=True)
    return None


@hookimpl
def forward(model: Reranker, batch: Batch) -> mx.array:
    # padded on the right, where the reference pads on the left: the same scores, and none depends on its batch
    return model.model(batch.input_ids, model.model.mask(batch.attention_mask))


@hookimpl
def pool(model: Reranker, hidden: mx.array, batch: Batch) -> mx.array:
    logits = model.score(pooling.pool(hidden, batch.attention_mask, Pooling.LASTTOKEN))  # [B, 2]
    return logits[:, 0] - logits[:, 1]
