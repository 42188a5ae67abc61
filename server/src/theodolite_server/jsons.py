"""JSON in and out, by msgspec: strict types in, and no number that is not finite out."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
from aiohttp import web

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode
_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<where>.*)`)?$", re.DOTALL)


def decode(body: bytes, kind: type[T]) -> T:
    """A request body as ``kind``: null is absent, unknown keys are ignored.

    :raises Unreadable: naming the field of a wrong type.
    """
    from theodolite_server.errors import Unreadable

    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise Unreadable(_told(str(error))) from None
    except msgspec.DecodeError as error:
        raise Unreadable(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise Unreadable("the body is nested too deeply") from None


def _told(text: str) -> str:
    match = _AT.match(text)
    where = (match["where"] or "").lstrip(".") if match else ""
    what = (match["what"] if match else text).replace("`", "").replace(" | null", "")
    what = what[:1].lower() + what[1:]
    return f'"{where}": {what}' if where else f"the body: {what}"


def response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A JSON answer."""
    return web.Response(body=_encode(value), status=status, headers=headers, content_type="application/json")
