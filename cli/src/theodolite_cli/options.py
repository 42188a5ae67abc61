"""What commands have in common: the options of a model, arguments' types, texts from stdin, images from files."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from theodolite.errors import CONTROL, RequestError
from theodolite.limits import DTYPES

if TYPE_CHECKING:
    from theodolite.values import ImageItem

STDIN = "-"
log = logging.getLogger("theodolite")


def positive(text: str) -> int:
    """The type of an argument that counts something."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"a whole number of at least 1 was expected, not {text!r}")
    return value


def folder(text: str) -> Path:
    """The type of a folder, which need not exist yet."""
    return Path(text).expanduser()


def add_model(parser: argparse.ArgumentParser, default: str | None) -> None:
    """Which checkpoint, and where it may come from."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "-m",
        "--model",
        default=default,
        required=default is None,
        metavar="MODEL",
        help="a checkpoint's folder or the name of a Hub repository" + (f" (default: {default})" if default else ""),
    )
    add_place(group)


def add_place(group: argparse._ActionsContainer) -> None:
    """Where a checkpoint may come from, and who loads it."""
    group.add_argument("--revision", metavar="REV", help="branch, tag or commit of the Hub repository")
    group.add_argument(
        "--models-dir", type=folder, metavar="PATH", help="folder of checkpoints to look in first, and to download into"
    )
    group.add_argument(
        "--family", metavar="NAME", help="let this family load the checkpoint (see `theodolite families`)"
    )


def add_running(parser: argparse.ArgumentParser, batch_size: int | None = None) -> None:
    """How the checkpoint is run; ``batch_size`` is the default of commands that run batches."""
    group = parser.add_argument_group("running")
    group.add_argument(
        "--max-length",
        type=positive,
        metavar="N",
        help="cut inputs to N tokens; only lowers the checkpoint's limit",
    )
    if batch_size is not None:
        group.add_argument(
            "--batch-size",
            type=positive,
            metavar="N",
            help=f"inputs per forward pass (default: {batch_size}, or the family's)",
        )
    group.add_argument(
        "--dtype",
        choices=DTYPES,
        default="auto",
        help="number format (default: auto: float32 on a CPU, as stored on a GPU)",
    )
    group.add_argument("--kernels", metavar="NAME", help="table of fast operations (see `theodolite families`)")


def loading(args: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `theodolite.load` that both kinds of checkpoint take."""
    return {
        "revision": args.revision,
        "models_dir": args.models_dir,
        "family": args.family,
        "dtype": args.dtype,
        "max_length": args.max_length,
        "kernels": args.kernels,
    }


def lines() -> list[str]:
    """Texts from stdin, one per line.

    :raises RequestError: for an empty line, as leaving it out would shift all answers after it.
    """
    try:
        found = sys.stdin.buffer.read().decode("utf-8").removeprefix("\ufeff").split("\n")
    except UnicodeDecodeError as error:
        raise RequestError(f"stdin is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}") from None
    texts = [line.removesuffix("\r") for line in (found[:-1] if found[-1] == "" else found)]
    for i, text in enumerate(texts, 1):
        if not text:
            raise RequestError(f"line {i} of stdin is empty; every line is one input")
    return texts


def texts(given: list[str]) -> list[str]:
    """The texts of an option, with ``-`` replaced by the lines of stdin."""
    return [text for value in given for text in (lines() if value == STDIN else [value])]


def check_file(option: str, path: str) -> None:
    """Refuse an image that is no file before a model is loaded.

    :raises RequestError: naming it.
    """
    if path.startswith(("http://", "https://")):
        raise RequestError(f"{option} {path}: addresses are fetched by the server only; download it and give the file")
    if Path(path).is_dir():
        raise RequestError(f"{option} {path}: this is a folder; a file was expected")
    if not Path(path).exists():
        raise RequestError(f"{option} {path}: no such file")


def image(path: str, text: str = "") -> ImageItem:
    """An image file as an item."""
    from theodolite import images
    from theodolite.values import ImageItem

    return ImageItem(images.read(Path(path)), text)


def report_cut(truncated: int, max_length: int) -> None:
    """Say on stderr that inputs did not fit."""
    if truncated:
        verb = "was" if truncated == 1 else "were"
        log.warning("%s %s cut to keep every input within max_length %d", count(truncated, "token"), verb, max_length)


def count(number: int, what: str) -> str:
    """``1 input``, ``2 inputs``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def print_json(value: dict[str, Any]) -> None:
    """One object on stdout; non-ASCII characters are escaped only where stdout cannot take UTF-8.

    Control characters are escaped always; ``json`` leaves those above 0x7e as they are.
    """
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    text = json.dumps(value, ensure_ascii=not utf8, allow_nan=False)
    print(CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text))
