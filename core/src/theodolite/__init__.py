"""Embedding and reranking checkpoints on MLX, over plugins.

>>> import theodolite
>>> embedder = theodolite.load("sentence-transformers/all-MiniLM-L6-v2")
>>> vectors = embedder.embed(["The weather is lovely today."]).vectors   # [1, 384] float32
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from theodolite.api import load, load_reranker
    from theodolite.embedder import Embedder
    from theodolite.errors import TheodoliteError
    from theodolite.hookspecs import hookimpl
    from theodolite.late_interaction import maxsim, maxsim_matrix, maxsim_padded, similarity
    from theodolite.reranker import Reranker

_HOMES = {
    "Embedder": "embedder",
    "Reranker": "reranker",
    "TheodoliteError": "errors",
    "hookimpl": "hookspecs",
    "load": "api",
    "load_reranker": "api",
    "maxsim": "late_interaction",
    "maxsim_matrix": "late_interaction",
    "maxsim_padded": "late_interaction",
    "similarity": "late_interaction",
}

__all__ = [
    "Embedder",
    "Reranker",
    "TheodoliteError",
    "hookimpl",
    "load",
    "load_reranker",
    "maxsim",
    "maxsim_matrix",
    "maxsim_padded",
    "similarity",
]


def __getattr__(name: str) -> Any:
    """Import on first use, so that a plugin that needs one decorator does not pay for MLX."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"theodolite.{_HOMES[name]}"), name)
