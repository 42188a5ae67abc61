"""Environment variables: THEODOLITE_NAME first, then MLXCEL_NAME, then the llama-server spelling where it has one."""

from __future__ import annotations

import os

PREFIXES = ("THEODOLITE_", "MLXCEL_")


def names(name: str, *llama: str) -> tuple[str, ...]:
    """Every variable that sets ``name``, in the order in which they win."""
    return (*(prefix + name for prefix in PREFIXES), *llama)


def source(name: str, *llama: str) -> str | None:
    """The first variable that is set and not empty, else None."""
    return next((key for key in names(name, *llama) if os.environ.get(key)), None)


def read(name: str, *llama: str) -> str | None:
    """The value of the first variable that is set and not empty, else None."""
    key = source(name, *llama)
    return None if key is None else os.environ[key]
