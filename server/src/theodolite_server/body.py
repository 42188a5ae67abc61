"""Reading request bodies: bounded in size before and after decompression, and in time."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

from aiohttp import web

from theodolite_server.errors import TooLarge, Unreadable

SECONDS = 60.0
"""A body has to arrive within this time, however slowly its sender writes."""
STEP = 256 * 1024
"""Decompressed bytes made at a time, so that a small body that unpacks to gigabytes is met at the limit."""
WBITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


async def read(request: web.Request, limit: int) -> bytes:
    """The body, unpacked.

    :raises TooLarge: beyond ``limit`` bytes, as it is sent or unpacked.
    :raises Unreadable: for a body that cannot be unpacked, or does not arrive in time.
    """
    if request.content_length is not None and request.content_length > limit:
        raise _too_large(limit)
    unpack = _unpacker(request.headers.get("Content-Encoding", "identity"), limit)
    parts: list[bytes] = []
    sent = size = 0
    try:
        async with asyncio.timeout(SECONDS):
            async for chunk in request.content.iter_any():
                sent += len(chunk)  # counted too, as packed bytes need not unpack to anything
                if sent > limit:
                    raise _too_large(limit)
                for part in unpack(chunk):
                    size += len(part)
                    if size > limit:
                        raise _too_large(limit)
                    parts.append(part)
    except TimeoutError:
        raise Unreadable(f"the body did not arrive within {SECONDS:.0f} seconds") from None
    parts.extend(unpack(None))
    return b"".join(parts)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit // (1024 * 1024)} MiB (--max-body-mib), unpacked size included")


def _unpacker(encoding: str, limit: int) -> Callable[[bytes | None], list[bytes]]:
    encoding = encoding.strip().lower()
    if encoding in ("identity", ""):
        return lambda chunk: [chunk] if chunk else []
    if encoding not in WBITS:
        raise Unreadable(f"Content-Encoding {encoding!r} is not supported (supported: gzip, deflate, identity)")
    unpacker = zlib.decompressobj(WBITS[encoding])

    def unpack(chunk: bytes | None) -> list[bytes]:
        if chunk is None:
            if not unpacker.eof:
                raise Unreadable(f"the {encoding} body ends too early")
            return []
        parts, size = [], 0
        try:
            while chunk:
                part = unpacker.decompress(chunk, STEP)
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
                if part:
                    parts.append(part)
                chunk = unpacker.unconsumed_tail
        except zlib.error as error:
            raise Unreadable(f"the body is not valid {encoding}: {error}") from None
        if unpacker.unused_data:  # zlib would keep all of it, and copy it at every chunk
            raise Unreadable(f"the {encoding} body goes on after its end; one stream was expected")
        return parts

    return unpack
