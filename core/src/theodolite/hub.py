"""Checkpoints from the Hugging Face Hub: the files that are read, into the Hub's cache or a folder of one's own."""

from __future__ import annotations

import glob
import json
import logging
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from theodolite.errors import CheckpointError

DEFAULT_REVISION = "main"
READ = {".json", ".jinja"}
"""Suffixes of what is read beside weights."""
TEMPLATES = "additional_chat_templates"
NUMBERED = re.compile(r"\d+_\w+")
"""Module folders by the sentence-transformers convention (``1_Pooling``, ``2_Dense``)."""
log = logging.getLogger("theodolite")
LAYOUTS = (("model", ".safetensors"), ("pytorch_model", ".bin"))


def locate(name: str, revision: str | None, models_dir: Path | None) -> Path | None:
    if not is_repository(name):
        return None
    revision = revision or DEFAULT_REVISION
    try:
        commit, files = _listing(name, revision)
        wanted = select(files, _module_folders(name, commit, files))
        if models_dir is not None:
            return _into(models_dir, name, revision, commit, wanted)
        return _cached(name, revision, commit, wanted) or _download(name, revision, wanted)
    except CheckpointError:
        raise
    except Exception as error:  # the client's HTTP library, and so the class, differs between its versions
        return _without_hub(name, revision, error)


def is_repository(name: str) -> bool:
    """Whether ``name`` may be a repository's, ``OWNER/NAME``, by the Hub's client's own rules."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return "/" in name  # the client also takes the few old names that have no owner


def select(files: Sequence[str], modules: Iterable[str] = ()) -> list[str]:
    """What to fetch of a repository's files: configurations, templates, and one copy of the weights.

    ``.bin`` files only where a folder has no safetensors; nothing of onnx, openvino or training-checkpoint folders.

    :param modules: paths of modules.json.
    """
    folders: dict[str, set[str]] = {}
    for file in files:
        path = PurePosixPath(file)
        folder = "" if path.parent == PurePosixPath(".") else str(path.parent)
        folders.setdefault(folder, set()).add(path.name)
    known = {"", TEMPLATES, *modules}
    chosen = []
    for folder, names in folders.items():
        if folder in known or NUMBERED.fullmatch(folder):
            weights = set() if folder == TEMPLATES else _weights(names)
            keep = {name for name in names if PurePosixPath(name).suffix in READ} | weights
            chosen += [f"{folder}/{name}" if folder else name for name in keep]
    return sorted(chosen)


def _weights(names: set[str]) -> set[str]:
    for stem, suffix in LAYOUTS:
        shards = {name for name in names if re.fullmatch(rf"{stem}-\d+-of-\d+{suffix}", name)}
        single = {f"{stem}{suffix}"} & names
        if f"{stem}{suffix}.index.json" in names or not single:
            single = shards or single
        if single:
            return single
        if found := {name for name in names if suffix == ".safetensors" and name.endswith(suffix)}:
            return found
    return set()


def _listing(name: str, revision: str) -> tuple[str, list[str]]:
    from huggingface_hub import HfApi

    info: Any = HfApi().model_info(name, revision=revision)
    return info.sha, [file.rfilename for file in info.siblings or []]


def _module_folders(name: str, commit: str, files: Sequence[str]) -> list[str]:
    """Paths of modules.json; a broken one is reported when the checkpoint is read."""
    if "modules.json" not in files:
        return []
    from huggingface_hub import hf_hub_download

    text = Path(hf_hub_download(name, "modules.json", revision=commit)).read_text(encoding="utf-8-sig")
    try:
        return [str(module["path"]) for module in json.loads(text)]
    except (ValueError, TypeError, KeyError):
        return []


def _cached(name: str, revision: str, commit: str, wanted: Sequence[str]) -> Path | None:
    """The snapshot if it is complete, and known in the cache by this revision; saves the client's questions."""
    from huggingface_hub import try_to_load_from_cache

    found = [try_to_load_from_cache(name, file, revision=commit) for file in wanted]
    config = try_to_load_from_cache(name, "config.json", revision=revision)
    if config not in found or not all(isinstance(path, str) for path in found):
        return None
    return Path(str(config)).parent


def _download(name: str, revision: str, wanted: Sequence[str], folder: Path | None = None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    if not sys.stderr.isatty():
        disable_progress_bars()
    patterns = [glob.escape(file) for file in wanted]
    return Path(snapshot_download(name, revision=revision, allow_patterns=patterns, local_dir=folder))


def _into(models_dir: Path, name: str, revision: str, commit: str, wanted: Sequence[str]) -> Path:
    """Download beside the final folder and rename when complete, so that half a checkpoint never has its name."""
    target = models_dir / folder_name(name, None if revision == DEFAULT_REVISION else revision)
    part = target.with_name(f".{target.name}.part")
    _download(name, commit, wanted, part)
    shutil.rmtree(part / ".cache", ignore_errors=True)
    return part.rename(target)


def folder_name(name: str, revision: str | None) -> str:
    """What a repository's folder is called below ``--models-dir``: ``OWNER/NAME``, or ``OWNER/NAME@REVISION``."""
    return name if revision is None else f"{name}@{revision.replace('/', '--')}"


def _without_hub(name: str, revision: str, error: Exception) -> Path:
    """The cached snapshot where the Hub cannot be asked, else one line that says why it cannot.

    What is missing in the snapshot is reported when the checkpoint is read.
    """
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import OfflineModeIsEnabled, RevisionNotFoundError

    reason = _explain(name, revision, error)
    found = (
        None
        if isinstance(error, RevisionNotFoundError)
        else try_to_load_from_cache(name, "config.json", revision=revision)
    )
    if not isinstance(found, str):
        raise reason from None
    if not isinstance(error, OfflineModeIsEnabled):
        log.warning("the copy in the cache is used: %s", reason)
    return Path(found).parent


def _explain(name: str, revision: str, error: Exception) -> CheckpointError:
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    match error:
        case GatedRepoError():
            reason = (
                f"{name} is gated: accept its terms at {constants.ENDPOINT}/{name}, "
                "then log in with `hf auth login` or set HF_TOKEN"
            )
        case RepositoryNotFoundError():
            reason = (
                f"{name} is neither a folder nor a repository of the Hub that can be seen without logging in "
                "(if it is private, log in with `hf auth login` or set HF_TOKEN)"
            )
        case RevisionNotFoundError():
            reason = f"{name} has no revision {revision!r} on the Hub"
        case OfflineModeIsEnabled():
            reason = f"{name} is neither a folder nor in the Hub's cache, and HF_HUB_OFFLINE forbids asking the Hub"
        case HfHubHTTPError(response=response) if response is not None:
            reason = f"{name}: the Hub answered with status {response.status_code} ({constants.ENDPOINT})"
        case OSError(errno=int()) if getattr(error, "filename", None):
            raise error  # a full or forbidden disk says itself what is wrong
        case _:
            cause = " ".join(str(error).split()) or "no answer"
            reason = f"{name} is no folder, and the Hub ({constants.ENDPOINT}) cannot be asked for it: {cause}"
    return CheckpointError(reason)
