"""What handlers of all dialects share."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from aiohttp import web

from theodolite_server import body, jsons
from theodolite_server.config import Config
from theodolite_server.media import Media
from theodolite_server.metrics import Metrics
from theodolite_server.models import Models
from theodolite_server.service import Service

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CUT_HEADER = "X-Truncated-Tokens"


@dataclass(frozen=True)
class Context:
    """What one application holds."""

    config: Config
    models: Models
    service: Service
    media: Media
    metrics: Metrics


CONTEXT = web.AppKey("context", Context)
DIALECTS = web.AppKey("dialects", dict[str, str])
DIALECT = web.RequestKey("dialect", str)


@dataclass(frozen=True)
class Route:
    """One path of a dialect, and the type of its body, for the router and for the OpenAPI document."""

    method: str
    path: str
    handler: Handler
    about: str
    dialect: str = "openai"
    body: type | None = None
    answer: type | None = None
    public: bool = False
    """Served without a key."""


ROUTE_TABLE = web.AppKey("route_table", tuple[Route, ...])


def context(request: web.Request) -> Context:
    return request.app[CONTEXT]


async def parse(request: web.Request, kind: type[T]) -> T:
    """The request's body as ``kind``.

    :raises Unreadable: if it is not.
    """
    return jsons.decode(await raw(request), kind)


async def raw(request: web.Request) -> bytes:
    return await body.read(request, context(request).config.max_body)


def cut_headers(truncated: int) -> dict[str, str]:
    """How many tokens were cut, where any were."""
    return {CUT_HEADER: str(truncated)} if truncated else {}


def packed(vector: np.ndarray) -> str:
    """Little-endian float32 bytes, row-major, as base64."""
    return base64.b64encode(np.ascontiguousarray(vector, dtype="<f4").tobytes()).decode("ascii")


async def answer(request: web.Request, make: Callable[[], Any], headers: dict[str, str] | None = None) -> web.Response:
    """A JSON answer, made and encoded off the event loop, as it may hold millions of numbers."""
    return await context(request).service.off(lambda: jsons.response(make(), headers=headers))
