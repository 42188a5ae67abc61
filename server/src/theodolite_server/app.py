"""The application: routes of all dialects over one service."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from theodolite import registry
from theodolite_server import middleware, models, routes
from theodolite_server.config import Config, check_files
from theodolite_server.media import Media
from theodolite_server.metrics import Metrics
from theodolite_server.routes.common import CONTEXT, ROUTE_TABLE, Context
from theodolite_server.service import Service

log = logging.getLogger("theodolite.server")


def make_app(config: Config) -> web.Application:
    """The application for ``config``. Its models are found now, and loaded by `load`.

    :raises RequestError: for flags that contradict each other.
    :raises CheckpointError: for a checkpoint that cannot be found, or that nobody serves.
    """
    check_files(config)
    metrics = Metrics()
    served = models.Models(config, models.plan(config), metrics)
    service = Service(served)
    # the body is read by `theodolite_server.body` under its own limit; aiohttp's would be a second one
    app = web.Application(middlewares=[middleware.outer(config)], client_max_size=0)
    app[CONTEXT] = Context(config, served, service, Media(config, service.off), metrics)
    app[ROUTE_TABLE] = routes.TABLE
    for route in routes.TABLE:
        add = app.router.add_get if route.method == "GET" else app.router.add_post
        add(route.path, route.handler)
    for _ in registry.ask("routes", app=app):
        pass  # each adds its own; the registry tells of those that cannot
    app.cleanup_ctx.append(_closing)
    return app


async def load(app: web.Application) -> None:
    """Load what is always loaded; until then the model routes answer 503.

    :raises CheckpointError: if a checkpoint does not load.
    """
    await app[CONTEXT].models.start()


async def _closing(app: web.Application) -> AsyncIterator[None]:
    yield
    await app[CONTEXT].models.stop()
    app[CONTEXT].service.close()


RUNNER: dict[str, Any] = {
    "handler_cancellation": True,
    "auto_decompress": False,
    "access_log": None,
    "keepalive_timeout": 75.0,
}
"""How the application has to be run: a client that goes cancels its handler, and bodies come as they were sent."""


def runner(app: web.Application) -> web.AppRunner:
    """The application, run as it has to be; on stopping, accepted requests have their whole time to end."""
    return web.AppRunner(app, shutdown_timeout=app[CONTEXT].config.timeout + 5, **RUNNER)
