"""Every mode that Pillow opens becomes the same upright RGB picture."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from theodolite import images
from theodolite.embedder import as_item
from theodolite.errors import RequestError
from theodolite.values import ImageItem

RAMP = np.tile(np.arange(0, 256, 4, dtype=np.uint8), (8, 1))  # [8, 64], black to white
COLORS = np.stack([RAMP, RAMP[:, ::-1], np.full_like(RAMP, 90)], axis=-1)


def grey(numbers: np.ndarray) -> np.ndarray:
    return np.repeat(numbers[..., None], 3, axis=-1)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def array(image: Image.Image) -> np.ndarray:
    assert image.mode == "RGB"
    return np.asarray(image).astype(int)


@pytest.mark.parametrize(
    "mode", ["1", "L", "P", "RGB", "RGBX", "RGBA", "RGBa", "LA", "La", "PA", "CMYK", "YCbCr", "HSV"]
)
def test_modes_that_pillow_converts(mode: str) -> None:
    numbers = np.where(RAMP > 127, 255, 0).astype(np.uint8) if mode == "1" else RAMP
    colored = mode not in ("1", "L", "LA", "La", "P", "PA")
    source = Image.fromarray(COLORS if colored else grey(numbers))
    if mode in ("La", "RGBa"):
        source = source.convert(mode.upper())
    elif mode in ("P", "PA"):
        source = source.convert("L").convert("P")
    given = source.convert(mode)
    assert given.mode == mode
    wanted = COLORS if colored else grey(numbers)
    assert np.abs(array(images.to_rgb(given)) - wanted).max() <= {"HSV": 8, "YCbCr": 4}.get(mode, 2)


def test_lab() -> None:
    profiles = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    lab = ImageCms.profileToProfile(Image.fromarray(COLORS), *profiles, outputMode="LAB")
    assert lab is not None
    assert lab.mode == "LAB"
    assert np.abs(array(images.to_rgb(lab)) - COLORS).mean() < 3


@pytest.mark.parametrize("mode", ["I;16", "I;16L", "I;16B"])
def test_sixteen_bit_grey_is_scaled_not_clipped(mode: str) -> None:
    wide = RAMP.astype(np.uint16) * 257
    raw = wide.astype(">u2" if mode.endswith("B") else "<u2").tobytes()
    given = Image.frombytes(mode, (64, 8), raw)
    assert (array(images.to_rgb(given)) == grey(RAMP)).all()


def test_sixteen_bit_file() -> None:
    data = encoded(Image.fromarray(RAMP.astype(np.uint16) * 257))
    assert (array(images.read(data)) == grey(RAMP)).all()


@pytest.mark.parametrize("name", ["grey16", "negative"])
def test_32_bit_integers(name: str) -> None:
    numbers = RAMP.astype(np.int32) * 257 if name == "grey16" else RAMP.astype(np.int32) * 100_000 - 500_000
    found = array(images.to_rgb(Image.fromarray(numbers)))
    wanted = RAMP if name == "grey16" else np.rint(RAMP / 252 * 255)
    assert (found == grey(wanted.astype(np.uint8))).all()


@pytest.mark.parametrize(("scale", "offset"), [(1 / 255, 0.0), (1.0, 0.0), (1000.0, -7.0)])
def test_floats(scale: float, offset: float) -> None:
    found = array(images.to_rgb(Image.fromarray((RAMP * scale + offset).astype(np.float32))))
    wanted = RAMP if offset == 0 else np.rint(RAMP / 252 * 255)
    assert np.abs(found - grey(wanted.astype(np.uint8))).max() <= 1


def test_a_number_that_is_none() -> None:
    with pytest.raises(RequestError, match="not finite"):
        images.to_rgb(Image.fromarray(np.full((2, 2), np.nan, np.float32)))


def test_transparency_lies_on_white() -> None:
    alpha = np.full_like(RAMP, 0)
    alpha[:, 32:] = 255
    given = Image.fromarray(np.dstack([COLORS, alpha]))
    found = array(images.read(encoded(given)))
    assert (found[:, :32] == 255).all()
    assert (found[:, 32:] == COLORS[:, 32:]).all()


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "I;16"])
def test_a_transparent_color(mode: str) -> None:
    black = np.zeros((4, 4), np.uint8)
    black[:, 2:] = 255 if mode == "1" else 128
    image = Image.fromarray(black.astype(np.uint16) * 257) if mode == "I;16" else Image.fromarray(black).convert(mode)
    see_through: object = (0, 0, 0) if mode == "RGB" else 0
    found = array(images.read(encoded(image, transparency=see_through)))
    assert (found[:, :2] == 255).all()
    assert (found[:, 2:] == black[0, 2]).all()


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "PNG", "WEBP"])
def test_the_first_of_several_frames(kind: str) -> None:
    red, blue = (Image.new("RGB", (8, 8), color) for color in ("red", "blue"))
    options: dict[str, object] = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(red, kind, save_all=True, append_images=[blue], **options)
    assert (array(images.read(data)) == (255, 0, 0)).all()
    moved = Image.open(io.BytesIO(data))
    moved.seek(1)
    assert (array(images.to_rgb(moved)) == (255, 0, 0)).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(orientation: int) -> None:
    stored = Image.fromarray(COLORS)
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = array(images.read(encoded(stored, exif=exif)))
    turned = {
        1: COLORS,
        2: COLORS[:, ::-1],
        3: COLORS[::-1, ::-1],
        4: COLORS[::-1],
        5: COLORS.swapaxes(0, 1),
        6: COLORS[::-1].swapaxes(0, 1),
        7: COLORS[::-1, ::-1].swapaxes(0, 1),
        8: COLORS.swapaxes(0, 1)[::-1],
    }
    assert (found == turned[orientation]).all()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "JPEG2000", "PPM", "TGA", "PCX"])
def test_formats(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "picture"
    file.write_bytes(encoded(Image.new("RGB", (32, 32), (200, 40, 40)), kind))
    assert np.abs(array(images.read(file)) - (200, 40, 40)).max() <= 8
    assert images.read(str(file)).size == (32, 32)


def _png(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds no such picture."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\0" * 100)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"<html>no picture</html>", "not a picture in a format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a picture in a format"),
        (_png(20_000, 2), "20000 x 2 pixels, a side may have at most 16384"),
        (_png(12_000, 12_000), "12000 x 12000 pixels, at most"),
        (_png(16_384, 16_384), "too many pixels"),
        (encoded(Image.effect_noise((64, 64), 50))[:2000], "cannot be decoded"),
        (encoded(Image.fromarray(COLORS), "JPEG")[:300], "cannot be decoded|not a picture"),
    ],
)
def test_what_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message) as error:
        images.read(data)
    assert "\n" not in str(error.value)


def test_files_that_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path, tmp_path / "absent.png", Path("/dev/zero"), "a\0b"):
        with pytest.raises(RequestError):
            images.read(path)
    monkeypatch.setattr(images, "MAX_BYTES", 10)
    (tmp_path / "large.png").write_bytes(encoded(Image.fromarray(COLORS)))
    with pytest.raises(RequestError, match="at most 10 are read"):
        images.read(tmp_path / "large.png")


def test_an_image_without_pixels() -> None:
    with pytest.raises(RequestError, match="0 x 4"):
        images.to_rgb(Image.new("RGB", (0, 4)))


def test_an_image_that_pillow_has_not_decoded_yet() -> None:
    """The Python API takes Pillow's images, which decode at first use, and in any mode."""
    torn = encoded(Image.fromarray(COLORS))[:-40]
    with pytest.raises(RequestError, match="cannot be decoded"):
        as_item(Image.open(io.BytesIO(torn)))
    assert as_item(ImageItem(Image.fromarray(RAMP))).image.mode == "RGB"
