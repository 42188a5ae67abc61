"""The public namespace: complete, sorted, lazy."""

from __future__ import annotations

import subprocess
import sys

import pytest

import theodolite


def test_all_is_sorted_and_complete() -> None:
    assert sorted(theodolite.__all__) == theodolite.__all__
    for name in theodolite.__all__:
        assert getattr(theodolite, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        theodolite.nonsense  # noqa: B018


def test_a_text_embed_imports_nothing_it_does_not_use(write) -> None:
    """No server, no pictures, no terminal, no Hub."""
    code = (
        "import sys, theodolite; theodolite.load(sys.argv[1]).embed(['rain']); "
        "print(*sorted({'aiohttp', 'PIL', 'rich', 'huggingface_hub', 'jinja2'} & set(sys.modules)))"
    )
    made = subprocess.run([sys.executable, "-c", code, str(write())], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == ""
