"""The README's commands are the ones that CI runs and the ones that the quick start shows."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
SETUP = "python3 -m venv .venv && .venv/bin/pip install -q uv && .venv/bin/uv run "


def commands(page: str) -> list[str]:
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("$ ") for line in lines if line.removeprefix("$ ").startswith(SETUP)]


def test_ci_runs_the_readme_test_command() -> None:
    [_, test] = commands("README.md")
    assert test.endswith("pytest")
    assert test in (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()


def test_quick_start_shows_the_readme_main_command() -> None:
    [main, _] = commands("README.md")
    assert commands("docs/quickstart.md") == [main]


def test_pages_are_in_the_index_and_exist() -> None:
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    listed = {line for line in index.splitlines() if (ROOT / f"docs/{line}.md").is_file()}
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"}
    assert pages == listed


def test_readme_links_exist() -> None:
    import re

    for page in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(((?!https?:)[^)#]+)\)", (ROOT / page).read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), f"{page} links to {target}"
