"""Checkpoints from the Hugging Face Hub."""

from __future__ import annotations

import re
from pathlib import Path

from theodolite.errors import CheckpointError
from theodolite.hookspecs import hookimpl

REPO_ID = re.compile(r"^[\w.-]+/[\w.-]+$")


@hookimpl(trylast=True)
def locate(name: str, revision: str | None, models_dir: Path | None) -> Path | None:
    if not REPO_ID.match(name):
        return None
    raise CheckpointError(f"{name}: no such folder, and the Hub is not wired up")
