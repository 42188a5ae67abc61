"""`theodolite-server` and `theodolite serve`: from the flags to a listening process, and out of it again."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import ssl
import sys
import threading
from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING, NoReturn

from theodolite.errors import RequestError, report, tell
from theodolite_server import config

if TYPE_CHECKING:
    from theodolite_server.config import Config

log = logging.getLogger("theodolite.server")
DESCRIPTION = "Serve vectors and relevance scores over HTTP. Every option can also be set by its variable, in brackets."


class Parser(argparse.ArgumentParser):
    """argparse, but an error is one line."""

    def error(self, message: str) -> NoReturn:
        tell(f"{message} (see {self.prog} --help)")
        raise SystemExit(2)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server until it is told to stop.

    :returns: the exit status: 0, 1 for an error, 2 for wrong usage.
    """
    parser = Parser(prog="theodolite-server", description=DESCRIPTION, allow_abbrev=False)
    version = metadata.version("theodolite-server")
    parser.add_argument("--version", action="version", version=f"theodolite-server {version}")
    config.add_arguments(parser)
    return serve(parser.parse_args(argv))


def serve(args: argparse.Namespace) -> int:
    """Serve as the parsed flags say; errors are one line."""
    _prepare_log()
    status = _run(args)
    if any(thread.daemon and thread.name.startswith("model-") for thread in threading.enumerate()):
        # stopped while a checkpoint was being read, which nothing can interrupt; an ordinary exit would abort in MLX
        sys.stderr.flush()
        os._exit(status)
    return status


def _run(args: argparse.Namespace) -> int:
    try:
        asked = config.resolve(args)
        if asked.offline:
            os.environ["HF_HUB_OFFLINE"] = "1"  # read by huggingface_hub when it is imported
        asyncio.run(_serve(asked))
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        report(error)
        return 1
    return 0


async def _serve(asked: Config) -> None:
    from theodolite_server import app as application

    app = application.make_app(asked)
    tls = _tls(asked)
    from aiohttp import web

    runner = application.runner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, asked.host, asked.port, ssl_context=tls)
        try:
            await site.start()
        except OSError as error:
            raise RequestError(f"--host {asked.host} --port {asked.port}: {error.strerror or error}") from None
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        host, port = runner.addresses[0][:2]
        log.info("listening on %s://%s:%d", "https" if tls else "http", f"[{host}]" if ":" in host else host, port)
        stopping = asyncio.ensure_future(stop.wait())
        loading = asyncio.ensure_future(application.load(app))
        await asyncio.wait({stopping, loading}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
            log.info("ready")
            await stopping
        log.info("stopping: accepted requests are answered first")
    finally:
        await runner.cleanup()


def _tls(asked: Config) -> ssl.SSLContext | None:
    if asked.ssl_cert_file is None and asked.ssl_key_file is None:
        return None
    if asked.ssl_cert_file is None or asked.ssl_key_file is None:
        raise RequestError("--ssl-cert-file and --ssl-key-file are given together")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(asked.ssl_cert_file, asked.ssl_key_file)
    except (OSError, ssl.SSLError) as error:
        raise RequestError(f"--ssl-cert-file, --ssl-key-file: {error}") from None
    return context


class _Line(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z")
        line = f"{stamp} {record.levelname.lower()} {' '.join(record.getMessage().split())}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _without_traceback(record: logging.LogRecord) -> bool:
    """What a client sends that is no HTTP is its fault: a line of the log, not a traceback."""
    from aiohttp.http_exceptions import HttpProcessingError

    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        record.exc_info, record.levelno, record.levelname = None, logging.INFO, "INFO"
        record.msg, record.args = "refused what is no HTTP request: %s", (error.message[:200],)
    return True


def _prepare_log() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line())
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger("theodolite").setLevel(logging.INFO)
    logging.getLogger("aiohttp.server").addFilter(_without_traceback)
