"""Tiny checkpoints of the vision-language families, and the drawing that their references saw."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from theodolite.testing import tiny

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def picture():
    """``picture(width, height, phase)``."""
    spec = importlib.util.spec_from_file_location("pictures", HERE / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    return pictures.picture


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """Writes the checkpoint of a golden file, once: ``checkpoint(name) -> (folder, golden)``."""
    made: dict[str, tuple[Path, dict]] = {}

    def get(name: str) -> tuple[Path, dict]:
        if name not in made:
            golden = tiny.read(HERE / "golden" / f"{name}.json")
            made[name] = tiny.write(tmp_path_factory.mktemp(name), golden), golden
        return made[name]

    return get
