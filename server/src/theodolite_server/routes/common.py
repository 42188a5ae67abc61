"""What handlers of all dialects share."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from aiohttp import web

from theodolite.errors import RequestError
from theodolite.tokenize import Tokenizer
from theodolite.values import Task
from theodolite_server import body, jsons
from theodolite_server.config import Config
from theodolite_server.media import Media
from theodolite_server.metrics import Metrics
from theodolite_server.models import Models, Served
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


async def loaded(here: Context, task: Task, name: str | None = None) -> Served:
    """The model that a request names for a task, or the only one, loaded.

    :raises NotLoaded: if no model has that task.
    :raises RequestError: for the name of another.
    """
    served = here.models.find(task, name)
    await here.models.worker(served)
    return served


async def first(here: Context) -> Served:
    """The main model, whatever its task, loaded."""
    served = here.models.served[0]
    await here.models.worker(served)
    return served


def check_ids(rows: list[list[int]], tokenizer: Tokenizer) -> None:
    """Refuse ids that the vocabulary does not hold.

    :raises RequestError: naming the first.
    """
    for row in rows:
        for token in row:
            if not 0 <= token < tokenizer.size:
                raise RequestError(f"token id {token} is not in the vocabulary of {tokenizer.size}")


def cut_headers(truncated: int) -> dict[str, str]:
    """How many tokens were cut, where any were."""
    return {CUT_HEADER: str(truncated)} if truncated else {}


def packed(vector: np.ndarray) -> str:
    """Little-endian float32 bytes, row-major, as base64."""
    return base64.b64encode(np.ascontiguousarray(vector, dtype="<f4").tobytes()).decode("ascii")


async def answer(request: web.Request, make: Callable[[], Any], headers: dict[str, str] | None = None) -> web.Response:
    """A JSON answer, made and encoded off the event loop, as it may hold millions of numbers."""
    return await context(request).service.off(lambda: jsons.response(make(), headers=headers))
