"""Every vision-language family against transformers (tests/parity/make_vision.py), and against itself over time."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import theodolite
from theodolite.errors import CheckpointError, RequestError, Unsupported
from theodolite.values import ImageItem, TextItem

EMBEDDERS = ["qwen3_vl", "colqwen2_5", "colidefics3", "nemotron_vl"]
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def embedder(checkpoint):
    loaded: dict[str, theodolite.Embedder] = {}

    def get(name):
        if name not in loaded:
            loaded[name] = theodolite.load(checkpoint(name)[0])
        golden = checkpoint(name)[1]
        return loaded[name], [*golden["answers"], *golden["pictures"]]

    return get


def item(answer, picture):
    if answer.get("image") is None:
        return TextItem(answer["text"])
    size, phase = answer["image"]
    return ImageItem(picture(*size, phase), answer["text"])


@pytest.mark.parametrize("name", EMBEDDERS)
def test_vectors_are_the_references(embedder, picture, name):
    model, answers = embedder(name)
    for answer in answers:
        made = model.embed([item(answer, picture)])
        assert made.prompt_tokens == answer["tokens"]
        np.testing.assert_allclose(made.vectors[0], answer["vector"], atol=TOLERANCE)


@pytest.mark.parametrize("name", EMBEDDERS)
def test_nothing_of_a_request_stays_for_the_next(embedder, picture, name):
    model, answers = embedder(name)
    texts, images = ([a for a in answers if ("image" in a) is not plain] for plain in (True, False))
    order = [texts[0], images[0], texts[0], images[1], images[0], texts[0]]
    for answer in order:
        np.testing.assert_allclose(model.embed([item(answer, picture)]).vectors[0], answer["vector"], atol=TOLERANCE)
    long = TextItem("a longer text " * 20)
    together = model.embed([item(answer, picture) for answer in order] + [long], batch_size=3)
    for answer, vector in zip(order, together.vectors, strict=False):
        np.testing.assert_allclose(vector, answer["vector"], atol=TOLERANCE)


def test_scores_are_the_references_in_any_batch(checkpoint, picture):
    folder, golden = checkpoint("qwen3_vl_reranker")
    reranker = theodolite.load_reranker(folder)
    assert reranker.kind == "generative_vl"
    answers = [*golden["answers"], *golden["pictures"]]

    def side(text, image):
        return TextItem(text) if image is None else ImageItem(picture(*image[0], image[1]), text)

    for answer in answers:
        query, document = (
            side(answer["query"], answer.get("query_image")),
            side(answer["document"], answer.get("image")),
        )
        made = reranker.rank(query, [document], instruction=answer.get("instruction"), raw_scores=True)
        assert made.prompt_tokens == answer["tokens"]
        np.testing.assert_allclose(made.scores, [answer["logit"]], atol=1e-4)
    pair = [answer for answer in answers if answer["query"] == "what is it?"]
    for batch_size in (1, 8):
        documents = [answer["document"] for answer in pair] * 2
        made = reranker.rank("what is it?", documents, raw_scores=True, batch_size=batch_size)
        np.testing.assert_allclose(made.scores, [answer["logit"] for answer in pair] * 2, atol=1e-4)


def test_an_image_that_does_not_fit_is_refused_and_never_cut(checkpoint, picture):
    for name in EMBEDDERS:
        model = theodolite.load(checkpoint(name)[0], max_length=12)
        with pytest.raises(RequestError, match="max_length is 12"):
            model.embed([ImageItem(picture(64, 64, 0.0))])


@pytest.mark.parametrize("name", ["colqwen2_5", "colidefics3", "nemotron_vl"])
def test_a_text_beside_an_image_is_refused_where_the_format_has_no_place_for_it(embedder, picture, name):
    with pytest.raises(RequestError, match="an image or a text"):
        embedder(name)[0].embed([ImageItem(picture(64, 64, 0.0), "and a text")])


def test_the_cells_of_a_page_are_its_visual_tokens_in_reading_order(embedder, picture):
    [row] = embedder("colqwen2_5")[0].encode([ImageItem(picture(140, 84, 0.0))])
    first = row.image.slots[0]
    assert row.image.cells.tolist() == [list(range(first + 5 * r, first + 5 * r + 5)) for r in range(3)]

    # ColIdefics3: two tiles of 2 x 2 tokens side by side, then the whole page, which is no part of the cells
    [row] = embedder("colidefics3")[0].encode([ImageItem(picture(64, 32, 0.0))])
    one, two = row.image.slots[:4], row.image.slots[4:8]
    assert row.image.cells.tolist() == [[one[0], one[1], two[0], two[1]], [one[2], one[3], two[2], two[3]]]


def test_adapters_and_masked_embeddings_are_refused(checkpoint, tmp_path):

    folder = tmp_path / "masked"
    shutil.copytree(checkpoint("colidefics3")[0], folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"mask_non_image_embeddings": True}))
    with pytest.raises(Unsupported, match="mask_non_image_embeddings"):
        theodolite.load(folder)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    with pytest.raises(Unsupported, match="merge it into its base model"):
        theodolite.load(folder)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("qwen3_vl", "preprocessor_config.json"),
        ("qwen3_vl", "chat_template.jinja"),
        ("colqwen2_5", "preprocessor_config.json"),
        ("colidefics3", "preprocessor_config.json"),
    ],
)
def test_a_folder_without_what_an_image_needs_is_refused_at_load(checkpoint, tmp_path, name, file):

    shutil.copytree(checkpoint(name)[0], tmp_path / "folder")
    (tmp_path / "folder" / file).unlink()
    with pytest.raises(CheckpointError, match=f"{file} is missing"):
        theodolite.load(tmp_path / "folder")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("qwen3_vl", "image_token_id"),
        ("colqwen2_5", "image_token_id"),
        ("colidefics3", "image_token_id"),
        ("nemotron_vl", "img_context_token_id"),
    ],
)
def test_a_placeholder_that_the_tokenizer_does_not_write_is_an_error(checkpoint, picture, tmp_path, name, key):
    shutil.copytree(checkpoint(name)[0], tmp_path / "folder")
    file = tmp_path / "folder" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: 5}))
    with pytest.raises(CheckpointError, match="image token 5 stands 0 times"):
        theodolite.load(tmp_path / "folder").embed([picture(64, 64, 0.0)])
