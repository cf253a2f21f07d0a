"""Pictures to arrays, with Pillow."""

import io

import numpy as np

from harmax.errors import DamagedError, needs


def decode_image(data: bytes, name: object, *, size: int | None = None) -> np.ndarray:
    """Return an encoded picture as (H, W, 3) uint8.

    Args:
        data: JPEG, PNG, WebP or whatever else Pillow reads.
        name: what to call it in an error.
        size: if given, the shorter side is scaled to it and a square of it is cut from the middle.
    """
    with needs("vision"):
        from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as picture:
            image = picture.convert("RGB")
    # Pillow tells of damage by OSError mostly, by SyntaxError and others in some formats.
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DamagedError(
            f"{name} must be a whole picture, got {len(data):,} bytes that cannot be read ({error}); fetch it again or "
            "take it out."
        ) from error
    if size is not None and image.size != (size, size):
        scale = size / min(image.size)
        width, height = (max(size, round(side * scale)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
        left, top = (width - size) // 2, (height - size) // 2
        image = image.crop((left, top, left + size, top + size))
    return np.asarray(image, dtype=np.uint8)
