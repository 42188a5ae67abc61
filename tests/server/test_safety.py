"""Bodies, depth, keys, origins, and what errors do not tell (D04 and its kind)."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest

MIB = 1024 * 1024
JSON = {"Content-Type": "application/json"}


async def send(client: Any, data: Any, path: str = "/v1/embeddings", **headers: str) -> tuple[int, Any]:
    reply = await client.post(path, data=data, headers={**JSON, **{k.replace("_", "-"): v for k, v in headers.items()}})
    return reply.status, await reply.json()


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


async def test_two_mebibytes_of_texts_are_served(client: Any) -> None:
    status, answer = await send(client, body(input=["cat"] * 299 + ["cat " * (2 * MIB // 4)]))
    assert (status, len(answer["data"])) == (200, 300)


async def test_an_image_of_five_mebibytes_passes_the_limit(client: Any) -> None:
    url = "data:image/png;base64," + base64.b64encode(os.urandom(5 * MIB)).decode()
    status, answer = await send(client, body(input=[{"type": "image_url", "image_url": {"url": url}}]))
    assert (status, "does not accept images" in answer["error"]["message"]) == (400, True)


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("identity", bytes)]
)
async def test_packed_bodies(client: Any, encoding: str, pack: Any) -> None:
    status, answer = await send(client, pack(body(input="rain")), Content_Encoding=encoding)
    assert status == 200, answer


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/embed", "/v2/rerank", "/api/embed", "/tokenize"])
async def test_over_the_limit_is_a_413_in_json(start: Any, path: str) -> None:
    client = await start(max_body_mib=1)
    status, answer = await send(client, body(input="x" * 2 * MIB), path)
    assert status == 413
    assert "1 MiB" in json.dumps(answer)
    status, _ = await send(client, gzip.compress(body(input="x" * 2 * MIB)), path, Content_Encoding="gzip")
    assert status == 413


async def test_a_body_without_length_meets_the_limit(start: Any) -> None:
    client = await start(max_body_mib=1)

    async def chunks() -> Any:
        for _ in range(64):
            yield b" " * 65536

    assert (await send(client, chunks()))[0] == 413

    async def small() -> Any:
        yield b'{"input": '
        yield b'"rain"}'

    assert (await send(client, small()))[0] == 200


async def test_a_bomb_is_not_built_in_memory(start: Any) -> None:
    client = await start(max_body_mib=8)
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(b"0" * MIB) for _ in range(512)) + packer.flush()
    assert len(bomb) < MIB
    await send(client, body(input="rain"))
    tracemalloc.start()
    status, _ = await send(client, bomb, Content_Encoding="gzip")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert status == 413
    assert peak < 24 * MIB


async def test_a_packed_body_that_unpacks_to_nothing_meets_the_limit_too(start: Any) -> None:
    client = await start(max_body_mib=1)
    empty = b"\x00\x00\x00\xff\xff" * 20_000  # stored blocks of no bytes

    async def chunks() -> Any:
        yield gzip.compress(b"")[:10]
        for _ in range(64):
            yield empty

    assert (await send(client, chunks(), Content_Encoding="gzip"))[0] == 413


@pytest.mark.parametrize(
    ("data", "encoding", "message"),
    [
        (gzip.compress(body(input="rain"))[:-9], "gzip", "ends too early"),
        (b"no gzip", "gzip", "not valid gzip"),
        (gzip.compress(body(input="rain")) + b"more", "gzip", "goes on after its end"),
        (gzip.compress(b'{"input": ') + gzip.compress(b'"rain"}'), "gzip", "goes on after its end"),
        (zlib.compress(body(input="rain")) + b"more", "deflate", "goes on after its end"),
        (b"x", "br", "'br' is not supported"),
        (b"{", "identity", "not valid JSON"),
        (b'{"input": NaN}', "identity", "not valid JSON"),
        (b"\xff\xfe", "identity", "not valid JSON"),
        (b"[1]", "identity", "expected object, got array"),
        (b'{"input":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "identity", "nested too deeply"),
        (b'{"other":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, "identity", "nested too deeply"),
    ],
)
async def test_bodies_that_cannot_be_read(client: Any, data: bytes, encoding: str, message: str) -> None:
    status, answer = await send(client, data, Content_Encoding=encoding)
    assert status == 400
    assert message in answer["error"]["message"]
    assert (await send(client, body(input="rain")))[0] == 200


DIALECTS = [
    ("POST", "/v1/nothing", 404, "error"),
    ("GET", "/v1/embeddings", 405, "error"),
    ("DELETE", "/health", 405, "error"),
    ("GET", "/embed", 405, "error_type"),
    ("GET", "/v2/rerank", 405, "message"),
]


@pytest.mark.parametrize(("method", "path", "status", "key"), DIALECTS)
async def test_every_error_is_json(client: Any, method: str, path: str, status: int, key: str) -> None:
    reply = await client.request(method, path)
    assert reply.status == status
    answer = await reply.json()
    assert key in answer
    if status == 405:
        assert reply.headers["Allow"]
    if key == "error":
        assert answer["error"]["code"] == status


async def test_keys(start: Any, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nsecond\n\nthird\n")
    client = await start(api_key=("first",), api_key_file=file)
    for headers in ({}, {"Authorization": "Bearer firs"}, {"Authorization": "first"}, {"X-Api-Key": "# ours"}):
        status, answer = await send(client, body(input="rain"), **headers)
        assert (status, answer["error"]["type"]) == (401, "authentication_error")
    for key in ("first", "second", "third"):
        assert (await send(client, body(input="rain"), Authorization=f"Bearer {key}"))[0] == 200
        assert (await send(client, body(input="rain"), X_Api_Key=key))[0] == 200
    for path in ("/health", "/livez", "/", "/docs"):
        assert (await client.get(path)).status == 200
    for path in ("/props", "/v1/models", "/metrics", "/info"):
        assert (await client.get(path)).status == 401


@pytest.mark.parametrize(("origins", "answer"), [((), None), (("https://a",), "https://a"), (("*",), "*")])
async def test_origins(start: Any, origins: tuple[str, ...], answer: str | None) -> None:
    client = await start(cors_origin=origins)
    asked = {"Origin": "https://a", "Access-Control-Request-Method": "POST"}
    reply = await client.options("/v1/embeddings", headers=asked)
    assert reply.headers.get("Access-Control-Allow-Origin") == answer
    assert (reply.status == 204) is bool(origins)
    other = await client.get("/health", headers={"Origin": "https://b"})
    assert other.headers.get("Access-Control-Allow-Origin") == ("*" if answer == "*" else None)


async def test_request_ids(client: Any) -> None:
    assert (await client.get("/health", headers={"X-Request-Id": "abc-1"})).headers["X-Request-Id"] == "abc-1"
    made = (await client.get("/health", headers={"X-Request-Id": "a b<script>"})).headers["X-Request-Id"]
    assert len(made) == 32
    assert (await client.get("/nothing")).headers["X-Request-Id"] != made


async def test_an_unforeseen_error_tells_nothing(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from theodolite_server import service

    def broken(*args: Any) -> Any:
        raise RuntimeError("/home/secret.py line 5")

    monkeypatch.setattr(service, "encode", broken)
    status, answer = await send(client, body(input="rain"))
    assert (status, answer["error"]["type"]) == (500, "server_error")
    assert "secret" not in json.dumps(answer)
    assert "Traceback" not in json.dumps(answer)


async def test_images_of_a_data_uri_are_bounded(tmp_path: Path) -> None:
    import asyncio

    from PIL import Image

    from theodolite.errors import RequestError
    from theodolite_server.config import Config
    from theodolite_server.media import Media

    media = Media(Config(), asyncio.to_thread)
    buffer = io.BytesIO()
    Image.new("RGB", (3, 2), "red").save(buffer, "PNG")
    good = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    assert (await media.load(good, "input[0]")).image.size == (3, 2)
    wide = io.BytesIO()
    Image.new("1", (16_385, 1)).save(wide, "PNG")
    for url, message in (
        ("data:text/plain;base64,aaaa", "data:image"),
        ("data:image/png,abc", "data:image"),
        ("data:image/png;base64,!!", "base64"),
        ("data:image/png;base64," + base64.b64encode(b"no picture").decode(), "not a picture"),
        ("data:image/png;base64," + base64.b64encode(wide.getvalue()).decode(), "16384"),
        ("ftp://host/a.png", "unsupported image URL scheme 'ftp'"),
        ("file:///etc/passwd", "--media-path"),
        ("/etc/passwd", "--media-path"),
    ):
        with pytest.raises(RequestError, match=message) as caught:
            await media.load(url, "input[0]")
        assert str(caught.value).startswith("input[0]: failed to read image: ")


async def test_files_are_read_below_the_media_path_only(tmp_path: Path) -> None:
    import asyncio

    from PIL import Image

    from theodolite.errors import RequestError
    from theodolite_server.config import Config
    from theodolite_server.media import Media

    inside, outside = tmp_path / "media", tmp_path / "outside.png"
    inside.mkdir()
    for file in (inside / "a b.png", outside):
        Image.new("RGB", (2, 2)).save(file)
    (inside / "link.png").symlink_to(outside)
    media = Media(Config(media_path=inside), asyncio.to_thread)
    for url in ("a b.png", f"{inside}/a b.png", f"file://{inside}/a%20b.png"):
        assert (await media.load(url, "x")).image.size == (2, 2)
    bad = ("../outside.png", str(outside), f"file://{outside}", "link.png", f"file://{inside}/../outside.png", "",
           "file://host/a.png", "a\0b", "no.png", ".")  # fmt: skip
    for url in bad:
        with pytest.raises(RequestError) as caught:
            await media.load(url, "x")
        assert str(tmp_path) not in str(caught.value)


async def test_a_body_that_never_ends_is_given_up(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    from theodolite_server import body as reader

    monkeypatch.setattr(reader, "SECONDS", 0.2)

    async def slow() -> Any:
        for _ in range(40):
            yield b" "
            await asyncio.sleep(0.05)

    status, answer = await send(client, slow())
    assert (status, "did not arrive" in answer["error"]["message"]) == (400, True)
    assert (await send(client, body(input="rain")))[0] == 200


async def test_more_images_than_a_request_may_hold() -> None:
    from theodolite.errors import RequestError
    from theodolite_server.routes.embeddings import with_images

    with pytest.raises(RequestError, match="at most 16 images"):
        await with_images(None, [("data:,", "input[0]", "")] * 17)  # type: ignore[arg-type]
