"""Adds `serve` to the command line, without importing the server before it is asked for."""

from __future__ import annotations

import argparse

from theodolite.hookspecs import hookimpl


@hookimpl
def commands(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from theodolite_server import config

    parser = subparsers.add_parser(
        "serve",
        help="serve vectors and scores over HTTP",
        description="Serve vectors and scores over HTTP. Every option can also be set by its variable, in brackets.",
        allow_abbrev=False,
    )
    config.add_arguments(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from theodolite_server.command import serve

    return serve(args)
