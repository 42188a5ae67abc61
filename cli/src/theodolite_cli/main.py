"""Find the command, run it, and turn errors into one line."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any, NoReturn

from theodolite_cli import INTERRUPTED, arch, bench, embed, families, heatmap, rerank, show

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
        from theodolite.errors import tell

        if message.endswith("expected one argument"):
            message += "; a value that begins with a dash is given as OPTION=VALUE"
        tell(f"{message} (see {self.prog} --help)")
        raise SystemExit(2)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what is left over here, in the command's own parser, so that its --help is named."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write help and version; argparse would ignore that stdout is full."""
        (file or sys.stderr).write(message)


class Note(logging.Formatter):
    """A record as a user reads it."""

    def format(self, record: logging.LogRecord) -> str:
        from theodolite.errors import printable

        level = "note" if record.levelno <= logging.INFO else record.levelname.lower()
        return f"{level}: {printable(record.getMessage())}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    :returns: the exit status: 0, 1 for an error, 2 for wrong usage, 130 when interrupted.
    """
    try:
        prepare_streams()
        prepare_log()
        try:
            return run(list(sys.argv[1:] if argv is None else argv))
        finally:  # also after --help, which leaves by SystemExit
            sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()
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
            # stdout cannot be written to still: an answer that nobody gets is an error, a command without one is fine
            number = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            setattr(sys, name, open(number, mode))  # noqa: SIM115 - open until the process ends
        elif mode == "w":
            stream.reconfigure(errors="backslashreplace")


def prepare_log() -> None:
    """What the core has to say goes to stderr, a line each, as ``note: ...`` or ``warning: ...``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Note())
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger("theodolite").setLevel(logging.INFO)


def failed(error: Exception) -> int:
    """Say what went wrong in one line."""
    from theodolite.errors import report, tell

    try:
        sys.stdout.flush()
        report(error)
    except OSError as lost:
        drop_stdout()
        tell(f"the answer could not be written to stdout: {lost.strerror}")
    return 1


def drop_stdout() -> None:
    """Python flushes stdout once more at exit, which would print a second error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
