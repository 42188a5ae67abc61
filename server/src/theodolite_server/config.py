"""Every flag of the server, with its environment names: one table, from which the parser and `Config` are filled.

Precedence: the flag, THEODOLITE_*, MLXCEL_*, LLAMA_ARG_* (`theodolite.settings`), the default.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from theodolite import settings
from theodolite.errors import RequestError
from theodolite.limits import DTYPES, LARGEST_NORM

POOLING = ("mean", "cls", "last")
MIB = 1024 * 1024
TRUE, FALSE = frozenset({"1", "true", "on", "yes"}), frozenset({"0", "false", "off", "no"})


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """The type of a whole number of at least ``least``."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            upper = "" if most is None else f" and at most {most}"
            raise argparse.ArgumentTypeError(f"a whole number of at least {least}{upper} was expected, not {text!r}")
        return value

    return parse


def one_of(*choices: str) -> Callable[[str], str]:
    """The type of a word out of a few."""

    def parse(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"one of {', '.join(choices)} was expected, not {text!r}")
        return text

    return parse


def pooling(text: str) -> str:
    """The type of --pooling: ``rank`` stands for --reranking, ``none`` cannot be had."""
    if text == "none":
        raise argparse.ArgumentTypeError(
            "none is not served: it asks for one vector per token, and every family pools inside its own forward pass"
        )
    return one_of(*POOLING, "rank")(text)


def boolean(text: str) -> bool:
    """The type of a switch in the environment."""
    if (word := text.strip().lower()) not in TRUE | FALSE:
        raise argparse.ArgumentTypeError(f"1 or 0 was expected, not {text!r}")
    return word in TRUE


def path(text: str) -> Path:
    """The type of a file or folder."""
    return Path(text).expanduser()


def word(text: str) -> str:
    """The type of what must not be empty: an unset variable in a script would leave the server open, say."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty")
    return text


def origin(text: str) -> str:
    """The type of --cors-origin: ``*``, or a scheme and a host as browsers send them."""
    if text != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+|null", text):
        raise argparse.ArgumentTypeError(f"* or an origin such as https://example.org was expected, not {text!r}")
    return text


@dataclass(frozen=True)
class Flag:
    """One row of the table; `Config` has its default."""

    names: tuple[str, ...]
    help: str
    type: Callable[[str], Any] = str
    metavar: str | None = None
    llama: tuple[str, ...] = ()
    """The llama-server spellings of the environment variable."""
    many: bool = False
    """Repeatable; in the environment, separated by commas."""

    @property
    def field(self) -> str:
        return self.names[-1].lstrip("-").replace("-", "_")

    @property
    def variable(self) -> str:
        """The name behind THEODOLITE_ and MLXCEL_."""
        return self.field.upper()

    @property
    def environment(self) -> tuple[str, ...]:
        """Every variable that sets it, in the order in which they win."""
        return settings.names(self.variable, *self.llama)

    @property
    def switch(self) -> bool:
        return self.type is boolean


def _flag(*names: str, help: str, **options: Any) -> Flag:
    return Flag(names, help, **options)


FLAGS: dict[str, tuple[Flag, ...]] = {
    "models": (
        _flag("-m", "--model", type=word, metavar="MODEL", llama=("LLAMA_ARG_MODEL",),
              help="checkpoint to serve: a folder or a Hub repository; embedder or cross-encoder is told by itself"),
        _flag("--embedding-model", type=word, metavar="MODEL", llama=("LLAMA_ARG_EMBEDDING_MODEL",),
              help="checkpoint for the embedding routes"),
        _flag("--reranker-model", type=word, metavar="MODEL", llama=("LLAMA_ARG_RERANKER_MODEL",),
              help="checkpoint for the rerank routes; the only way to a generative reranker"),
        _flag("--extra-model", type=word, metavar="MODEL", many=True,
              help="one more checkpoint, loaded when a request names it; repeatable"),
        _flag("--max-loaded-mib", type=whole(0), metavar="N",
              help="memory for weights; beyond it the extra model that was idle longest is unloaded (0: no bound)"),
        _flag("--alias", type=word, metavar="NAME", many=True, llama=("LLAMA_ARG_ALIAS",),
              help="another name under which requests may ask for the main model; repeatable"),
        _flag("--revision", metavar="REV", help="branch, tag or commit of the Hub repositories"),
        _flag("--models-dir", type=path, metavar="PATH", help="folder of checkpoints to look in first"),
        _flag("--offline", type=boolean, llama=("LLAMA_ARG_OFFLINE", "LLAMA_OFFLINE"),
              help="never ask the Hub; use what is on disk"),
        _flag("--family", metavar="NAME", help="let this family load the checkpoint"),
        _flag("--dtype", type=one_of(*DTYPES), metavar="TYPE", help=", ".join(DTYPES)),
        _flag("--kernels", metavar="NAME", help="table of fast operations"),
        _flag("--no-warmup", type=boolean, help="do not run a first input after loading"),
    ),
    "vectors and scores": (
        _flag("--embedding-batch-size", type=whole(1), metavar="N",
              help="rows per forward pass (default: the family's, else 16)"),
        _flag("--embedding-max-length", type=whole(1), metavar="N", help="lowers the checkpoint's token limit"),
        _flag("--max-batch-tokens", type=whole(1), metavar="N",
              help="padded tokens per forward pass"),
        _flag("--rerank-batch-size", type=whole(0), metavar="N",
              help="pairs per forward pass (0: the kind's own, 8 for text, 2 for images)"),
        _flag("--pooling", type=pooling, metavar="MODE", llama=("LLAMA_ARG_POOLING",),
              help="mean, cls, last; rank means --reranking (default: what the checkpoint says)"),
        _flag("--embd-normalize", type=whole(-1, LARGEST_NORM), metavar="P", llama=("LLAMA_ARG_EMBD_NORMALIZE",),
              help="-1 none, 0 largest component to 32760, 1 taxicab, 2 euclidean, above that the p-norm"),
        _flag("--embedding", "--embeddings", type=boolean, llama=("LLAMA_ARG_EMBEDDINGS",),
              help="start only if there is an embedding model"),
        _flag("--rerank", "--reranking", type=boolean, llama=("LLAMA_ARG_RERANKING",),
              help="start only if there is a reranker"),
        _flag("--rerank-documents", type=one_of("as-sent", "object"), metavar="FORM",
              help="how return_documents echoes a text: as-sent, or object for {\"text\": ...}"),
    ),
    "queue": (
        _flag("--embedding-queue-depth", type=whole(1), metavar="N",
              help="requests that may wait for each model; one more is answered 503"),
        _flag("--embedding-request-timeout-secs", type=whole(0), metavar="N",
              help="seconds until a request is answered 504 (0: the default)"),
    ),
    "network": (
        _flag("--host", type=word, metavar="HOST", llama=("LLAMA_ARG_HOST",), help="address to listen on"),
        _flag("--port", type=whole(0, 65535), metavar="PORT", llama=("LLAMA_ARG_PORT",),
              help="port to listen on (0: any free one)"),
        _flag("--ssl-cert-file", type=path, metavar="FILE", llama=("LLAMA_ARG_SSL_CERT_FILE",),
              help="certificate chain, for HTTPS"),
        _flag("--ssl-key-file", type=path, metavar="FILE", llama=("LLAMA_ARG_SSL_KEY_FILE",), help="its private key"),
        _flag("--cors-origin", type=origin, metavar="ORIGIN", many=True,
              help="origin of web pages that may call this server, or *; repeatable"),
    ),
    "safety": (
        _flag("--api-key", type=word, metavar="KEY", many=True, llama=("LLAMA_API_KEY",),
              help="key that requests must carry; repeatable"),
        _flag("--api-key-file", type=path, metavar="FILE", llama=("LLAMA_ARG_API_KEY_FILE",),
              help="file with one key per line"),
        _flag("--max-body-mib", type=whole(1), metavar="N",
              help="largest request body, after decompression"),
        _flag("--media-path", type=path, metavar="DIR", llama=("LLAMA_ARG_MEDIA_PATH",),
              help="folder from which file:// and plain paths may be read"),
        _flag("--allow-private-urls", type=boolean,
              help="let image URLs lead to loopback, link-local and private addresses"),
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config:
    """What the server was asked for; see `FLAGS` for the meaning of each field."""

    model: str | None = None
    embedding_model: str | None = None
    reranker_model: str | None = None
    extra_model: tuple[str, ...] = ()
    max_loaded_mib: int = 0
    alias: tuple[str, ...] = ()
    revision: str | None = None
    models_dir: Path | None = None
    offline: bool = False
    family: str | None = None
    dtype: str = "auto"
    kernels: str | None = None
    no_warmup: bool = False
    embedding_batch_size: int | None = None
    embedding_max_length: int | None = None
    max_batch_tokens: int = 16_384
    rerank_batch_size: int = 0
    pooling: str | None = None
    embd_normalize: int | None = None
    embeddings: bool = False
    reranking: bool = False
    rerank_documents: str = "as-sent"
    embedding_queue_depth: int = 8
    embedding_request_timeout_secs: float = 120
    host: str = "127.0.0.1"
    port: int = 8080
    ssl_cert_file: Path | None = None
    ssl_key_file: Path | None = None
    cors_origin: tuple[str, ...] = ()
    api_key: tuple[str, ...] = field(default=(), repr=False)
    api_key_file: Path | None = None
    max_body_mib: int = 32
    media_path: Path | None = None
    allow_private_urls: bool = False

    @property
    def timeout(self) -> float:
        """Seconds that a request may take; 0 falls back to the default."""
        return self.embedding_request_timeout_secs or Config.embedding_request_timeout_secs

    @property
    def max_body(self) -> int:
        """Bytes of a request body, after decompression."""
        return self.max_body_mib * MIB


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add every flag; each stays None until `resolve`, so that the environment can be asked in between."""
    for title, flags in FLAGS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            default = getattr(Config, flag.field)
            default = "" if default in (None, False) or flag.many or "(" in flag.help else f" (default: {default})"
            about = f"{flag.help}{default} [{flag.environment[0]}]".replace("%", "%%")
            if flag.switch:
                group.add_argument(*flag.names, dest=flag.field, action="store_const", const=True, help=about)
            else:
                action = "append" if flag.many else "store"
                group.add_argument(
                    *flag.names, dest=flag.field, action=action, type=flag.type, metavar=flag.metavar, help=about
                )


def resolve(args: argparse.Namespace) -> Config:
    """The flags that were given, completed from the environment.

    :raises RequestError: for a variable whose value its flag would refuse; naming it.
    """
    values: dict[str, Any] = {}
    for flag in (flag for flags in FLAGS.values() for flag in flags):
        value = getattr(args, flag.field, None)
        if value is None:
            value = _from_environment(flag)
        if value is not None:
            values[flag.field] = tuple(value) if flag.many else value
    if values.get("pooling") == "rank":
        values |= {"pooling": None, "reranking": True}
    return Config(**values)


def _from_environment(flag: Flag) -> Any:
    text = settings.read(flag.variable, *flag.llama)
    if text is None:
        return None
    try:
        if flag.many:
            return [flag.type(part.strip()) for part in text.split(",")]
        return flag.type(text)
    except argparse.ArgumentTypeError as error:
        raise RequestError(f"{flag.environment[0]} (for {flag.names[-1]}): {error}") from None


def check_files(asked: Config) -> None:
    """Refuse folders and files that are not there, before anything is loaded.

    :raises RequestError: naming the flag.
    """
    for flag, folder in (("--media-path", asked.media_path), ("--models-dir", asked.models_dir)):
        if folder is not None and not folder.is_dir():
            raise RequestError(f"{flag} {folder}: no such folder")
    for flag, file in (("--ssl-cert-file", asked.ssl_cert_file), ("--ssl-key-file", asked.ssl_key_file)):
        if file is not None and not file.is_file():
            raise RequestError(f"{flag} {file}: no such file")
