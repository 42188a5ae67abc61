"""What happens around every request: an id, the key, origins, errors in the route's dialect, the access log."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import time
import uuid

from aiohttp import web

from theodolite.errors import RequestError
from theodolite_server import errors
from theodolite_server.config import Config
from theodolite_server.routes.common import CONTEXT, DIALECT, ROUTE_TABLE, Handler, Route

REQUEST_ID = "X-Request-Id"
CLOSED = 499
"""What the log calls a request whose client has gone."""
ALLOWED_HEADERS = "Authorization, Content-Type, X-Api-Key, X-Request-Id"
_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
access = logging.getLogger("theodolite.access")


def keys(config: Config) -> tuple[bytes, ...]:
    """Digests of the keys that are accepted; none means that no key is asked for.

    :raises RequestError: for a key file that cannot be read, or that holds none.
    """
    found = list(config.api_key)
    if config.api_key_file is not None:
        try:
            lines = config.api_key_file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"--api-key-file {config.api_key_file} cannot be read: {error}") from None
        in_file = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not in_file:
            raise RequestError(f"--api-key-file {config.api_key_file} holds no key")
        found += in_file
    return tuple(_digest(key) for key in found)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def allowed(request: web.Request, digests: tuple[bytes, ...]) -> bool:
    """Whether the request carries a key; every key is compared, each in constant time."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    given = token.strip() if scheme.lower() == "bearer" else request.headers.get("X-Api-Key", "")
    digest = _digest(given)
    return sum(hmac.compare_digest(digest, key) for key in digests) > 0  # no early end


def outer(config: Config) -> web.middleware:  # type: ignore[valid-type]
    """The middleware; made once, so that keys are read once.

    :raises RequestError: as `keys`.
    """
    digests = keys(config)

    @web.middleware
    async def around(request: web.Request, handler: Handler) -> web.StreamResponse:
        start = time.perf_counter()
        given = request.headers.get(REQUEST_ID, "")
        name = given if _ID.fullmatch(given) else uuid.uuid4().hex
        path = _path(request, "unknown")
        status = CLOSED
        try:
            response = await _answered(request, handler, config, digests)
            status = response.status
            response.headers[REQUEST_ID] = name
            _allow_origin(request, response, config.cors_origin)
            return response
        finally:
            seconds = time.perf_counter() - start
            metrics = request.app[CONTEXT].metrics
            metrics.requests.labels(path, request.method, str(status)).inc()
            metrics.latency.labels(path).observe(seconds)
            access.info(
                "method=%s path=%s status=%d ms=%.1f request_id=%s client=%s",
                request.method, _printable(request.path), status, seconds * 1000, name, request.remote,
            )  # fmt: skip

    return around


async def _answered(
    request: web.Request, handler: Handler, config: Config, digests: tuple[bytes, ...]
) -> web.StreamResponse:
    try:
        if request.method == "OPTIONS" and config.cors_origin:
            return web.Response(status=204)
        if digests and not _public(request) and not allowed(request, digests):
            raise errors.Unauthorized("a valid key is missing: send Authorization: Bearer KEY")
        return await handler(request)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        route = _route(request)
        dialect = request.get(DIALECT) or (route.dialect if route else "openai")
        return errors.response(errors.failure(error, request), dialect)


def _public(request: web.Request) -> bool:
    route = _route(request)
    return route is not None and route.method == request.method and route.public


def _route(request: web.Request) -> Route | None:
    """The route of the table that was asked, or one of its path where the method is another."""
    path = _path(request, request.path)
    alike = [route for route in request.app[ROUTE_TABLE] if route.path == path]
    return next((route for route in alike if route.method == request.method), alike[0] if alike else None)


def _path(request: web.Request, unknown: str) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else unknown


def _printable(path: str) -> str:
    return "".join(c if c.isprintable() and c != " " else f"%{ord(c):02X}" for c in path[:200])


def _allow_origin(request: web.Request, response: web.StreamResponse, origins: tuple[str, ...]) -> None:
    origin = request.headers.get("Origin")
    if not origins or origin is None:
        return
    if "*" not in origins and origin not in origins:
        return
    response.headers["Access-Control-Allow-Origin"] = "*" if "*" in origins else origin
    response.headers["Vary"] = "Origin"
    if request.method == "OPTIONS":
        response.headers["Access-Control-Allow-Methods"] = "GET, POST, OPTIONS"
        response.headers["Access-Control-Allow-Headers"] = ALLOWED_HEADERS
        response.headers["Access-Control-Max-Age"] = "600"
