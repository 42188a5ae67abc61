"""Qwen3-VL's prompts: the checkpoint's chat template around a caller's texts and images."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from theodolite import sentence_transformers
from theodolite.checkpoint import Checkpoint
from theodolite.nn import qwen_vision
from theodolite.pixels import QwenProcessor
from theodolite.values import ImageItem, Prompt, TextItem
from theodolite_qwen3_vl import template
from theodolite_qwen3_vl.template import Message, Template

if TYPE_CHECKING:
    from theodolite.tokenize import Tokenizer

PATCH_SIZE = 16
DEFAULT_INSTRUCTION = "Represent the user's input."
CHAT_TEMPLATES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")


def instruction_or_default(checkpoint: Checkpoint, instruction: str | None) -> str:
    """The instruction of a request, closed with a full stop as the model card's wrapper does; else the checkpoint's."""
    if instruction and (stripped := instruction.strip()):
        return stripped if unicodedata.category(stripped[-1]).startswith("P") else stripped + "."
    name = checkpoint.json(sentence_transformers.CONFIG).get("default_prompt_name")
    return sentence_transformers.prompts(checkpoint).get(name or "") or DEFAULT_INSTRUCTION


def content(item: TextItem | ImageItem, text: str) -> list[dict[str, str]]:
    """One side of a conversation: the image first, then the text, each only where there is one."""
    parts = [{"type": "image"}] if isinstance(item, ImageItem) else []
    return [*parts, {"type": "text", "text": text}] if text else parts


def system(instruction: str) -> Message:
    """The turn that carries an instruction."""
    return {"role": "system", "content": [{"type": "text", "text": instruction}]}


def rendered(
    checkpoint: Checkpoint,
    chat: Template,
    messages: Callable[[Sequence[str]], list[Message]],
    items: Sequence[TextItem | ImageItem],
    tokenizer: Tokenizer,
    limit: int,
    *fixed: str,
) -> Prompt:
    """The tokenized prompt of one row, with a placeholder per visual token.

    :param messages: makes the conversation out of the items' texts and the ``fixed`` ones.
    :param fixed: a caller's texts that are never cut, such as an instruction.
    :raises RequestError: if it does not fit into ``limit`` tokens even without a text.
    """
    config = checkpoint.config
    image_token: int = config["image_token_id"]
    images = []
    if any(isinstance(item, ImageItem) for item in items):
        process = QwenProcessor.of(checkpoint, config.get("vision_config") or {}, PATCH_SIZE)
        images = [process(item.image) for item in items if isinstance(item, ImageItem)]

    def build(texts: Sequence[str]) -> list[int]:
        ids = template.encode(tokenizer, chat.pieces(messages, [*texts, *fixed]))
        return qwen_vision.expand(ids, image_token, images)

    ids, cut = template.fit(tokenizer, [item.text for item in items], limit, build)
    return Prompt(ids=tuple(ids), image=qwen_vision.vision(ids, image_token, images), truncated=cut)


def embed(
    checkpoint: Checkpoint, item: TextItem | ImageItem, instruction: str | None, tokenizer: Tokenizer, limit: int
) -> Prompt:
    """The prompt of one input of the embedder."""

    def messages(texts: Sequence[str]) -> list[Message]:
        return [system(texts[1]), {"role": "user", "content": content(item, texts[0])}]

    chat = Template.of(checkpoint, *CHAT_TEMPLATES)
    task = instruction_or_default(checkpoint, instruction)
    return rendered(checkpoint, chat, messages, [item], tokenizer, limit, task)
