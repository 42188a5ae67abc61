"""The Python API's two doors: `load` and `load_reranker`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from theodolite import locate
from theodolite.checkpoint import Checkpoint
from theodolite.embedder import Embedder
from theodolite.engine import Options
from theodolite.reranker import Reranker
from theodolite.values import Task


def load(
    name_or_path: str | Path = locate.DEFAULT,
    *,
    revision: str | None = None,
    models_dir: str | Path | None = None,
    **options: Any,
) -> Embedder:
    """Load an embedding checkpoint.

    :param name_or_path: a folder, or the name of a Hub repository (``BAAI/bge-m3``).
    :param revision: of a Hub repository.
    :param models_dir: a folder of checkpoints to look in before the Hub, and to download into.
    :param options: fields of `theodolite.engine.Options`: family, dtype, max_length, pooling, kernels.
    :raises CheckpointError: if it cannot be found, or cannot be right.
    """
    return Embedder(_checkpoint(name_or_path, revision, models_dir), Task.EMBED, Options(**options))


def load_reranker(
    name_or_path: str | Path,
    *,
    revision: str | None = None,
    models_dir: str | Path | None = None,
    **options: Any,
) -> Reranker:
    """Load a reranker: a one-label cross-encoder, or a Qwen3 or Qwen3-VL reranker. Arguments as in `load`."""
    return Reranker(_checkpoint(name_or_path, revision, models_dir), Task.RERANK, Options(**options))


def _checkpoint(name: str | Path, revision: str | None, models_dir: str | Path | None) -> Checkpoint:
    return locate.checkpoint(str(name), revision, None if models_dir is None else Path(models_dir))
