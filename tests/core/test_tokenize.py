"""Tokens: what is baked in is taken out, ids are checked before they reach a table, templates survive truncation."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tokenizers

import theodolite
from theodolite import tokenize
from theodolite.checkpoint import Checkpoint
from theodolite.errors import CheckpointError, RequestError
from theodolite.tokenize import Tokenizer
from theodolite.values import Prompt, TokenItem

LIMIT, VOCABULARY = 8, 1000


@pytest.fixture
def tokenizer(write) -> Tokenizer:
    return Tokenizer(Checkpoint(write()))


def encode(tokenizer: Tokenizer, prompt: Prompt, limit: int = LIMIT) -> tokenize.Row:
    [row] = tokenize.rows(tokenizer, [prompt], limit, VOCABULARY)
    return row


def test_baked_padding_and_truncation_are_taken_out(write) -> None:
    folder = write()
    plain = Tokenizer(Checkpoint(folder)).encode("the cat sat on a mat")
    baked = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    baked.enable_padding(length=128)
    baked.enable_truncation(4)
    baked.save(str(folder / "tokenizer.json"))
    assert Tokenizer(Checkpoint(folder)).encode("the cat sat on a mat") == plain
    assert len(plain) == 8


def test_truncation_keeps_the_trailing_special_token(tokenizer: Tokenizer) -> None:
    whole = tokenizer.encode("the cat sat on a mat and more rain")
    row = encode(tokenizer, Prompt(text="the cat sat on a mat and more rain"))
    assert list(row.input_ids) == whole[: LIMIT - 1] + whole[-1:]
    assert row.truncated == len(whole) - LIMIT
    assert row.prompt_tokens == LIMIT


def test_a_special_token_spelled_in_a_text_is_not_the_trailing_one(tokenizer: Tokenizer) -> None:
    row = encode(tokenizer, Prompt(text="the cat [SEP] sat [SEP] on a mat [SEP]"))
    assert row.input_ids[-1] == tokenizer.id_of("[SEP]")
    assert list(row.input_ids[:3]) == tokenizer.encode("the cat [SEP]")[:3]


@pytest.mark.parametrize("beyond", [0, 1, 100_000])
def test_padding_that_the_table_does_not_hold(write, beyond: int) -> None:
    """A padding token that was added without resizing the table: what lies behind the table must not be read."""
    folder = write()
    texts = ["the cat", "the cat sat on a mat and more rain"]
    wanted = theodolite.load(folder).embed(texts).vectors
    config = json.loads((folder / "config.json").read_text())
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_special_tokens(
        [f"[unused{i}]" for i in range(config["vocab_size"] + beyond - backend.get_vocab_size())]
    )
    backend.add_special_tokens(["[FILL]"])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "[FILL]"}))
    embedder = theodolite.load(folder)
    assert embedder.tokenizer.pad_id == config["vocab_size"] + beyond
    np.testing.assert_allclose(embedder.embed(texts).vectors, wanted, atol=1e-6)


def test_token_ids_are_cut_from_the_right_verbatim(tokenizer: Tokenizer) -> None:
    row = encode(tokenizer, Prompt(ids=tuple(range(20, 40))))
    assert row.input_ids == tuple(range(20, 28))
    assert row.truncated == 12


def test_token_ids_of_a_plugin_may_be_numpys(tokenizer: Tokenizer) -> None:
    row = encode(tokenizer, Prompt(ids=tuple(np.arange(20, 24))))
    assert row.input_ids == (20, 21, 22, 23)
    assert {type(i) for i in row.input_ids} == {int}


def test_prefix_and_suffix_survive(tokenizer: Tokenizer) -> None:
    prompt = Prompt(text="cat " * 50, prefix="query", suffix="rain", special_tokens=False)
    row = encode(tokenizer, prompt)
    assert row.input_ids[0] == tokenizer.id_of("query")
    assert row.input_ids[-1] == tokenizer.id_of("rain")
    assert len(row.input_ids) == LIMIT
    whole = encode(tokenizer, Prompt(text="cat", prefix="query", suffix="rain"))
    assert list(whole.input_ids) == tokenizer.encode("query cat rain")
    with pytest.raises(RequestError, match="max_length is 2"):
        encode(tokenizer, prompt, limit=2)


def test_literal_text_cannot_smuggle_special_tokens(tokenizer: Tokenizer) -> None:
    separator = tokenizer.id_of("[SEP]")
    assert separator in tokenizer.encode("a [SEP] b", special_tokens=False)
    assert separator not in tokenizer.encode("a [SEP] b", special_tokens=False, literal=True)
    assert separator in tokenizer.encode("a [SEP] b", special_tokens=False)  # the setting is no state


@pytest.mark.parametrize("limit", range(4, 14))
def test_pairs_are_cut_longest_first(tokenizer: Tokenizer, limit: int) -> None:
    """Against the rule written out: drop from the longer side; a tie drops from the side that started shorter."""
    query, document = "the cat sat on a", "rain falls over the hills and mat"
    left, right = (tokenizer.encode(text, special_tokens=False) for text in (query, document))
    a, b, room = len(left), len(right), limit - 3
    first_longer = a > b
    while a + b > room:
        if a > b or (a == b and not first_longer):
            a -= 1
        else:
            b -= 1
    cls, sep = tokenizer.id_of("[CLS]"), tokenizer.id_of("[SEP]")
    row = encode(tokenizer, Prompt(text=query, pair=document), limit)
    assert list(row.input_ids) == [cls, *left[:a], sep, *right[:b], sep]
    assert row.token_type_ids == (0,) * (a + 2) + (1,) * (b + 1)


def test_a_pair_without_room_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="no room"):
        encode(tokenizer, Prompt(text="cat", pair="mat"), limit=3)


@pytest.mark.parametrize("ids", [(-1,), (1, -7), (VOCABULARY,), (3, 10**9)])
def test_ids_outside_the_table_never_reach_it(tokenizer: Tokenizer, ids) -> None:
    with pytest.raises(RequestError, match=r"input\[0\]"):
        encode(tokenizer, Prompt(ids=ids))


def test_a_word_the_table_has_no_row_for_is_refused(write) -> None:
    """The tokenizer knows `zebra`, the model's table does not (case D01)."""
    folder = write()
    content = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    content.add_tokens(["zebra"])
    content.save(str(folder / "tokenizer.json"))
    embedder = theodolite.load(folder)
    with pytest.raises(RequestError, match="zebra"):
        embedder.embed(["the cat", "a zebra"])
    assert len(embedder.embed(["the cat"])) == 1


@pytest.mark.parametrize("bad", [[True], [1.5], ["1"], [], [[1]]])
def test_only_whole_numbers_are_token_ids(write, bad) -> None:
    with pytest.raises(RequestError):
        theodolite.load(write()).embed([[5, 6], bad])


def test_token_items_are_not_given_special_tokens(write) -> None:
    embedder = theodolite.load(write())
    [row] = embedder.encode([TokenItem((7, 8))])
    assert row.input_ids == (7, 8)


def test_lone_surrogates_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="surrogate at character 2"):
        encode(tokenizer, Prompt(text="ab\ud800"))


@pytest.mark.parametrize("asked", [True, False])
def test_do_lower_case_lowers_and_never_unlowers(write, asked: bool) -> None:
    """Case D06: true lowers although the tokenizer is cased; false does not switch off its own lowering."""
    folder = write(files={"sentence_bert_config.json": {"do_lower_case": asked}})
    content = json.loads((folder / "tokenizer.json").read_text())
    if asked:
        content["normalizer"] = None
        (folder / "tokenizer.json").write_text(json.dumps(content))
    embedder = theodolite.load(folder)
    upper, lower = embedder.embed(["THE CAT SAT", "the cat sat"]).vectors
    assert abs(upper - lower).max() < 1e-6


@pytest.mark.parametrize(
    ("config", "token"),
    [
        ({"pad_token": "[PAD]"}, "[PAD]"),
        ({"pad_token": {"content": "[MASK]"}}, "[MASK]"),
        ({"pad_token": None, "eos_token": "[SEP]"}, "[SEP]"),
        ({"pad_token": "no such token", "eos_token": "[SEP]"}, "[SEP]"),
        ({}, "[PAD]"),
    ],
)
def test_the_pad_token(write, config, token) -> None:
    tokenizer = Tokenizer(Checkpoint(write(files={"tokenizer_config.json": config})))
    assert tokenizer.pad_id == tokenizer.id_of(token)


UPPER = "THE CAT [SEP] SAT"


@pytest.mark.parametrize(
    ("stored", "config", "lowers"),
    [
        (False, {"tokenizer_class": "BertTokenizer", "do_lower_case": True}, True),
        (False, {"tokenizer_class": "BertTokenizerFast"}, True),
        (True, {"tokenizer_class": "BertTokenizer", "do_lower_case": False}, False),
        (False, {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}, False),
        (False, {"tokenizer_class": "DistilBertTokenizer"}, True),
        (False, {}, True),  # a BERT that names no class has BERT's
    ],
)
def test_whether_a_bert_tokenizer_lowers(write, stored: bool, config: dict, lowers: bool) -> None:
    """transformers builds the normalizer of a BertTokenizer from tokenizer_config.json, by default lowering."""
    folder = write(files={"tokenizer_config.json": config})
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    plain = tokenizers.normalizers.Sequence([tokenizers.normalizers.NFC()])
    backend.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True) if stored else plain
    backend.save(str(folder / "tokenizer.json"))
    made = Tokenizer(Checkpoint(folder))
    assert (made.encode("THE CAT") == made.encode("the cat")) == lowers


def test_lowering_leaves_special_tokens_alone(write) -> None:
    cased = {"tokenizer_class": "BertTokenizer", "do_lower_case": False}
    folder = write(files={"sentence_bert_config.json": {"do_lower_case": True}, "tokenizer_config.json": cased})
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=False)
    backend.save(str(folder / "tokenizer.json"))
    made = Tokenizer(Checkpoint(folder))
    assert made.encode(UPPER) == made.encode("the cat [SEP] sat")
    assert made.encode(UPPER).count(made.id_of("[SEP]")) == 2


def test_a_text_between_prefix_and_suffix_keeps_its_beginning(tokenizer: Tokenizer) -> None:
    row = encode(tokenizer, Prompt(text="cat sat on a mat over hills", prefix="the", suffix="rain"))
    whole = tokenizer.encode("the cat sat on a mat over hills rain")
    assert list(row.input_ids) == [*whole[: LIMIT - 2], *whole[-2:]]


def test_segments_are_cut_as_their_tokens_are(write) -> None:
    folder = write()
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    special = [(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:1", pair=None, special_tokens=special
    )
    backend.save(str(folder / "tokenizer.json"))
    row = encode(Tokenizer(Checkpoint(folder)), Prompt(text="the cat sat on a mat and more rain"))
    assert row.token_type_ids == (*[0] * (LIMIT - 1), 1)


def test_a_segment_that_the_table_does_not_hold(write) -> None:
    folder = write()
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    special = [(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS]:0 $A:2 [SEP]:0", pair=None, special_tokens=special
    )
    backend.save(str(folder / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="gives segment 2, the segment table has 2 rows"):
        theodolite.load(folder)
