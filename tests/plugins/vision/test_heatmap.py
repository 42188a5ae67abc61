"""`theodolite heatmap`: what it draws, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import theodolite
from theodolite.values import ImageItem, TextItem
from theodolite_cli import heatmap
from theodolite_cli.main import main


def draw(*args):
    return main(["heatmap", *map(str, args)])


@pytest.fixture
def page(picture, tmp_path):
    file = tmp_path / "page.png"
    picture(140, 84, 0.0).save(file)
    return file


@pytest.mark.parametrize(("name", "grid"), [("colqwen2_5", "3 x 5"), ("colidefics3", "4 x 4")])
def test_a_page_is_drawn(checkpoint, page, tmp_path, capsys, name, grid):
    output = tmp_path / "why.png"
    assert draw("-m", checkpoint(name)[0], "-q", "map", "--image", page, "-o", output) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{output}: 20 query tokens, {grid} patches, MaxSim ")
    drawn = Image.open(output)
    assert drawn.width > drawn.height > 500
    assert len(drawn.getcolors(drawn.width * drawn.height)) > 50


def test_similarities_are_the_cosines_of_tokens_and_cells(checkpoint, picture):
    embedder = theodolite.load(checkpoint("colqwen2_5")[0])
    image = picture(140, 84, 0.0)
    query, page = embedder.encode([TextItem("map"), ImageItem(image)])
    made = heatmap.similarities(embedder, query, page)
    vectors = embedder.embed(["map", image]).vectors
    assert made.shape == (20, 3, 5)
    np.testing.assert_allclose(made[7, 2, 3], vectors[0][7] @ vectors[1][page.image.slots[2 * 5 + 3]], atol=1e-5)


def test_the_best_patch_is_framed_and_the_brightest():
    heat = np.zeros((2, 4))
    heat[1, 2] = 1
    made = np.asarray(heatmap.overlay(Image.new("RGB", (40, 20), "white"), heat, 0, 1, best=True)).astype(int)
    assert made[10, 20].tolist() == [0, 255, 200]
    assert made[15, 25].tolist() != made[5, 25].tolist()
    flat = heatmap.overlay(Image.new("RGB", (40, 20)), np.full((2, 4), 0.5), 0.5, 0.5)
    assert len(np.unique(np.asarray(flat).reshape(-1, 3), axis=0)) == 1  # nothing stands out where nothing does


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"-q": "  "}, "--query is empty"),
        ({"--image": "nowhere.png"}, "no such file"),
        ({"-o": "why.txt"}, "ends in .png"),
        ({"-o": "no/such/why.png"}, "no such folder"),
    ],
)
def test_mistakes_are_found_before_anything_is_loaded(page, tmp_path, capsys, change, message):
    given = {"-m": "no/such/model", "-q": "map", "--image": page, "-o": tmp_path / "why.png"} | change
    assert draw(*(word for pair in given.items() for word in pair)) == 1
    assert message in capsys.readouterr().err


def test_a_model_without_a_vector_per_patch_is_refused(checkpoint, page, tmp_path, capsys):
    assert draw("-m", checkpoint("qwen3_vl")[0], "-q", "map", "--image", page, "-o", tmp_path / "why.png") == 1
    assert "gives no vector per patch" in capsys.readouterr().err
