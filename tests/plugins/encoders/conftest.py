"""Writes the tiny checkpoints of `tiny.py` for the tests of this folder."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("encoders_tiny", Path(__file__).parent / "tiny.py")
assert spec is not None
assert spec.loader is not None
_tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(_tiny)


@pytest.fixture(scope="session")
def tiny():
    """The module that writes tiny checkpoints."""
    return _tiny


@pytest.fixture(scope="session")
def golden():
    """``golden(name)``: a golden file, which the caller may change."""
    return lambda name: copy.deepcopy(_tiny.read(name))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """``checkpoint(golden)``: the folder of a golden file, changed or not."""
    return lambda golden: _tiny.write(tmp_path_factory.mktemp("encoder"), golden)
