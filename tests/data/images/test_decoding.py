"""Pictures become arrays; what is no picture, or would start a program, is refused."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from harmax.data.images import class_folder, decoding
from harmax.data.images.decoding import FORMATS, decode_image
from harmax.errors import DamagedError
from small_images import draw, encoded

EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 8 8
%%EndComments
(harmax-was-here) (w) file closefile
showpage
%%EOF
"""


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_read(kind: str) -> None:
    image = draw(6, 5, 3)
    found = decode_image(encoded(image, kind), "picture")
    assert (found.shape, found.dtype) == ((6, 5, 3), np.uint8)
    if kind not in ("JPEG", "GIF"):
        np.testing.assert_array_equal(found, image)


def test_a_postscript_file_named_png_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow hands EPS to Ghostscript; a program of that name on the path shows whether it would."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\n")
    (programs / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    (tmp_path / "set" / "owl").mkdir(parents=True)
    (tmp_path / "set" / "owl" / "a.png").write_bytes(EPS)
    with pytest.raises(DamagedError, match=r"owl/a.png must be a whole picture .*PNG.*unknown format"):
        class_folder(tmp_path / "set")[0]
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("kind", FORMATS)
def test_half_a_picture_is_named(kind: str) -> None:
    whole = encoded(draw(40, 40, 3), kind)
    for size in (0, 1, 9, 30, len(whole) // 2):
        with pytest.raises(DamagedError, match=r"half.png must be a whole picture"):
            decode_image(whole[:size], "half.png")


def test_a_picture_is_scaled_and_cut_to_a_square() -> None:
    buffer = io.BytesIO()
    Image.fromarray(draw(10, 30, 3)).save(buffer, "PNG")
    assert decode_image(buffer.getvalue(), "picture", size=5).shape == (5, 5, 3)


def test_a_picture_of_too_many_pixels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MOST_PIXELS", 100)
    assert decode_image(encoded(draw(10, 10, 3)), "a.png").shape == (10, 10, 3)
    with pytest.raises(DamagedError, match=r"a.png must have at most 100 pixels, got 11 x 10; shrink or remove it"):
        decode_image(encoded(draw(10, 11, 3)), "a.png")


def test_a_picture_stands_upright_as_its_camera_noted() -> None:
    image, exif, buffer = Image.fromarray(draw(6, 4, 3)), Image.Exif(), io.BytesIO()
    exif[0x0112] = 6  # turn by 90 degrees to see it upright
    image.save(buffer, "PNG", exif=exif)
    np.testing.assert_array_equal(decode_image(buffer.getvalue(), "a"), np.rot90(np.asarray(image), -1))


def test_gray_values_of_16_bits_keep_their_order() -> None:
    levels = np.array([[0, 255, 256, 40000, 65535]], np.uint16)
    found = decode_image(encoded(levels), "a")
    np.testing.assert_array_equal(found, np.repeat(levels[..., None] // 256, 3, axis=2))
