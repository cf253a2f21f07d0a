"""A data set in MNIST's form that is small and, as far as the registry knows, the published one."""

import gzip
import hashlib
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

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
        data = gzip.compress(struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *shape) + array.tobytes())
        (own / name).write_bytes(data)
        files.append(RemoteFile(name, len(data), hashlib.sha256(data).hexdigest()))
    counts = published or {"train": 3, "test": 2}
    monkeypatch.setitem(IMAGES, "mnist", replace(IMAGES["mnist"], files=tuple(files), counts=counts))
    return own
