"""Pictures to arrays, with Pillow."""

# H rows, W columns

import io
from typing import TYPE_CHECKING

import numpy as np

from harmax.errors import DamagedError, needs

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM", "TIFF")
"""The formats that Pillow may try. For some others, such as EPS, it would start a program."""
MOST_PIXELS = 80_000_000
"""Largest picture. A file of a few kilobytes may promise many gigabytes. Pillow itself warns from 89 million on."""


def decode_image(data: bytes, name: object, *, size: int | None = None) -> np.ndarray:
    """Return an encoded picture as (H, W, 3) uint8, turned upright if its camera noted how it was held.

    Args:
        data: the file's bytes, in one of `FORMATS`.
        name: the name of the picture in an error.
        size: if given, the shorter side is scaled to it, and a square of this size is cut from the middle.
    """
    with needs("vision"):
        from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            width, height = picture.size
            small = width * height <= MOST_PIXELS
            image = _to_rgb(ImageOps.exif_transpose(picture)) if small else picture
    except Exception as error:  # Pillow reports damage with many types of errors, depending on the format
        reason = "unknown format" if isinstance(error, UnidentifiedImageError) else error
        raise DamagedError(
            f"{name} must be a whole picture ({', '.join(FORMATS)}), got {len(data):,} bytes that cannot be read "
            f"({reason}); fetch it again or remove it."
        ) from error
    if not small:
        raise DamagedError(
            f"{name} must have at most {MOST_PIXELS:,} pixels, got {width:,} x {height:,}; shrink or remove it."
        )
    if size is not None and image.size != (size, size):
        scale = size / min(image.size)
        width, height = (max(size, round(side * scale)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
        left, top = (width - size) // 2, (height - size) // 2
        image = image.crop((left, top, left + size, top + size))
    return np.asarray(image, dtype=np.uint8)


def _to_rgb(picture: "Picture") -> "Picture":
    """Convert to RGB; gray pictures of 16 bits keep their upper 8, where Pillow would cut all values off at 255."""
    from PIL import Image

    if not picture.mode.startswith(("I", "F")):
        return picture.convert("RGB")
    values = np.asarray(picture)
    if values.dtype.kind == "f" or values.min() < 0 or values.max() > 65535:
        raise ValueError("gray values must be whole numbers of at most 16 bits; save it with 8 or 16 bits")
    return Image.fromarray((values // 256).astype(np.uint8)).convert("RGB")
