"""Where pictures become RGB images: every mode that Pillow opens, upright, within limits. Any thread."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from theodolite.errors import RequestError

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_BYTES = 64 * 1024 * 1024
"""Of the file."""
MAX_SIDE = 16_384
MAX_PIXELS = 89_478_485
"""Bounds what decoding may take (about 270 MB as RGB); beyond it Pillow warns of a decompression bomb."""
FORMATS = ("PNG", "JPEG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "JPEG2000", "PPM", "TGA", "QOI", "PCX", "FITS")
"""Left out are formats that Pillow reads by running another program (EPS), that it decodes before their size can be
checked (ICO), and those that nobody sends."""
ORIENTATION = 0x0112
SIXTEEN_BITS = 65_535


def read(source: str | Path | bytes) -> Image:
    """Decode a file, or the bytes of one, to an upright RGB image.

    :raises RequestError: for what is no picture, is damaged, or is larger than the limits above.
    """
    import PIL.Image

    where, data = ("the image", source) if isinstance(source, bytes) else (str(source), _bytes(Path(source)))
    if not data:
        raise RequestError(f"{where} is empty")
    if len(data) > MAX_BYTES:
        raise RequestError(f"{where} has {len(data)} bytes, at most {MAX_BYTES} are read")
    PIL.Image.init()
    warnings.simplefilter("ignore", PIL.Image.DecompressionBombWarning)  # the limit below refuses what it warns of
    try:
        image = PIL.Image.open(io.BytesIO(data), formats=[name for name in FORMATS if name in PIL.Image.OPEN])
    except PIL.UnidentifiedImageError:
        raise RequestError(f"{where} is not a picture in a format that is read ({', '.join(FORMATS)})") from None
    except PIL.Image.DecompressionBombError:
        raise RequestError(f"{where} has too many pixels, at most {MAX_PIXELS} are decoded") from None
    except Exception as error:  # a decoder may raise anything on a damaged file
        raise RequestError(f"{where} cannot be decoded: {_line(error)}") from None
    width, height = image.size
    if max(width, height) > MAX_SIDE:
        raise RequestError(f"{where} is {width} x {height} pixels, a side may have at most {MAX_SIDE}")
    if width * height > MAX_PIXELS:
        raise RequestError(f"{where} is {width} x {height} pixels, at most {MAX_PIXELS} in all are decoded")
    try:
        image.load()
        return to_rgb(image)
    except RequestError as error:
        raise RequestError(f"{where}: {error}") from None
    except Exception as error:
        raise RequestError(f"{where} cannot be decoded: {_line(error)}") from None


def to_rgb(image: Image) -> Image:
    """An upright RGB image from one of any mode: the first frame, transparency on white, deep grey scaled to 8 bits.

    :raises RequestError: for an image without pixels, or with numbers that are not finite.
    """
    if 0 in image.size:
        raise RequestError(f"the image is {image.width} x {image.height} pixels, so there is nothing to see")
    if image.tell():
        image.seek(0)
    return _upright(_rgb(image), image.getexif().get(ORIENTATION))


def _rgb(image: Image) -> Image:
    import PIL.Image

    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return PIL.Image.fromarray(_eight_bits(image), "L").convert("RGB")
    if image.mode == "LAB":
        return _lab(image)
    if not image.has_transparency_data:
        return image.convert("RGB")
    if image.mode == "La":
        image = image.convert("LA")
    white = PIL.Image.new("RGBA", image.size, "white")
    return PIL.Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")


def _eight_bits(image: Image) -> np.ndarray:
    """Grey of more than 8 bits as ``[H, W]`` uint8.

    16 bits are divided by 257, whatever is in the picture: Pillow's own conversion clips at 255 instead. 32-bit
    integers up to 65535 are 16-bit pictures in a wider mode, and floats up to 1 (else 255) are fractions (else bytes);
    any other range has no fixed meaning and is stretched from its smallest to its largest number.
    """
    values = np.asarray(image).astype(np.float64)
    if not np.isfinite(values).all():
        raise RequestError("the image has pixels that are not finite numbers")
    low, high = float(values.min()), float(values.max())
    if image.mode == "F" and low >= 0 and high <= 255:
        scaled = values * 255 if high <= 1 else values
    elif image.mode != "F" and low >= 0 and high <= SIXTEEN_BITS:
        scaled = values / 257
    else:
        scaled = (values - low) * (255 / (high - low or 1.0))
    grey = np.rint(scaled).astype(np.uint8)
    see_through: Any = image.info.get("transparency")
    if isinstance(see_through, int):
        grey[values == see_through] = 255
    return grey


def _lab(image: Image) -> Image:
    from PIL import ImageCms

    lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
    converted = ImageCms.profileToProfile(image, lab, srgb, outputMode="RGB")
    if converted is None:
        raise RequestError("the image is in the LAB color space and could not be converted to RGB")
    return converted


def _upright(image: Image, orientation: Any) -> Image:
    from PIL.Image import Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    return image.transpose(turns[orientation]) if orientation in turns else image


def _bytes(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise RequestError(f"{path}: no such image file")
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a zero byte in the name
        raise RequestError(f"{path!r} is not a file name: {error}") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
