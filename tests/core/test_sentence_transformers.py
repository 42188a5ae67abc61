"""Every module and key of the side files is applied, refused by name, or known to do nothing."""

from __future__ import annotations

import numpy as np
import pytest

import theodolite
from theodolite.errors import CheckpointError, RequestError, Unsupported

BASE = "sentence_transformers.models."


def modules(*names: str) -> list[dict[str, object]]:
    entries = [("", "Transformer"), ("1_Pooling", "Pooling"), *((f"{i}_{n}", n) for i, n in enumerate(names, 2))]
    return [{"idx": i, "name": str(i), "path": path, "type": BASE + name} for i, (path, name) in enumerate(entries)]


@pytest.mark.parametrize("name", ["Dense", "LSTM", "CNN", "BoW", "WeightedLayerPooling", "LayerNorm", "Router"])
def test_a_module_that_nobody_applies_is_refused_by_name(write, name) -> None:
    with pytest.raises(Unsupported, match=name):
        theodolite.load(write(files={"modules.json": modules(name)}))


def test_modules_without_effect(write) -> None:
    plain = theodolite.load(write()).embed(["the cat"]).vectors
    for extra in (("Normalize",), ("Dropout",), ()):
        found = theodolite.load(write(files={"modules.json": modules(*extra)})).embed(["the cat"]).vectors
        np.testing.assert_array_equal(found, plain)


def test_a_pooling_width_that_is_not_the_models(write) -> None:
    files = {"1_Pooling/config.json": {"pooling_mode": "mean", "word_embedding_dimension": 63}}
    with pytest.raises(CheckpointError, match="63"):
        theodolite.load(write(files=files))


@pytest.fixture
def prompted(write) -> theodolite.Embedder:
    side = {"prompts": {"query": "query ", "document": "passage "}, "default_prompt_name": "query"}
    return theodolite.load(write(files={"config_sentence_transformers.json": side}))


def test_prompts_are_used_by_name_and_never_by_default(prompted, caplog) -> None:
    text = "the cat"
    plain, named, spelled = (
        prompted.embed([text]).vectors[0],
        prompted.embed([text], prompt_name="query").vectors[0],
        prompted.embed(["query the cat"]).vectors[0],
    )
    np.testing.assert_array_equal(named, spelled)
    assert np.abs(plain - named).max() > 1e-3
    np.testing.assert_array_equal(prompted.embed_query(text), named)
    document = prompted.embed(["passage the cat"]).vectors[0]
    np.testing.assert_array_equal(prompted.embed_document(text), document)


def test_an_unknown_prompt_lists_those_there_are(prompted) -> None:
    with pytest.raises(RequestError, match="document, query"):
        prompted.embed(["the cat"], prompt_name="nonsense")


@pytest.mark.parametrize(
    "settings",
    [
        {"config_args": {"num_hidden_layers": 1}},
        {"tokenizer_args": {"model_max_length": 12}},
        {"processing_kwargs": {"text": {"max_length": 12}}},
        {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}},
    ],
)
def test_settings_of_the_transformer_module_that_nobody_applies(write, settings) -> None:
    with pytest.raises(Unsupported, match=r"sentence_bert_config\.json"):
        theodolite.load(write(files={"sentence_bert_config.json": settings}))


def test_a_prompt_that_is_null_puts_nothing_before_a_text(write) -> None:
    files = {"config_sentence_transformers.json": {"prompts": {"query": None}}}
    embedder = theodolite.load(write(files=files))
    np.testing.assert_array_equal(embedder.embed_query("a cat"), embedder.embed(["a cat"]).vectors[0])
    with pytest.raises(CheckpointError, match="prompts should be an object of texts"):
        theodolite.load(write(files={"config_sentence_transformers.json": {"prompts": {"query": 3}}})).prompts  # noqa: B018
