"""The drawing that the references of the vision-language families saw."""

from __future__ import annotations

import numpy as np
from PIL import Image


def picture(width: int, height: int, phase: float = 0.0) -> Image.Image:
    """A smooth picture with a dark bar, the same on every machine."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [127 + 100 * np.sin(phase + 0.05 * (i + 1) * x + 0.07 * (3 - i) * y) for i in range(3)]
    pixels = np.round(np.stack(waves, axis=-1)).astype(np.uint8)
    pixels[height // 3 : height // 2, width // 4 :] = (20, 30, 60)
    return Image.fromarray(pixels)
