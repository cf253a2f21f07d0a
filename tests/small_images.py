"""Small images, files and archives for the tests of image data sets."""

import gzip
import hashlib
import io
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from harmax.data.images import IMAGES
from harmax.data.images.source import RemoteFile

NAMES = [f"{side}-{kind}-ubyte.gz" for side in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]


def small_mnist(root: Path, monkeypatch: pytest.MonkeyPatch, *, published: dict[str, int] | None = None) -> Path:
    """Write 3 images to train on and 2 to test in MNIST's form, and say that these are the published ones."""
    own, files = root / "mnist", []
    own.mkdir(parents=True)
    for name in NAMES:
        count = 3 if name.startswith("train") else 2
        shape = (count, 4, 4) if "images" in name else (count,)
        array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape) % 10
        data = gzip.compress(idx(array))
        (own / name).write_bytes(data)
        files.append(RemoteFile(name, len(data), hashlib.sha256(data).hexdigest()))
    counts = published or {"train": 3, "test": 2}
    monkeypatch.setitem(IMAGES, "mnist", replace(IMAGES["mnist"], files=tuple(files), counts=counts))
    return own


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def encoded(image: np.ndarray, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return buffer.getvalue()


def write_tar(path: Path, files: dict[str, bytes]) -> None:
    mode = "w" if path.suffix == ".tar" else f"w:{path.suffix[1:]}"
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]  # its modes are literals
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def write_mnist(root: Path, images: bytes, labels: bytes, *, packed: bool = False, name: str = "mnist") -> Path:
    (root / name).mkdir()
    for kind, data in (("images-idx3", images), ("labels-idx1", labels)):
        path = root / name / f"train-{kind}-ubyte{'.gz' * packed}"
        path.write_bytes(gzip.compress(data) if packed else data)
    return root
