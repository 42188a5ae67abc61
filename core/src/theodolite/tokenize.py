"""From prompts to rows of token ids, and from rows to a padded batch."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import models, normalizers

from theodolite.checkpoint import flag
from theodolite.errors import CheckpointError, RequestError
from theodolite.values import Batch, Prompt, Row, Task

if TYPE_CHECKING:
    from pathlib import Path

    from theodolite.checkpoint import Checkpoint
    from theodolite.values import Profile

CONFIG = "tokenizer_config.json"
LONGEST_FIRST = "longest_first"


class Tokenizer:
    """A checkpoint's tokenizer.json, with the padding and truncation baked into it taken out.

    Thread-safe: every setting is made once, here; encoding changes nothing.

    :raises CheckpointError: if tokenizer.json is missing or unreadable.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        if not checkpoint.has("tokenizer.json"):
            raise CheckpointError(f"{checkpoint.path}: tokenizer.json is missing, and no other tokenizer file is read")
        self.file = file = checkpoint.path / "tokenizer.json"
        config = checkpoint.json(CONFIG)
        self.backend = _load(file, checkpoint, config)
        inputs = config.get("model_input_names")
        self.segments: bool = not isinstance(inputs, list) or "token_type_ids" in inputs
        """Whether rows carry the template's segment ids; without them a model sees zeros."""
        self._truncating: dict[int, tokenizers.Tokenizer] = {}
        self.size: int = self.backend.get_vocab_size(with_added_tokens=True)
        self.pad_id = self._pad_id(config, checkpoint.json("special_tokens_map.json"))
        self.pads_left: bool = config.get("padding_side") == "left"
        template = self.backend.encode("a", add_special_tokens=True)
        real = [i for i, special in enumerate(template.special_tokens_mask) if not special]
        first, last = (real[0], real[-1] + 1) if real else (0, 0)
        self.leading: tuple[int, ...] = tuple(template.ids[:first])
        """Special tokens that the template puts before a text."""
        self.trailing: tuple[int, ...] = tuple(template.ids[last:])
        """Special tokens that the template puts after a text; they survive truncation."""

    @cached_property
    def _literal(self) -> tokenizers.Tokenizer:
        """The one to which special tokens that are spelled in a text are text."""
        backend = copy.deepcopy(self.backend)
        backend.encode_special_tokens = True
        return backend

    def encode(self, text: str, *, special_tokens: bool = True, literal: bool = False) -> list[int]:
        """Token ids of ``text``, not truncated.

        :param special_tokens: put the tokenizer's own template around it.
        :param literal: read special tokens that are spelled in the text as plain text.
        """
        backend = self._literal if literal else self.backend
        ids: list[int] = backend.encode(self._clean(text), add_special_tokens=special_tokens).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[tokenizers.Encoding]:
        """Encode several texts with the template around each, in parallel where the tokenizers library does so."""
        cleaned = [self._clean(text) for text in texts]
        if len(cleaned) == 1:  # waking the library's threads takes longer than a short text
            return [self.backend.encode(cleaned[0], add_special_tokens=True)]
        return self.backend.encode_batch(cleaned, add_special_tokens=True)

    def encode_pair(self, text: str, pair: str, limit: int) -> tuple[tokenizers.Encoding, int]:
        """Encode a pair with the checkpoint's pair template, cut longest-first to ``limit``; and how much was cut."""
        text, pair = self._clean(text), self._clean(pair)
        whole = self.backend.encode(text, pair, add_special_tokens=True)
        if len(whole.ids) <= limit:
            return whole, 0
        cut = self._cutting(limit).encode(text, pair, add_special_tokens=True)
        return cut, len(whole.ids) - len(cut.ids)

    def id_of(self, token: str) -> int | None:
        """The id of a token as it is spelled, None where the vocabulary has no such token."""
        found: int | None = self.backend.token_to_id(token)
        return found

    def token_of(self, token_id: int) -> str | None:
        """The spelling of a token id, None where the vocabulary has no such id."""
        found: str | None = self.backend.id_to_token(token_id)
        return found

    def _clean(self, text: str) -> str:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError(f"the text is not valid Unicode: lone surrogate at character {error.start}") from None
        return text

    def _cutting(self, limit: int) -> tokenizers.Tokenizer:
        if limit not in self._truncating:
            room = limit - self.backend.num_special_tokens_to_add(is_pair=True)
            if room < 1:
                raise RequestError(f"max_length {limit} leaves no room for a pair beside its special tokens")
            backend = copy.deepcopy(self.backend)
            backend.enable_truncation(limit, strategy=LONGEST_FIRST)
            self._truncating[limit] = backend
        return self._truncating[limit]

    def _pad_id(self, config: dict[str, Any], named: dict[str, Any]) -> int:
        for token in (config.get("pad_token"), named.get("pad_token"), config.get("eos_token")):
            content = token.get("content") if isinstance(token, dict) else token
            if isinstance(content, str) and (found := self.id_of(content)) is not None:
                return found
        return 0


WORDPIECE = ("Bert", "DistilBert", "Electra", "MPNet")
"""Families whose tokenizers transformers builds anew: their normalizers say what tokenizer_config.json says, whatever
tokenizer.json has."""


def _load(file: Path, checkpoint: Checkpoint, config: dict[str, Any]) -> tokenizers.Tokenizer:
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"{file} cannot be read: {error}") from None
    backend.no_padding()
    backend.no_truncation()
    kind = str(config.get("tokenizer_class") or ("BertTokenizer" if checkpoint.model_type == "bert" else ""))
    wordpiece = isinstance(backend.model, models.WordPiece)
    if wordpiece and kind.removesuffix("Fast").removesuffix("Tokenizer") in WORDPIECE:
        backend.normalizer = normalizers.BertNormalizer(
            lowercase=flag(checkpoint.path / CONFIG, config, "do_lower_case", True),
            strip_accents=config.get("strip_accents"),
            handle_chinese_chars=config.get("tokenize_chinese_chars") is not False,
        )
    side_file, side = checkpoint.sentence_config
    if flag(checkpoint.path / side_file, side, "do_lower_case", False) or kind == "Siglip2Tokenizer":
        # as the references do: before anything else, but special tokens stay what they are
        after = [] if backend.normalizer is None else [backend.normalizer]
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *after])
    return backend


def check_segments(tokenizer: Tokenizer, profile: Profile) -> None:
    """Refuse a tokenizer whose template gives segments that the model has no row for: a gather is not checked.

    :raises CheckpointError: naming both.
    """
    if profile.type_vocab_size is None or not tokenizer.segments:
        return
    single = tokenizer.backend.encode("a").type_ids
    both = tokenizer.backend.encode("a", "a").type_ids if profile.task is Task.RERANK else []
    if (worst := max([*single, *both], default=0)) >= profile.type_vocab_size:
        raise CheckpointError(
            f"{tokenizer.file}: the template gives segment {worst}, "
            f"the segment table has {profile.type_vocab_size} rows"
        )


def filler(tokenizer: Tokenizer, profile: Profile) -> int:
    """The token id that pads rows: the tokenizer's, or 0 where the model's table does not hold it.

    A table is often not resized after a padding token was added; where padding is masked, any token will do.

    :raises CheckpointError: where padding is not masked.
    """
    if tokenizer.pads_left and profile.padding == "right" and not profile.masked:
        raise CheckpointError(f"{tokenizer.file.parent / CONFIG}: padding_side left is not supported by this family")
    if tokenizer.pad_id < profile.vocab_size:
        return tokenizer.pad_id
    if not profile.masked:
        raise CheckpointError(
            f"{tokenizer.file}: the padding token has id {tokenizer.pad_id}, which is >= vocab_size "
            f"{profile.vocab_size}, and this family attends to padding"
        )
    return 0


def rows(tokenizer: Tokenizer, prompts: Sequence[Prompt], limit: int, vocab_size: int) -> list[Row]:
    """Tokenize and truncate prompts. Any thread.

    :raises RequestError: for a row without tokens, or with an id that the model's table does not hold.
    """
    plain = [i for i, prompt in enumerate(prompts) if _is_plain(prompt)]
    encoded = dict(zip(plain, tokenizer.encode_batch([prompts[i].text for i in plain]), strict=True)) if plain else {}
    made = []
    for i, prompt in enumerate(prompts):
        row = _plain(tokenizer, encoded[i], limit) if i in encoded else _row(tokenizer, prompt, limit)
        _check(tokenizer, row, vocab_size, f"input[{i}]")
        made.append(row)
    return made


def _is_plain(prompt: Prompt) -> bool:
    composed = prompt.prefix or prompt.suffix or prompt.literal or not prompt.special_tokens
    return prompt.pair is None and prompt.ids is None and not composed


def _plain(tokenizer: Tokenizer, encoding: tokenizers.Encoding, limit: int) -> Row:
    ids, types = encoding.ids, encoding.type_ids
    over = max(0, len(ids) - limit)
    if over:
        tail = min(len(tokenizer.trailing), limit)
        ids = ids[: limit - tail] + ids[len(ids) - tail :]
        types = types[: limit - tail] + types[len(types) - tail :]
    return Row(tuple(ids), _types(tokenizer, types), None, len(ids), over)


def _row(tokenizer: Tokenizer, prompt: Prompt, limit: int) -> Row:
    if prompt.ids is not None:
        ids = tuple(int(i) for i in prompt.ids[:limit])  # a plugin's may be NumPy's, which MLX does not take
        counted = len(ids) if prompt.prompt_tokens is None else prompt.prompt_tokens
        return Row(ids, None, prompt.image, counted, len(prompt.ids) - len(ids) + prompt.truncated)
    if prompt.pair is not None:
        encoding, over = tokenizer.encode_pair(prompt.text, prompt.pair, limit)
        return Row(tuple(encoding.ids), _types(tokenizer, encoding.type_ids), prompt.image, len(encoding.ids), over)
    before = tokenizer.encode(prompt.prefix, special_tokens=False) if prompt.prefix else []
    after = tokenizer.encode(prompt.suffix, special_tokens=False) if prompt.suffix else []
    if prompt.special_tokens:
        before, after = [*tokenizer.leading, *before], [*after, *tokenizer.trailing]
    text = tokenizer.encode(prompt.text, special_tokens=False, literal=prompt.literal) if prompt.text else []
    room = limit - len(before) - len(after)
    if room < 0 or (text and room == 0):
        raise RequestError(f"the prompt needs {len(before) + len(after)} tokens beside the text, max_length is {limit}")
    row = (*before, *text[:room], *after)
    return Row(row, None, prompt.image, len(row), max(0, len(text) - room))


def _types(tokenizer: Tokenizer, type_ids: list[int]) -> tuple[int, ...] | None:
    return tuple(type_ids) if tokenizer.segments and any(type_ids) else None


def _check(tokenizer: Tokenizer, row: Row, vocab_size: int, where: str) -> None:
    if not row.input_ids:
        raise RequestError(f"{where} has no tokens")
    if (worst := max(row.input_ids)) >= vocab_size:
        token = tokenizer.token_of(worst)
        spelled = f" ({json.dumps(token)})" if token else ""
        raise RequestError(f"{where} contains token id {worst}{spelled}, which is >= vocab_size {vocab_size}")
    if min(row.input_ids) < 0:
        raise RequestError(f"{where} contains the negative token id {min(row.input_ids)}")


def batch(rows: Sequence[Row], profile: Profile, pad_id: int) -> Batch:
    """Pad rows to one length, on the side and to the width that the family declares. On the model's thread."""
    import mlx.core as mx

    width = profile.width or max(len(row.input_ids) for row in rows)

    def padded(part: tuple[int, ...], filler: int) -> tuple[int, ...]:
        padding = (filler,) * (width - len(part))
        return padding + part if profile.padding == "left" else part + padding

    input_ids = [padded(row.input_ids, pad_id) for row in rows]
    attention_mask = [padded((1,) * len(row.input_ids), 0) for row in rows]
    token_type_ids = None
    if any(row.token_type_ids for row in rows):
        token_type_ids = mx.array([padded(row.token_type_ids or (), 0) for row in rows], mx.int32)
    return Batch(
        mx.array(input_ids, mx.int32),  # [B, L]
        mx.array(attention_mask, mx.int32),
        token_type_ids,
        tuple(row.image for row in rows),
    )
