"""Core's catalogue of families, made from the plugins' pyprojects: `python tests/tools/catalog.py --write`."""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CATALOG = ROOT / "core/src/theodolite/catalog.json"


def collect() -> dict[str, dict[str, Any]]:
    """Every family of the tree: its distribution, task and model types."""
    found = {}
    for file in sorted(ROOT.glob("plugins/*/pyproject.toml")):
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        for family, entry in content.get("tool", {}).get("theodolite", {}).get("families", {}).items():
            found[family] = {"distribution": content["project"]["name"], **entry}
    return dict(sorted(found.items()))


def text() -> str:
    """catalog.json as it should be."""
    return json.dumps(collect(), indent=2) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the file instead of printing it")
    if parser.parse_args().write:
        CATALOG.write_text(text(), encoding="utf-8")
    else:
        print(text(), end="")
