"""docs/writing-a-family.md is followed to the letter: its files make a distribution, and its commands work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/writing-a-family.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`(\w+\.\w+)`.*?^```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(r"^\$ (.+)$", PAGE, re.MULTILINE)
BUILD = "from setuptools import build_meta; build_meta.build_wheel('dist')"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's files, beside them the built distribution, unpacked as an installer would."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("acme")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    built = subprocess.run([sys.executable, "-c", BUILD], capture_output=True, text=True, cwd=folder, check=False)
    assert built.returncode == 0, built.stderr[-3000:]
    [wheel] = (folder / "dist").glob("acme_theodolite-0.1.0-*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    for name, module in (("python", ""), ("pytest", "-m pytest"), ("theodolite", "-m theodolite_cli")):
        own = folder / "bin" / name  # the commands of this interpreter, wherever they are installed
        own.parent.mkdir(exist_ok=True)
        own.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        own.chmod(0o755)
    return folder


def test_the_files_and_commands_of_the_page() -> None:
    assert list(FILES) == ["pyproject.toml", "acme_theodolite.py", "golden.json", "test_acme.py"]
    assert COMMANDS[:2] == ["pip install -e .", "pytest"]


@pytest.mark.parametrize("command", COMMANDS[1:], ids=lambda command: " ".join(command.split()[:2]))
def test_the_commands_of_the_page(folder: Path, command: str) -> None:
    env = {
        **os.environ,
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{folder / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    done = subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    if command == "pytest":
        assert re.search(r"\d\d passed", done.stdout)
    if "show" in command:
        assert "bag-of-words" in done.stdout
        assert "acme-theodolite 0.1.0" in done.stdout
