"""Chat templates from the checkpoint, rendered in a sandbox, and tokenized so that a caller's text stays text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from theodolite.errors import CheckpointError, RequestError

if TYPE_CHECKING:
    import jinja2

    from theodolite.checkpoint import Checkpoint
    from theodolite.tokenize import Tokenizer

Message = dict[str, Any]
Build = Callable[[Sequence[str]], list[int]]
MARK = "\ue000{}\ue001"
"""Stands for a caller's text while a template is rendered: private-use characters that no template tests for."""
MARKED = re.compile("\ue000(\\d+)\ue001")


class Template:
    """A chat template of the checkpoint.

    :param source: its Jinja text.
    :param where: the file, for messages.
    :param tokens: what the template may call by name, such as ``eos_token``.
    :raises CheckpointError: if it does not parse.
    """

    def __init__(self, source: str, where: str, tokens: dict[str, str] | None = None) -> None:
        import jinja2

        self.where = where
        self._tokens = tokens or {}
        try:
            self._template = _compile(source)
        except jinja2.TemplateError as error:
            raise CheckpointError(f"{where} is no valid template: {error}") from None

    @classmethod
    def of(cls, checkpoint: Checkpoint, *names: str) -> Template:
        """The first of the files ``names`` that is there; then ``chat_template`` of tokenizer_config.json.

        :raises CheckpointError: if there is none.
        """
        for name in names:
            source = checkpoint.json(name).get("chat_template") if name.endswith(".json") else checkpoint.text(name)
            if isinstance(source, str):
                return cls(source, str(checkpoint.path / name), _named_tokens(checkpoint))
        raise CheckpointError(f"{checkpoint.path / names[0]} is missing; the prompt is rendered from it")

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt, ready for an answer.

        :raises CheckpointError: if the template cannot render these messages.
        """
        try:
            return self._template.render(messages=list(messages), **self._tokens, add_generation_prompt=True)
        except Exception as error:  # a template is a program of the checkpoint's and may fail in any way
            raise CheckpointError(f"{self.where} cannot be rendered: {error}") from None

    def pieces(
        self, messages: Callable[[Sequence[str]], list[Message]], texts: Sequence[str]
    ) -> list[tuple[str, bool]]:
        """The rendered prompt in pieces, each with whether it is a caller's text.

        :param messages: makes the messages out of the texts; called with marks in their place. An empty text is left
            empty, as templates may treat it apart.
        """
        marks = [MARK.format(i) if text else "" for i, text in enumerate(texts)]
        parts = MARKED.split(self.render(messages(marks)))  # scaffold, index, scaffold, index, scaffold
        return [(texts[int(part)], True) if i % 2 else (part, False) for i, part in enumerate(parts)]


def _named_tokens(checkpoint: Checkpoint) -> dict[str, str]:
    """The special tokens of tokenizer_config.json by name."""
    found = {}
    for name, token in checkpoint.json("tokenizer_config.json").items():
        content = token.get("content") if isinstance(token, dict) else token
        if name.endswith("_token") and isinstance(content, str):
            found[name] = content
    return found


@lru_cache(maxsize=16)
def _compile(source: str) -> jinja2.Template:
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # here, so that looking for families does not import it

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)


def _raise(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def encode(tokenizer: Tokenizer, pieces: Sequence[tuple[str, bool]]) -> list[int]:
    """Token ids of a rendered prompt: special tokens of the template are tokens, those in a caller's text are text.

    The text between two special tokens of the template is encoded in one go, as words may join across a border of
    template and caller.
    """
    special = _specials(tokenizer)
    ids: list[int] = []
    open_text = ""
    for text, from_caller in pieces:
        parts = [text] if from_caller or special is None else special.split(text)
        open_text += parts[0]
        for token, after in zip(parts[1::2], parts[2::2], strict=True):
            ids += _literal(tokenizer, open_text)
            token_id = tokenizer.id_of(token)
            assert token_id is not None
            ids.append(token_id)
            open_text = after
    return ids + _literal(tokenizer, open_text)


def _literal(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, special_tokens=False, literal=True) if text else []


def _specials(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    added = tokenizer.backend.get_added_tokens_decoder().values()
    names = sorted((token.content for token in added if token.special), key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, names)) + ")") if names else None


def fit(tokenizer: Tokenizer, texts: Sequence[str], limit: int, build: Build) -> tuple[list[int], int]:
    """The prompt of ``texts``, cut longest-first where it is longer than ``limit``; and how many tokens were cut.

    Only the texts are cut: what ``build`` puts around them, image placeholders included, is reserved first. Its length
    is measured as it is built, since a template's characters may share a token with a text's.

    :raises RequestError: if the prompt does not fit without any text.
    """
    whole = build(texts)
    if len(whole) <= limit:
        return whole, 0
    scaffold = len(build([""] * len(texts)))
    if limit <= scaffold or not any(texts):
        raise RequestError(f"the prompt needs {scaffold} tokens beside the text, max_length is {limit}")
    encodings = [tokenizer.backend.encode(text, add_special_tokens=False) for text in texts]
    room = limit - scaffold
    while room > 0:
        keep = longest_first([len(encoding.ids) for encoding in encodings], room)
        cut = [
            text if count == len(encoding.ids) else text[: encoding.offsets[count - 1][1]] if count else ""
            for text, encoding, count in zip(texts, encodings, keep, strict=True)
        ]
        ids = build(cut)
        if len(ids) <= limit:
            return ids, len(whole) - len(ids)
        room -= len(ids) - limit
    raise RequestError(f"the prompt needs {scaffold} tokens beside the text, max_length {limit} leaves no room for it")


def longest_first(lengths: Sequence[int], room: int) -> list[int]:
    """How much of each length stays if the longest is cut again and again; of two equal ones the second keeps more."""
    keep = list(lengths)
    for i in sorted(range(len(keep)), key=lambda i: lengths[i]):
        share = room // sum(1 for j in range(len(keep)) if (lengths[j], j) >= (lengths[i], i))
        keep[i] = min(lengths[i], share)
        room -= keep[i]
    return keep
