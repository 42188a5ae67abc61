"""What the members' metadata asks for: no torch anywhere, and every range has an upper bound."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
MEMBERS = sorted(path for path in ROOT.glob("*/pyproject.toml")) + sorted(ROOT.glob("plugins/*/pyproject.toml"))
FORBIDDEN = {"torch", "transformers", "sentence-transformers", "onnxruntime", "mlx-embeddings"}


def project(path: Path) -> dict:
    return tomllib.loads(path.read_text(encoding="utf-8"))["project"]


def requirements(name: str) -> list[Requirement]:
    """What an installed distribution asks for on this machine, extras left out."""
    try:
        lines = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []
    found = [Requirement(line) for line in lines]
    return [r for r in found if r.marker is None or r.marker.evaluate({"extra": ""})]


@pytest.mark.parametrize("path", MEMBERS, ids=lambda path: path.parent.name)
def test_no_member_reaches_torch(path: Path) -> None:
    seen: set[str] = set()
    waiting = [Requirement(line).name for line in project(path).get("dependencies", [])]
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name not in seen:
            seen.add(name)
            waiting += [r.name for r in requirements(name)]
    assert not seen & FORBIDDEN


@pytest.mark.parametrize("path", [*MEMBERS, ROOT / "pyproject.toml"], ids=lambda path: path.parent.name)
def test_ranges_have_an_upper_bound(path: Path) -> None:
    for line in project(path).get("dependencies", []):
        operators = {s.operator for s in Requirement(line).specifier}
        assert operators & {"<", "==", "~=", "<="}, f"{line} in {path} has no upper bound"


def test_root_depends_on_every_member() -> None:
    root = {Requirement(line).name for line in project(ROOT / "pyproject.toml")["dependencies"]}
    assert root == {project(path)["name"] for path in MEMBERS}
