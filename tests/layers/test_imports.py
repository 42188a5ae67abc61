"""One direction: who may import whom, read from the imports themselves."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
MEMBERS = [path.parent for path in sorted([*ROOT.glob("*/pyproject.toml"), *ROOT.glob("plugins/*/pyproject.toml")])]
IMPORT_NAMES = {"theodolite-core": "theodolite", "pillow": "PIL", "huggingface-hub": "huggingface_hub"}


def project(member: Path) -> dict:
    return tomllib.loads((member / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def declared(member: Path) -> set[str]:
    """Top-level import names that the member's dependencies provide, its extras included."""
    lines = [*project(member).get("dependencies", [])]
    lines += [line for extra in project(member).get("optional-dependencies", {}).values() for line in extra]
    names = {Requirement(line).name.lower() for line in lines}
    return {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in names}


def own(member: Path) -> str:
    [package] = [path.name for path in (member / "src").iterdir() if (path / "__init__.py").exists()]
    return package


def imported(file: Path) -> set[str]:
    """Every module a file imports when it runs; what only type checkers see is left out."""
    found = set()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
    return found


def roots(member: Path) -> dict[str, Path]:
    """Every top-level name that the member's files import, and a file that does."""
    found = {}
    for file in (member / "src").rglob("*.py"):
        for name in imported(file):
            found.setdefault(name.split(".")[0], file)
    return found


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
def test_imports_are_declared(member: Path) -> None:
    allowed = declared(member) | {own(member)} | set(sys.stdlib_module_names)
    undeclared = {name: str(file.relative_to(ROOT)) for name, file in roots(member).items() if name not in allowed}
    # what core's dependencies bring may be used by every member that depends on core
    if "theodolite" in declared(member):
        for name in declared(ROOT / "core"):
            undeclared.pop(name, None)
    assert not undeclared


def test_core_imports_no_plugin_and_nobody_imports_server_or_cli() -> None:
    for member in MEMBERS:
        for name, file in roots(member).items():
            if name.startswith("theodolite") and name != own(member):
                assert name not in ("theodolite_server", "theodolite_cli") or member.name == "server", file
                assert member.name != "core", file
                assert name == "theodolite" or member.name in ("rerankers", "server"), file


def test_only_rerankers_builds_on_other_plugins() -> None:
    for member in MEMBERS:
        others = {n for n in roots(member) if n.startswith("theodolite_") and n != own(member)}
        if member.parent.name == "plugins" and member.name != "rerankers":
            assert not others, member


def test_plugins_do_not_reach_into_the_registry() -> None:
    for member in MEMBERS:
        if member.parent.name == "plugins":
            for file in (member / "src").rglob("*.py"):
                names = imported(file)
                assert "theodolite.registry" not in names, file
                assert not any(name.startswith("mlx.core.fast") for name in names), file
                assert "mx.fast" not in file.read_text(encoding="utf-8"), file


def test_rich_is_imported_by_render_alone() -> None:
    for member in MEMBERS:
        for file in (member / "src").rglob("*.py"):
            if any(name.split(".")[0] == "rich" for name in imported(file)):
                assert file.name == "render.py", file


def test_no_file_is_longer_than_four_hundred_lines() -> None:
    for member in MEMBERS:
        for file in (member / "src").rglob("*.py"):
            assert len(file.read_text(encoding="utf-8").splitlines()) <= 400, file
