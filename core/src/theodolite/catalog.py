"""Which distribution provides which family, so that an error can say what to install.

``catalog.json`` is made from the plugins' pyprojects by ``nox -s catalog``; a test compares the two.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from theodolite.values import Task

if TYPE_CHECKING:
    from theodolite.checkpoint import Checkpoint


@cache
def _entries() -> dict[str, dict[str, Any]]:
    text = resources.files("theodolite").joinpath("catalog.json").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = json.loads(text)
    return entries


def families() -> list[str]:
    """Names of all families the project publishes."""
    return sorted(_entries())


def model_types(family: str) -> list[str]:
    """The ``model_type`` values a published family serves; empty for an unknown one."""
    return list(_entries().get(family, {}).get("model_types", []))


def task(family: str) -> Task:
    """What a published family is for."""
    return Task(_entries().get(family, {}).get("task", Task.EMBED.value))


def install_line(family: str) -> str | None:
    """``pip install NAME`` for a published family, else None."""
    entry = _entries().get(family)
    return f"pip install {entry['distribution']}" if entry else None


def serves(family: str, checkpoint: Checkpoint, task: Task | None) -> bool:
    """Whether a published family would claim ``checkpoint``, going by its declared model types."""
    entry = _entries().get(family)
    if entry is None or checkpoint.model_type not in entry["model_types"]:
        return False
    wanted = task or (Task.RERANK if checkpoint.is_classifier else Task.EMBED)
    return wanted.value == entry.get("task", "embed")
