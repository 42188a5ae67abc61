"""GET for image URLs that clients name: every hop is checked, connections go to the checked address only."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from theodolite.errors import RequestError

TOTAL_SECONDS = 10.0
CONNECT_SECONDS = 5.0
REDIRECTS = 5
CHUNK = 64 * 1024
BYTES = {"application/octet-stream", "binary/octet-stream"}
MOVED = {301, 302, 303, 307, 308}


class _Refused(OSError):
    """The address is one that clients may not reach through this server."""


def is_public(address: str) -> bool:
    """Whether an address lies on the public Internet; forms that embed an IPv4 address are judged by that one too."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is None and ip in ipaddress.ip_network("64:ff9b::/96"):
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified)


class _Resolver(AbstractResolver):
    """Resolves once, checks every address, and gives the connection just those: a name cannot change in between."""

    def __init__(self, allow_private: bool) -> None:
        self._allow_private = allow_private

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
        answers: list[ResolveResult] = []
        for kind, _, proto, _, address in found:
            ip = str(address[0])
            if not self._allow_private and not is_public(ip):
                raise _Refused(f"{host} has an address that is not public")
            answers.append(
                ResolveResult(hostname=host, host=ip, port=port, family=kind, proto=proto, flags=socket.AI_NUMERICHOST)
            )
        return answers

    async def close(self) -> None:
        """Nothing is held."""


async def get(url: str, *, allow_private: bool, limit: int) -> bytes:
    """The bytes behind a URL.

    :param allow_private: also reach loopback, link-local and private addresses.
    :param limit: bytes; more end the transfer.
    :raises RequestError: for anything but a complete image-like answer within the limits.
    """
    timeout = aiohttp.ClientTimeout(total=TOTAL_SECONDS, sock_connect=CONNECT_SECONDS)
    connector = aiohttp.TCPConnector(resolver=_Resolver(allow_private), use_dns_cache=False, force_close=True)
    # trust_env stays off: a proxy would resolve names on its own, unchecked
    session = aiohttp.ClientSession(
        connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
    )
    try:
        async with asyncio.timeout(TOTAL_SECONDS), session:
            return await _follow(session, url, allow_private, limit)
    except _Refused as error:
        raise RequestError(f"{error}; --allow-private-urls permits it") from None
    except TimeoutError:
        raise RequestError(f"the URL did not answer within {TOTAL_SECONDS:.0f} seconds") from None
    except aiohttp.ClientConnectorError as error:
        if isinstance(error.os_error, _Refused):
            raise RequestError(f"{error.os_error}; --allow-private-urls permits it") from None
        raise RequestError("the URL cannot be reached") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise RequestError(f"the URL cannot be fetched ({type(error).__name__})") from None


async def _follow(session: aiohttp.ClientSession, url: str, allow_private: bool, limit: int) -> bytes:
    hop = URL(url)
    for _ in range(REDIRECTS + 1):
        _check(hop, allow_private)
        async with session.get(hop, allow_redirects=False, headers={"Accept": "image/*"}) as answer:
            if answer.status in MOVED:
                hop = hop.join(URL(answer.headers.get("Location", "")))
                continue
            if answer.status != 200:
                raise RequestError(f"the URL answered with status {answer.status}")
            kind = answer.content_type.lower()
            if not (kind.startswith("image/") or kind in BYTES):
                raise RequestError(f"the URL answered with {kind}, an image was expected")
            return await _read(answer, limit)
    raise RequestError(f"the URL redirects more than {REDIRECTS} times")


def _check(url: URL, allow_private: bool) -> None:
    """Scheme and host, as the client that connects understands them, so that no second parser can disagree."""
    if url.scheme not in ("http", "https"):
        raise RequestError(f"the URL leads to the scheme {url.scheme!r}; http or https was expected")
    if not url.host:
        raise RequestError("the URL names no host")
    try:
        ipaddress.ip_address(url.host.partition("%")[0])
    except ValueError:
        return  # a name: the resolver checks what it stands for
    if not allow_private and not is_public(url.host):
        raise _Refused("the URL leads to an address that is not public")


async def _read(answer: aiohttp.ClientResponse, limit: int) -> bytes:
    if answer.content_length is not None and answer.content_length > limit:
        raise RequestError(f"the image is larger than {limit} bytes")
    parts: list[bytes] = []
    size = 0
    async for chunk in answer.content.iter_chunked(CHUNK):
        size += len(chunk)
        if size > limit:
            raise RequestError(f"the image is larger than {limit} bytes")
        parts.append(chunk)
    return b"".join(parts)
