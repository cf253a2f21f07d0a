"""CIFAR in every form that people have it, and clear errors for damaged or hostile files."""

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from harmax.data.images import cifar as module
from harmax.data.images import load_images
from harmax.errors import DamagedError
from small_images import draw, encoded, write_tar

CIFARS = {"cifar10": (1, 10), "cifar100": (2, 100)}


BATCHES = {"cifar10": [f"data_batch_{number}.bin" for number in range(1, 6)], "cifar100": ["train.bin"]}


UNPACKED = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}


def cifar_batches(name: str) -> tuple[list[bytes], np.ndarray, np.ndarray]:
    """Write two images a batch, record by record; the coarse label, where there is one, is always 3."""
    label_bytes, classes = CIFARS[name]
    count = 2 * len(BATCHES[name])
    pixels, labels = draw(count, 32, 32, 3), np.arange(count) * 7 % classes
    records = [
        bytes([3] * (label_bytes - 1) + [label]) + b"".join(image[..., channel].tobytes() for channel in range(3))
        for image, label in zip(pixels, labels, strict=True)
    ]
    return [b"".join(records[start : start + 2]) for start in range(0, count, 2)], pixels, labels


@pytest.mark.parametrize("form", ["plain", "unpacked", "archive"])
@pytest.mark.parametrize("name", CIFARS)
def test_cifar_batches_are_read_in_every_form(tmp_path: Path, name: str, form: str) -> None:
    batches, pixels, labels = cifar_batches(name)
    own = tmp_path / name / (UNPACKED[name] if form == "unpacked" else "")
    own.mkdir(parents=True)
    files = dict(zip(BATCHES[name], batches, strict=True))
    if form == "archive":
        write_tar(
            own / f"{name.replace('r', 'r-')}-binary.tar.gz", {f"{UNPACKED[name]}/{n}": d for n, d in files.items()}
        )
    else:
        for file, data in files.items():
            (own / file).write_bytes(data)
    found = load_images(name, "train", tmp_path, complete=False)
    np.testing.assert_array_equal(found.pixels, pixels)
    np.testing.assert_array_equal(found.labels, labels)
    assert len(found.classes) == CIFARS[name][1]


def test_half_an_image_and_wrong_labels_are_refused(tmp_path: Path) -> None:
    own = tmp_path / "cifar100"
    own.mkdir()
    data = cifar_batches("cifar100")[0][0]
    (own / "train.bin").write_bytes(data[:-1])
    with pytest.raises(DamagedError, match=r"train.bin must hold whole images of 3074 bytes, got 6,147"):
        load_images("cifar100", "train", tmp_path, complete=False)
    (own / "train.bin").write_bytes(bytes([0, 200]) + data[2:])
    with pytest.raises(DamagedError, match="labels from 0 to 99, got 200 for image 0"):
        load_images("cifar100", "train", tmp_path, complete=False)


@pytest.mark.parametrize(
    ("name", "there"), [("cifar10", "cifar-10-batches-py/data_batch_1"), ("cifar100", "cifar-100-python/train")]
)
def test_pickled_cifar_is_refused(tmp_path: Path, name: str, there: str) -> None:
    path = tmp_path / name / there
    path.parent.mkdir(parents=True)
    path.write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(ValueError, match=r"cifar-10+-binary.tar.gz, got .*pickle"):
        load_images(name, "train", tmp_path)


def write_packed(path: Path, images: list[bytes], labels: list[int], **changes: np.ndarray) -> None:
    arrays = {
        "blob": np.frombuffer(b"".join(images), np.uint8),
        "off": np.cumsum([0, *map(len, images)]).astype(np.uint32),
        "label": np.array(labels, np.uint8),
        "classes": np.array([f"class {number}" for number in range(10)]),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{**arrays, **changes})  # type: ignore[arg-type]


def test_packed_cifar_joins_its_parts_in_order(tmp_path: Path) -> None:
    pixels = draw(3, 32, 32, 3)
    images = [encoded(image, "WEBP") for image in pixels]
    write_packed(tmp_path / "cifar10" / "train-b.npz", images[2:], [4])
    write_packed(tmp_path / "cifar10" / "train-a.npz", images[:2], [9, 1])
    found = load_images("cifar10", "train", tmp_path, complete=False)
    np.testing.assert_array_equal(found.pixels, pixels)
    assert found.labels.tolist() == [9, 1, 4]
    assert found.classes[9] == "class 9"


def test_damaged_packings_are_refused(tmp_path: Path) -> None:
    path, image = tmp_path / "cifar10" / "train.npz", encoded(draw(32, 32, 3), "WEBP")
    damages: list[tuple[dict[str, np.ndarray], str]] = [
        ({"off": np.array([0, 3], np.uint32)}, "train.npz must have rising offsets"),
        ({"label": np.array([10], np.uint8)}, "labels from 0 to 9, got 10"),
        ({"blob": np.zeros(len(image), np.uint8)}, "image 0 of .*train.npz must be a whole picture"),
    ]
    for changes, message in damages:
        write_packed(path, [image], [0], **changes)
        with pytest.raises(DamagedError, match=message):
            load_images("cifar10", "train", tmp_path, complete=False)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DamagedError, match=r"whole .npz"):
        load_images("cifar10", "train", tmp_path, complete=False)


def objects() -> np.ndarray:
    return np.array([{}, None], dtype=object)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"off": np.array(0, np.uint32)}, "`off` in .*train.npz must have one dimension"),
        ({"off": np.array([0.0, 5.0])}, "`off` in .*train.npz must have .*whole numbers, got float64"),
        ({"off": np.array([5, 0], np.int64)}, "train.npz must have rising offsets"),
        ({"off": np.array([-9, 5], np.int64)}, "train.npz must have rising offsets"),
        ({"label": np.array([0.5])}, "`label` in .*train.npz must have .*whole numbers, got float64"),
        ({"blob": np.zeros((2, 2), np.uint8)}, "`blob` in .*train.npz must have one dimension"),
        ({"blob": np.zeros(5, np.uint16)}, "`blob` in .*train.npz must be uint8, got uint16"),
        ({"classes": np.arange(10)}, "`classes` in .*train.npz must have .*text, got int64"),
        ({"classes": objects()}, "train.npz must be a whole .npz file"),
    ],
)
def test_malformed_packings_are_refused(tmp_path: Path, changes: dict[str, np.ndarray], message: str) -> None:
    write_packed(tmp_path / "cifar10" / "train.npz", [b"12345"], [0], **changes)
    with pytest.raises(DamagedError, match=message):
        load_images("cifar10", "train", tmp_path, complete=False)


def test_other_files_named_npz_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cifar10" / "train.npz"
    path.parent.mkdir()
    array = io.BytesIO()
    np.save(array, np.arange(3))
    with zipfile.ZipFile(tmp_path / "texts.zip", "w") as archive:
        archive.writestr("blob.npy", b"no array")
        archive.writestr("off.npy", array.getvalue()[:70])
    for data in (b"", b"text", array.getvalue(), (tmp_path / "texts.zip").read_bytes()):
        path.write_bytes(data)
        with pytest.raises(DamagedError, match=r"train.npz must"):
            load_images("cifar10", "train", tmp_path, complete=False)


def test_a_pipe_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    os.mkfifo(tmp_path / "cifar10" / "train.npz")
    with pytest.raises(DamagedError, match=r"train.npz must be an ordinary file"):
        load_images("cifar10", "train", tmp_path, complete=False)


def test_files_that_unpack_to_too_much_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 2**20)  # the real limit would take a second to pass
    own = tmp_path / "cifar100"
    own.mkdir()
    write_tar(own / "cifar-100-binary.tar.gz", {"cifar-100-binary/train.bin": bytes(2**20 + 1)})
    with pytest.raises(DamagedError, match=r"train.bin in .*tar.gz must have at most 1,048,576 bytes, got 1,048,577"):
        load_images("cifar100", "train", tmp_path, complete=False)
    with zipfile.ZipFile(own / "train.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("blob.npy", bytes(2**21))
    with pytest.raises(DamagedError, match=r"train.npz must unpack to at most 1,048,576 bytes"):
        load_images("cifar100", "train", tmp_path, complete=False)
