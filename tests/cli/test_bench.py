"""`theodolite bench` measures and says what it measured with."""

from __future__ import annotations

import json
from pathlib import Path

from theodolite.testing import tiny
from theodolite_cli.main import main

GOLDEN = Path(__file__).parents[1] / "plugins/bert/golden/bert.json"


def test_bench_tells_speed_and_memory(tmp_path, capsys) -> None:
    folder = tiny.write(tmp_path / "tiny", tiny.read(GOLDEN))
    asked = ["bench", "-m", str(folder), "--texts", "6", "--rounds", "1", "--kernels", "default"]
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == "tiny"
    assert found["kernels"] == "default"
    assert all(found[key] > 0 for key in ("load_seconds", "tokens_per_second", "short_text_ms", "peak_mb"))
    assert main(asked) == 0
    assert "tokens per second" in capsys.readouterr().out
