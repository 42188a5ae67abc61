"""From a name to a checkpoint folder: a folder itself, then packages that ship a checkpoint, then the Hub."""

from __future__ import annotations

from pathlib import Path

from theodolite import registry
from theodolite.errors import CheckpointError

DEFAULT = "sentence-transformers/all-MiniLM-L6-v2"


def find(name: str, revision: str | None = None, models_dir: Path | None = None) -> Path:
    """The folder of the checkpoint called ``name``.

    :raises CheckpointError: if it is neither a folder, nor shipped by a package, nor to be had from the Hub.
    """
    for folder in (Path(name).expanduser(), *([models_dir / name] if models_dir else [])):
        if folder.is_dir():
            return folder
    from theodolite import hub

    hook, _ = registry.hooks("theodolite.locators", hub)
    found = hook.locate(name=name, revision=revision, models_dir=models_dir)
    if found is None:
        raise CheckpointError(f"{name}: no such folder, and not the name of a Hub repository (OWNER/NAME)")
    return Path(found)
