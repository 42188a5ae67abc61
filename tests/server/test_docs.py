"""docs/http.md names every route, field, flag and variable; docs/security.md names a test for each promise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from theodolite_server import routes
from theodolite_server.config import FLAGS

ROOT = Path(__file__).parents[2]
HTTP = (ROOT / "docs/http.md").read_text(encoding="utf-8")
SECURITY = (ROOT / "docs/security.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("route", routes.TABLE, ids=lambda route: f"{route.method} {route.path}")
def test_routes_and_fields_are_described(route: routes.Route) -> None:
    assert f"`{route.method} {route.path.replace(':.+', '')}`" in HTTP
    fields = getattr(route.body, "__struct_fields__", ())
    assert not [name for name in fields if f"`{name}`" not in HTTP]


@pytest.mark.parametrize("flag", [flag for flags in FLAGS.values() for flag in flags], ids=lambda flag: flag.field)
def test_flags_and_variables_are_described(flag: object) -> None:
    [row] = [
        line for line in HTTP.splitlines() if line.startswith("| `-") and f"`{flag.names[-1]}`" in line.split("|")[1]
    ]
    assert all(f"`{name}`" in row for name in (*flag.names, *flag.environment))


def test_promises_name_their_tests() -> None:
    named = re.findall(r"`(test_\w+)`", SECURITY)
    assert len(named) > 15
    code = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    assert not [name for name in named if f"def {name}(" not in code]
    assert not [flag.names[-1] for flag in FLAGS["safety"] if f"`{flag.names[-1]}`" not in SECURITY]
