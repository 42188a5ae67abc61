"""From an exception to a status and a body, in the dialect of the route; the only place that knows either."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from aiohttp import web

from theodolite import errors
from theodolite_server import jsons

log = logging.getLogger("theodolite.server")

RETRY_SECONDS = 1
INTERNAL = "the server failed on this request; it goes on serving, and its log has the details"


class Unreadable(errors.RequestError):
    """The body is not what the route takes."""


class Empty(errors.RequestError):
    """There is nothing to work on; TEI has a status of its own for that."""


class TooLarge(errors.RequestError):
    """The body, or an image, is over a limit."""


class Unauthorized(errors.RequestError):
    """The key is missing or wrong."""


class Loading(errors.TheodoliteError):
    """The models are not loaded yet."""


class WorkerFailed(errors.TheodoliteError):
    """Something unforeseen happened on the model's thread; the log has it."""


@dataclass(frozen=True)
class Failure:
    """What a client is told."""

    status: int
    type: str
    message: str
    headers: dict[str, str] = field(default_factory=dict)
    empty: bool = False


TABLE: tuple[tuple[type[Exception], int, str], ...] = (
    (TooLarge, 413, "invalid_request_error"),
    (Unauthorized, 401, "authentication_error"),
    (errors.RequestError, 400, "invalid_request_error"),
    (errors.NotLoaded, 501, "not_implemented"),
    (errors.Busy, 503, "server_busy"),
    (Loading, 503, "unavailable_error"),
    (errors.TimedOut, 504, "server_timeout"),
    (errors.InvalidResult, 500, "server_error"),
    (WorkerFailed, 500, "server_error"),
)
HTTP_TYPES = {404: "not_found_error", 405: "method_not_allowed", 413: "invalid_request_error"}
RETRYABLE = {503, 429}
TEI_STATUS = {400: (422, "Validation"), 413: (413, "Validation"), 503: (429, "Overloaded"), 501: (424, "Backend")}
TEI_STATUS |= {500: (424, "Backend"), 504: (424, "Backend")}


def failure(error: BaseException, request: web.Request) -> Failure:
    """What to say about an exception; one that is not foreseen is logged and told without its text."""
    if isinstance(error, web.HTTPException):
        return _http(error, request)
    for kind, status, name in TABLE:
        if isinstance(error, kind):
            headers = {"Retry-After": str(RETRY_SECONDS)} if status in RETRYABLE else {}
            return Failure(status, name, " ".join(str(error).split()), headers, isinstance(error, Empty))
    log.error("%s %s failed", request.method, request.path, exc_info=error)
    return Failure(500, "server_error", INTERNAL)


def _http(error: web.HTTPException, request: web.Request) -> Failure:
    kind = HTTP_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    headers: dict[str, str] = {}
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        headers["Allow"] = allowed
        return Failure(405, kind, f"{request.method} is not allowed on {request.path}; allowed: {allowed}", headers)
    if error.status == 404:
        return Failure(404, kind, f"there is no route {request.path}; GET /docs lists them")
    return Failure(error.status, kind, error.reason or "the request was refused")


def response(found: Failure, dialect: str) -> web.Response:
    """The answer, in the words of the dialect: ``openai``, ``tei``, ``cohere``, ``ollama``."""
    status = found.status
    body: object
    match dialect:
        case "tei":
            status, kind = (400, "Empty") if found.empty else TEI_STATUS.get(status, (status, "Validation"))
            body = {"error": found.message, "error_type": kind}
        case "cohere":
            body = {"message": found.message}
        case "ollama":
            body = {"error": found.message}
        case _:
            body = {"error": {"message": found.message, "type": found.type, "code": status}}
    return jsons.response(body, status=status, headers=found.headers)
