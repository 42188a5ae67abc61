"""docs/writing-a-family.md is followed to the letter: its blocks make a plugin that passes the conformance kit."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs/writing-a-family.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_plugin_of_the_tutorial_passes_the_kit(tmp_path: Path) -> None:
    hooks, tests = blocks("python")
    [golden] = blocks("json")
    (tmp_path / "acme_theodolite.py").write_text(hooks)
    (tmp_path / "test_acme.py").write_text(tests)
    (tmp_path / "golden.json").write_text(golden)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    made = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert made.returncode == 0, made.stdout[-3000:]
    assert re.search(r"\d\d passed", made.stdout)


def test_the_entry_point_of_the_tutorial_names_the_family() -> None:
    [pyproject] = blocks("toml")
    points = tomllib.loads(pyproject)["project"]["entry-points"]["theodolite.families"]
    assert points == {"bag-of-words": "acme_theodolite"}
    assert 'family="bag-of-words"' in blocks("python")[0]
