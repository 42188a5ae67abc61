"""What a URL in a request may do (D08): every hop is checked, and size, time and hops are bounded."""

from __future__ import annotations

import asyncio
import io
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from PIL import Image

from theodolite.errors import RequestError
from theodolite_server import fetch
from theodolite_server.config import Config
from theodolite_server.media import Media

LIMIT = 1024 * 1024


def png() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (3, 2), "red").save(buffer, "PNG")
    return buffer.getvalue()


async def image(request: web.Request) -> web.Response:
    return web.Response(body=png(), content_type="image/png")


async def hop(request: web.Request) -> web.Response:
    left = int(request.match_info["left"])
    raise web.HTTPFound(f"/hop/{left - 1}" if left > 1 else "/a.png")


async def to(request: web.Request) -> web.Response:
    raise web.HTTPFound(request.query["url"])


async def zeros(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "image/png"})
    await response.prepare(request)
    while True:
        await response.write(bytes(65536))


async def drip(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "image/png"})
    await response.prepare(request)
    for _ in range(100):
        await response.write(b"0")
        await asyncio.sleep(0.05)
    return response


async def page(request: web.Request) -> web.Response:
    return web.Response(text="<html>", content_type="text/html")


async def lying(request: web.Request) -> web.Response:
    return web.Response(text="<html>", content_type="image/png")


@pytest.fixture
async def site() -> AsyncIterator[str]:
    app = web.Application()
    app.add_routes([web.get("/a.png", image), web.get("/hop/{left}", hop), web.get("/to", to)])
    app.add_routes([web.get("/zeros", zeros), web.get("/drip", drip), web.get("/page", page), web.get("/lie", lying)])
    server = TestServer(app)
    await server.start_server()
    yield f"http://127.0.0.1:{server.port}"
    await server.close()


async def get(url: str, allow: bool = True) -> bytes:
    return await fetch.get(url, allow_private=allow, limit=LIMIT)


async def refused(url: str, message: str, allow: bool = True) -> None:
    with pytest.raises(RequestError, match=message):
        await get(url, allow)


async def test_an_image_comes_where_it_is_allowed(site: str) -> None:
    assert await get(f"{site}/a.png") == png()
    assert await get(f"{site}/hop/5") == png()


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0",
        "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "[fe80::1]", "[fd00::1]", "100.64.0.1",
        "224.0.0.1", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "255.255.255.255",
    ],
)  # fmt: skip
async def test_addresses_inside_are_refused_before_anything_is_sent(host: str) -> None:
    await refused(f"http://{host}:9/a.png", "not public|InvalidUrl", allow=False)


async def test_loopback_is_refused_by_default_and_not_called(site: str) -> None:
    await refused(f"{site}/a.png", "--allow-private-urls", allow=False)


async def test_a_redirect_is_checked_as_the_first_address_is(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    public = {"example.test"}
    real = asyncio.get_running_loop().getaddrinfo

    async def lookup(host: str, port: int, **options: Any) -> Any:
        return await real("127.0.0.1" if host in public else host, port, **options)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup)
    judged: list[str] = []

    def is_public(address: str) -> bool:
        judged.append(address)
        return len(judged) == 1  # the first name is taken for a public one, what follows is judged as it is

    monkeypatch.setattr(fetch, "is_public", is_public)
    port = site.rsplit(":", 1)[1]
    await refused(
        f"http://example.test:{port}/to?url=http://127.0.0.1:{port}/a.png", "not public|InvalidUrl", allow=False
    )
    assert judged == ["127.0.0.1", "127.0.0.1"]


async def test_a_name_is_resolved_once_per_connection(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    port = int(site.rsplit(":", 1)[1])

    async def lookup(host: str, port: int, **options: Any) -> Any:
        asked.append(host)
        if len(asked) > 1:
            pytest.fail("the name was resolved a second time")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup)
    monkeypatch.setattr(fetch, "is_public", lambda address: True)
    assert await get(f"http://rebinding.test:{port}/a.png", allow=False) == png()
    assert asked == ["rebinding.test"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/hop/6", "more than 5 times"),
        ("/hop/50", "more than 5 times"),
        ("/to?url=file:///etc/passwd", "scheme 'file'"),
        ("/to?url=gopher://127.0.0.1/", "scheme 'gopher'"),
        ("/page", "text/html"),
        ("/nothing", "status 404"),
        ("/zeros", "larger than"),
    ],
)
async def test_answers_that_are_refused(site: str, path: str, message: str) -> None:
    await refused(site + path, message)


async def test_a_slow_answer_ends_in_time(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "TOTAL_SECONDS", 0.4)
    start = time.monotonic()
    await refused(f"{site}/drip", "did not answer within")
    assert time.monotonic() - start < 2


async def test_what_is_no_picture_is_a_400_that_names_the_item(site: str) -> None:
    media = Media(Config(allow_private_urls=True), asyncio.to_thread)
    assert (await media.load(f"{site}/a.png", "input[0]")).image.size == (3, 2)
    with pytest.raises(RequestError, match=r"input\[1\]: failed to read image: .*not a picture"):
        await media.load(f"{site}/lie", "input[1]")
    with pytest.raises(RequestError, match="--allow-private-urls"):
        await Media(Config(), asyncio.to_thread).load(f"{site}/a.png", "input[0]")


@pytest.mark.parametrize("url", ["http://", "http:///a", "http://[::1", "http://a b/", "https://x:99999/"])
async def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(RequestError):
        await get(url)
