"""Writes the tiny checkpoints of `tiny.py` for the tests of this folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("vision_tiny", Path(__file__).parent / "tiny.py")
assert spec is not None
assert spec.loader is not None
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)


@pytest.fixture(scope="session")
def picture():
    """``picture(width, height, phase)``: the drawing that the references saw."""
    return tiny.picture


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """Writes the checkpoint of a golden file, once: ``checkpoint(name) -> (folder, golden)``."""
    made: dict[str, tuple[Path, dict]] = {}

    def get(name: str) -> tuple[Path, dict]:
        if name not in made:
            golden = tiny.read(name)
            made[name] = tiny.write(tmp_path_factory.mktemp(name), golden), golden
        return made[name]

    return get
