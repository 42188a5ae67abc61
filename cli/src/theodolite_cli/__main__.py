"""The entry point of `theodolite` and `theo`: the rest is imported where Ctrl-C is caught, as that takes a while."""

from __future__ import annotations

import sys

from theodolite_cli import INTERRUPTED


def main() -> int:
    """Run one command, and give the exit status."""
    try:
        from theodolite_cli import main as command

        return command.main()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
