"""Write the checkpoints that the clients ask for: `python make_checkpoints.py FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))

import checkpoints

folder = Path(sys.argv[1])
checkpoints.write(folder / "tiny-bert")
checkpoints.write(folder / "tiny-cross", head=True)
