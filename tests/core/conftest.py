"""A tiny BERT checkpoint to break in every way."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from theodolite.testing import tiny

GOLDEN = Path(__file__).parents[1] / "plugins/bert/golden/bert.json"
Write = Callable[..., Path]


@pytest.fixture(scope="session")
def recipe() -> dict[str, Any]:
    return tiny.read(GOLDEN)


@pytest.fixture
def write(recipe: dict[str, Any], tmp_path: Path) -> Write:
    """``write(config={...}, files={...}, drop=[...])``: the checkpoint with keys changed, files added or left out."""
    count = iter(range(100))

    def make(
        config: dict[str, Any] | None = None, files: dict[str, Any] | None = None, drop: tuple[str, ...] = ()
    ) -> Path:
        changed = copy.deepcopy(recipe)
        changed["files"]["config.json"] |= config or {}
        changed["files"] |= files or {}
        folder = tiny.write(tmp_path / f"checkpoint{next(count)}", changed)
        for name in drop:
            (folder / name).unlink()
        return folder

    return make
