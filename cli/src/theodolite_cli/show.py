"""``theodolite show``: what a checkpoint is and how it would be run, without loading its weights."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from theodolite_cli import options

if TYPE_CHECKING:
    from theodolite.checkpoint import Checkpoint
    from theodolite.registry import Family


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "show",
        help="tell what a checkpoint is, without loading it",
        description="Tell what a checkpoint is: family, task, width, limits, pooling, prompts. Weights are not loaded.",
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="a checkpoint's folder or the name of a Hub repository")
    options.add_place(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Detect, print."""
    from theodolite import locate

    told = describe(locate.checkpoint(args.model, args.revision, args.models_dir), args.family)
    if args.json:
        options.print_json(told)
        return
    from theodolite_cli import render

    render.columns(None, [[name.replace("_", " "), _text(name, value)] for name, value in told.items()])


def describe(checkpoint: Checkpoint, family: str | None) -> dict[str, Any]:
    """Everything that the command tells, as --json prints it."""
    from theodolite import limits, sentence_transformers
    from theodolite.engine import resolve_pooling
    from theodolite.values import Task

    elected = _elect(checkpoint, family)
    profile = elected.profile
    sentence_transformers.check(checkpoint, profile)
    embeds = profile.task is Task.EMBED
    found = limits.found(checkpoint, profile)
    side = checkpoint.json(sentence_transformers.CONFIG)
    told: dict[str, Any] = {
        "model": checkpoint.label,
        "path": str(checkpoint.path),
        "model_type": checkpoint.model_type,
        "architecture": checkpoint.architecture,
        "family": profile.family,
        "plugin": f"{elected.plugin.distribution} {elected.plugin.version}",
        "task": profile.task.value,
    }
    if embeds:
        told |= {
            "dim": profile.dim,
            "matryoshka": list(profile.matryoshka),
            "multi_vector": profile.multi_vector,
            "pooling": "its own"
            if profile.pooling_fixed or profile.multi_vector
            else resolve_pooling(checkpoint, profile).value,
            "normalize": profile.normalize,
            "prompts": sentence_transformers.prompts(checkpoint),
            "default_prompt_name": side.get("default_prompt_name"),
        }
    else:
        told["kind"] = profile.kind
    return told | {
        "instruction": profile.instruction,
        "images": profile.images,
        "max_length": limits.max_length(checkpoint, profile),
        "limits": found,
        "vocab_size": profile.vocab_size,
        **_weights(checkpoint),
        "quantization": checkpoint.quantization or None,
        "size_on_disk": size(checkpoint),
    }


def _elect(checkpoint: Checkpoint, family: str | None) -> Family:
    """The family that serves it, for whatever task: a generative reranker is claimed only if asked for as one."""
    from theodolite import registry
    from theodolite.errors import BrokenPlugin, MissingPlugin, UnknownFamily
    from theodolite.values import Task

    try:
        return registry.installed().elect(checkpoint, None, family)
    except UnknownFamily as nobody:
        try:
            return registry.installed().elect(checkpoint, Task.RERANK, family)
        except (BrokenPlugin, MissingPlugin) as cure:
            raise (nobody if isinstance(nobody, MissingPlugin) else cure) from None
        except UnknownFamily:
            raise nobody from None


def _weights(checkpoint: Checkpoint) -> dict[str, Any]:
    """Parameters and number formats, from the files' headers; mlx reads the numbers themselves only when asked."""
    import mlx.core as mx

    stored = checkpoint.weights().values()
    numbers = [tensor for tensor in stored if mx.issubdtype(tensor.dtype, mx.floating)]  # not position_ids
    formats = sorted({str(tensor.dtype).removeprefix("mlx.core.") for tensor in numbers})
    packed = any(tensor.dtype == mx.uint32 for tensor in stored)
    return {"dtype": formats, "parameters": None if packed else sum(tensor.size for tensor in numbers)}


def size(checkpoint: Checkpoint) -> int:
    """Bytes of the checkpoint's files, hidden ones left out."""
    files = (file for file in checkpoint.path.rglob("*") if file.is_file())
    visible = (f for f in files if not any(part.startswith(".") for part in f.relative_to(checkpoint.path).parts))
    return sum(file.stat().st_size for file in visible)


def _text(name: str, value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case _ if not value:
            return "-"
        case int() if name == "size_on_disk":
            return f"{value / 1e6:,.1f} MB" if value >= 1e6 else f"{value / 1e3:.1f} kB"
        case int():
            return f"{value:,}" if name == "parameters" else str(value)
        case list():
            return ", ".join(map(str, value))
        case dict():
            return "; ".join(
                f"{key}: {inner!r}" if isinstance(inner, str) else f"{key} {inner}" for key, inner in value.items()
            )
    return str(value)
