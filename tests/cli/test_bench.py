"""`theodolite bench` measures and says what it measured with."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from theodolite_cli.main import main


def test_bench_tells_speed_and_memory(checkpoint: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["bench", "-m", checkpoint(), "--texts", "6", "--rounds", "1", "--kernels", "default"]
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kernels"] == "default"
    assert all(found[key] > 0 for key in ("load_seconds", "tokens_per_second", "short_text_ms", "peak_mb"))
    assert main(asked) == 0
    assert "tokens per second" in capsys.readouterr().out
