"""Pictures to arrays, with Pillow."""

# H rows, W columns

import io

import numpy as np

from harmax.errors import DamagedError, needs

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM", "TIFF")
"""The formats that Pillow may try. For some others, such as EPS, it would start a program."""


def decode_image(data: bytes, name: object, *, size: int | None = None) -> np.ndarray:
    """Return an encoded picture as (H, W, 3) uint8.

    Args:
        data: the file's bytes, in one of `FORMATS`.
        name: the name of the picture in an error.
        size: if given, the shorter side is scaled to it, and a square of this size is cut from the middle.
    """
    with needs("vision"):
        from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            image = picture.convert("RGB")
    except Exception as error:  # Pillow reports damage with many types of errors, depending on the format
        reason = "unknown format" if isinstance(error, UnidentifiedImageError) else error
        raise DamagedError(
            f"{name} must be a whole picture ({', '.join(FORMATS)}), got {len(data):,} bytes that cannot be read "
            f"({reason}); fetch it again or remove it."
        ) from error
    if size is not None and image.size != (size, size):
        scale = size / min(image.size)
        width, height = (max(size, round(side * scale)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
        left, top = (width - size) // 2, (height - size) // 2
        image = image.crop((left, top, left + size, top + size))
    return np.asarray(image, dtype=np.uint8)
