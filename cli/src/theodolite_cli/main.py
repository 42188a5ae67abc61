"""The entry point of `theodolite` and `theo`: find the command, run it, and turn errors into one line."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import metadata
from typing import NoReturn

from theodolite_cli import arch, bench, embed, families, heatmap, rerank, show

BUILTIN = {
    "embed": embed,
    "rerank": rerank,
    "heatmap": heatmap,
    "show": show,
    "families": families,
    "arch": arch,
    "bench": bench,
}
SERVE = "serve"
INTERRUPTED = 130
BROKEN_PIPE = 141
EPILOG = """\
examples:
  theodolite embed -p "a cat" -p "a kitten"
  theodolite embed -m BAAI/bge-m3 --json < sentences.txt
  theodolite rerank -m BAAI/bge-reranker-v2-m3 -q "what is a panda?" -d "A bear"
  theodolite COMMAND --help

`theo` is short for `theodolite`. THEODOLITE_DEBUG=1 shows errors' tracebacks.
"""


class Parser(argparse.ArgumentParser):
    """argparse, but an error is one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        if message.endswith("expected one argument"):
            message += "; a value that begins with a dash is given as OPTION=VALUE"
        print(f"error: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


class Note(logging.Formatter):
    """A record as a user reads it."""

    def format(self, record: logging.LogRecord) -> str:
        level = "note" if record.levelno <= logging.INFO else record.levelname.lower()
        return f"{level}: {record.getMessage()}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    :returns: the exit status: 0, 1 for an error, 2 for wrong usage, 130 when interrupted.
    """
    prepare_streams()
    prepare_log()
    try:
        status = run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Python flushes stdout once more at exit, which would print a second error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        return failed(error)


def prepare_streams() -> None:
    """Let every text be printed, whatever the encoding, and stand in for a stream that the caller has closed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open until the process ends
        elif mode == "w":
            stream.reconfigure(errors="backslashreplace")


def prepare_log() -> None:
    """What the core has to say goes to stderr, a line each, as ``note: ...`` or ``warning: ...``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Note())
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger("theodolite").setLevel(logging.INFO)


def failed(error: Exception) -> int:
    """Say what went wrong in one line, with the traceback where THEODOLITE_DEBUG asks for it."""
    from theodolite.errors import TheodoliteError

    if os.environ.get("THEODOLITE_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error)
    expected = isinstance(error, (TheodoliteError, OSError))
    what = str(error) if expected else f"this is a fault of theodolite's: {type(error).__name__}: {error}"
    hint = "" if expected else " (THEODOLITE_DEBUG=1 shows where)"
    print(f"error: {' '.join(what.split())}{hint}", file=sys.stderr)
    return 1


def run(argv: list[str]) -> int:
    """Parse the arguments and call the command."""
    command = next((word for word in argv if not word.startswith("-")), None)
    args = parser(plugins=command not in BUILTIN and "--version" not in argv).parse_args(argv)
    return args.run(args) or 0


def parser(plugins: bool) -> Parser:
    """The parser with its commands.

    :param plugins: also import the plugins that add commands, which the built-in ones can do without.
    """
    top = Parser(
        prog="theodolite",
        description="Embeddings and relevance scores from published checkpoints, on MLX.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"theodolite {metadata.version('theodolite-cli')}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    for module in BUILTIN.values():
        module.add(commands)
    if plugins:
        _add_plugins(commands)
    return top


def _add_plugins(commands: argparse._SubParsersAction[Parser]) -> None:
    from theodolite import registry

    for _ in registry.ask("commands", subparsers=commands):
        pass  # each adds its own; the registry tells of those that cannot
    if SERVE not in commands.choices:
        about = "serve vectors and scores over HTTP (not installed)"
        # no argument begins with NUL, so that every option the real command has lands in "rest"
        serve = commands.add_parser(SERVE, help=about, add_help=False, prefix_chars="\0")
        serve.add_argument("rest", nargs="*")
        serve.set_defaults(run=_no_server)


def _no_server(args: argparse.Namespace) -> int:
    from theodolite.errors import MissingPlugin

    raise MissingPlugin("the HTTP server is not installed: pip install theodolite-server")


if __name__ == "__main__":
    sys.exit(main())
