"""idx files are read to the byte, and damaged ones are named."""

import gzip
import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from harmax.data.images import load_images
from harmax.errors import DamagedError
from small_images import draw, idx, write_mnist

PIXELS, LABELS = draw(3, 5, 4), np.array([7, 0, 9], np.uint8)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("name", "last"), [("mnist", "9"), ("fashion_mnist", "Ankle boot")])
def test_idx_files_are_read_plain_and_packed(tmp_path: Path, packed: bool, name: str, last: str) -> None:
    write_mnist(tmp_path, idx(PIXELS), idx(LABELS), packed=packed, name=name)
    found = load_images(name, "train", tmp_path, complete=False)
    np.testing.assert_array_equal(found.pixels, PIXELS)
    assert found.labels.tolist() == [7, 0, 9]
    assert found.labels.dtype == np.int64
    assert found.classes[found.labels[2]] == last


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (idx(PIXELS)[:-1], idx(LABELS), r"train-images-idx3-ubyte must have 76 bytes .* \(3, 5, 4\), got 75"),
        (idx(PIXELS) + b"!", idx(LABELS), "must have 76 bytes .*got more"),
        (idx(LABELS), idx(LABELS), "magic number 00000803 .* got 00000801"),
        (b"", idx(LABELS), "magic number 00000803 .* got nothing"),
        (idx(PIXELS)[:9], idx(LABELS), "16 bytes of header, got 9"),
        (idx(PIXELS), idx(LABELS[:2]), "images-idx3-ubyte must hold as many .*labels-idx1-ubyte.*, got 3 and 2"),
        (idx(PIXELS), idx(np.array([1, 10, 2], np.uint8)), "labels-idx1-ubyte must hold labels from 0 to 9, got 10"),
    ],
)
def test_damaged_idx_files_are_refused(tmp_path: Path, images: bytes, labels: bytes, message: str) -> None:
    write_mnist(tmp_path, images, labels)
    with pytest.raises(DamagedError, match=message):
        load_images("mnist", "train", tmp_path, complete=False)


def test_half_a_gzip_file_is_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path, idx(draw(9, 28, 28)), idx(LABELS), packed=True)
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DamagedError, match=r"train-images-idx3-ubyte.gz must be a whole gzip file"):
        load_images("mnist", "train", tmp_path, complete=False)


def test_a_header_that_promises_too_much_is_refused(tmp_path: Path) -> None:
    huge = struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1)
    write_mnist(tmp_path, huge + bytes(100), idx(LABELS))
    with pytest.raises(DamagedError, match=r"train-images-idx3-ubyte must hold at most .*4294967295"):
        load_images("mnist", "train", tmp_path, complete=False)


def test_a_packed_file_is_not_unpacked_beyond_its_header(tmp_path: Path) -> None:
    write_mnist(tmp_path, idx(PIXELS), idx(LABELS), packed=True)
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(idx(PIXELS))
        for _ in range(64):
            file.write(bytes(2**20))
    tracemalloc.start()
    try:
        with pytest.raises(DamagedError, match=r"train-images-idx3-ubyte.gz must have 76 bytes .*got more"):
            load_images("mnist", "train", tmp_path, complete=False)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    write_mnist(tmp_path, idx(PIXELS), idx(LABELS))
    path = tmp_path / "mnist" / "train-images-idx3-ubyte"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FileNotFoundError, match="train-images-idx3-ubyte"):
        load_images("mnist", "train", tmp_path, complete=False)
