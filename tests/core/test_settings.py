"""Environment variables: which spelling wins."""

from __future__ import annotations

import pytest

from theodolite import settings


def test_the_order_of_spellings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.names("FOO", "LLAMA_ARG_FOO") == ("THEODOLITE_FOO", "MLXCEL_FOO", "LLAMA_ARG_FOO")
    assert settings.read("FOO", "LLAMA_ARG_FOO") is None
    for name, value in (("LLAMA_ARG_FOO", "c"), ("MLXCEL_FOO", "b"), ("THEODOLITE_FOO", "a")):
        monkeypatch.setenv(name, value)
        assert settings.read("FOO", "LLAMA_ARG_FOO") == value
        assert settings.source("FOO", "LLAMA_ARG_FOO") == name
    monkeypatch.setenv("THEODOLITE_FOO", "")
    assert settings.read("FOO", "LLAMA_ARG_FOO") == "b"
