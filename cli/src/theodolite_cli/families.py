"""``theodolite families``: what is installed, what is broken, and what else could be installed."""

from __future__ import annotations

import argparse
from typing import Any

from theodolite_cli import options

EPILOG = """\
MODEL TYPES are the values of model_type in config.json that a family serves.
Kernels are tables of fast operations; --kernels NAME or THEODOLITE_KERNELS
chooses one. "bfloat16": this processor multiplies it, so --dtype bfloat16 is
faster here than float32.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "families",
        help="list families and kernels: installed, broken, to be had",
        description="List the families of models that are installed, broken, or could be installed.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Discover, print."""
    found = survey()
    if args.json:
        options.print_json(found)
        return
    from theodolite_cli import render

    installed = [
        [f["family"], f["version"], f["distribution"], ", ".join(f["model_types"])] for f in found["installed"]
    ]
    render.columns(["FAMILY", "VERSION", "DISTRIBUTION", "MODEL TYPES"], installed)
    if not installed:
        print("  none")
    if found["broken"]:
        print("\nbroken:")
        for plugin in found["broken"]:
            print(f"  {plugin['name']} ({plugin['distribution']} {plugin['version']}): {plugin['error']}")
    if found["available"]:
        print("\nnot installed:")
        render.columns(None, [[f["family"], f["install"]] for f in found["available"]])
    print("\nkernels:")
    rows = [
        [k["name"], "in use" if k["in_use"] else "", f"priority {k['priority']}", "bfloat16" if k["bfloat16"] else ""]
        for k in found["kernels"]
    ]
    render.columns(None, rows)
    for reason in found["kernels_unusable"]:
        print(f"  {reason}")
    if found["kernels_error"]:
        print(f"  none can be chosen: {found['kernels_error']}")


def survey() -> dict[str, Any]:
    """Everything that the command tells, as --json prints it."""
    from theodolite import catalog, registry
    from theodolite.errors import TheodoliteError
    from theodolite.nn import kernels

    families = registry.installed()
    present = {plugin.name for plugin in families.plugins}
    scratch = argparse.ArgumentParser().add_subparsers()
    others = [plugin for plugin, _ in registry.ask("commands", subparsers=scratch)]
    for hook in ("locate", "routes"):
        others += registry.Registry(registry.discover(registry.GROUPS[hook]), hook).plugins
    error, name = None, None
    offered = kernels.usable()
    try:
        name = kernels.pick(offered).name
    except TheodoliteError as reason:
        error = str(reason)
    usable, plugins, reasons = offered
    tables = sorted(usable.values(), key=lambda table: -table.priority)
    return {
        "installed": [
            {
                "family": plugin.name,
                "distribution": plugin.distribution,
                "version": plugin.version,
                "model_types": catalog.model_types(plugin.name),
            }
            for plugin in families.families
        ],
        "broken": [
            {"name": p.name, "distribution": p.distribution, "version": p.version, "error": " ".join(p.error.split())}
            for p in (*families.broken, *others, *plugins)
            if p.error is not None
        ],
        "available": [
            {"family": name, "model_types": catalog.model_types(name), "install": catalog.install_line(name)}
            for name in catalog.families()
            if name not in present
        ],
        "kernels": [
            {"name": t.name, "priority": t.priority, "bfloat16": t.bf16, "in_use": t.name == name} for t in tables
        ],
        "kernels_error": error,
        "kernels_unusable": reasons,
    }
