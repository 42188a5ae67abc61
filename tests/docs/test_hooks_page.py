"""Every hook has its heading in docs/hooks.md, with its exact arguments, and no heading is left over."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from theodolite import hookspecs

PAGE = (Path(__file__).parents[2] / "docs/hooks.md").read_text(encoding="utf-8")


def test_headings_are_the_hooks() -> None:
    hooks = {
        f"{name}({', '.join(inspect.signature(function).parameters)})"
        for name, function in vars(hookspecs).items()
        if getattr(function, f"{hookspecs.PROJECT}_spec", None) is not None
    }
    assert set(re.findall(r"^## `(.+)`$", PAGE, re.MULTILINE)) == hooks


def test_the_table_names_every_group() -> None:
    groups = {"families", "locators", "kernels", "commands", "routes"}
    assert set(re.findall(r"^\| `theodolite\.(\w+)` \|", PAGE, re.MULTILINE)) == groups


def test_hooks_have_a_docstring_that_says_what_they_do() -> None:
    for name, function in vars(hookspecs).items():
        if getattr(function, f"{hookspecs.PROJECT}_spec", None) is not None:
            assert inspect.getdoc(function), name
