"""Images that a request names: data URIs, URLs, and files below --media-path. The first two never touch the disk."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from theodolite import images
from theodolite.errors import RequestError
from theodolite.values import ImageItem
from theodolite_server.config import Config
from theodolite_server.errors import TooLarge

T = TypeVar("T")
MOST = 16
"""Images per request."""
_DATA = "data:"


class Media:
    """Loads images under the limits and permissions of one server."""

    def __init__(self, config: Config, off: Callable[..., Any]) -> None:
        self.allow_private = config.allow_private_urls
        self.folder = config.media_path.resolve() if config.media_path else None
        self._off = off
        self._decoding = asyncio.Semaphore(2)

    async def load(self, url: str, where: str, text: str = "") -> ImageItem:
        """One image.

        :raises RequestError: naming ``where`` in the request it stood.
        """
        try:
            data = await self._bytes(url)
            async with self._decoding:
                image = await self._off(images.read, data)
        except TooLarge:
            raise
        except RequestError as error:
            raise RequestError(f"{where}: failed to read image: {error}") from None
        return ImageItem(image, text)

    async def _bytes(self, url: str) -> bytes:
        scheme = urlsplit(url[:32]).scheme.lower() if ":" in url[:32] else ""
        if scheme == "data":
            return await self._off(_from_data, url)
        if scheme in ("http", "https"):
            from theodolite_server.fetch import get  # aiohttp's client, for the few requests that need it

            return await get(url, allow_private=self.allow_private, limit=images.MAX_BYTES)
        if scheme in ("file", ""):
            return await self._off(self._from_file, url)
        raise RequestError(f"unsupported image URL scheme {scheme!r} (supported: data, http, https, file)")

    def _from_file(self, url: str) -> bytes:
        if self.folder is None:
            raise RequestError("files of the server are not read, unless it is started with --media-path DIR")
        parts = urlsplit(url) if url.lower().startswith("file:") else None
        if parts is not None and parts.netloc not in ("", "localhost"):
            raise RequestError("a file URL may not name a host")
        refused = RequestError("the file is not there, or not below the folder of --media-path")
        try:
            # a plain name is below the folder; an absolute one has to lead there, links included
            path = (self.folder / Path(unquote(parts.path) if parts else url)).resolve()
            if not path.is_relative_to(self.folder) or not path.is_file():
                raise refused
            with path.open("rb") as file:
                return file.read(images.MAX_BYTES + 1)
        except (OSError, ValueError):
            raise refused from None


def _from_data(url: str) -> bytes:
    head, comma, payload = url[len(_DATA) :].partition(",")
    kind, _, rest = head.partition(";")
    if not comma or not kind.strip().lower().startswith("image/") or "base64" not in rest.lower():
        raise RequestError("a data URI of the form data:image/...;base64,... was expected")
    if len(payload) * 3 // 4 > images.MAX_BYTES + 3:
        raise RequestError(f"the image is larger than {images.MAX_BYTES} bytes")
    try:
        return base64.b64decode("".join(payload.split()), validate=True)
    except (binascii.Error, ValueError):
        raise RequestError("the data URI is not valid base64") from None


def url_of(value: Any, where: str) -> str:
    """The URL in either spelling: a string, or ``{"url": ...}``.

    :raises RequestError: for anything else.
    """
    url = value.get("url") if isinstance(value, dict) else value
    if not isinstance(url, str) or not url.strip():
        raise RequestError(f'{where} must be a URL, or an object with a "url"')
    return url.strip()
