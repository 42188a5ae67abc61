"""``theodolite arch``: which model types run, by category."""

from __future__ import annotations

import argparse


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "arch",
        help="list the architectures that are served",
        description="List all families by category, each with the model types (config.json) that it serves.",
        epilog="* not installed; `theodolite families` says how to install it.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Print the catalogue, and what else is installed."""
    from theodolite import catalog, registry
    from theodolite.values import Task
    from theodolite_cli import render

    installed = {plugin.name for plugin in registry.installed().families}
    published = catalog.families()
    categories = {
        "embedding": [name for name in published if catalog.task(name) is Task.EMBED],
        "reranker": [name for name in published if catalog.task(name) is Task.RERANK],
        "from other plugins": sorted(installed - set(published)),
    }
    first = True
    for category, names in categories.items():
        if names:
            print(f"{'' if first else chr(10)}{category}:")
            first = False
            render.columns(None, [[n if n in installed else f"{n}*", ", ".join(catalog.model_types(n))] for n in names])
