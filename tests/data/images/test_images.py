"""Data sets by name: what is missing or only a part is named, and published sets are the published ones."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from harmax.data.folder import find_data
from harmax.data.images import download, has_images, load_images
from harmax.errors import DamagedError
from small_images import draw, idx, write_mnist

PIXELS, LABELS = draw(3, 5, 4), np.array([7, 0, 9], np.uint8)


def test_a_part_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    write_mnist(tmp_path, idx(PIXELS), idx(LABELS))
    with pytest.raises(DamagedError, match=r"60,000 images in its train split, got 3 .* complete=False"):
        load_images("mnist", "train", tmp_path)


def test_missing_files_are_named_with_sizes_and_checksums(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        load_images("mnist", "train", tmp_path)
    for word in (
        str(tmp_path),
        "t10k-labels-idx1-ubyte.gz (4,542 bytes, sha256 f7ae60f9",
        "`harmax data images mnist --folder",
    ):
        assert word in str(error.value)
    write_mnist(tmp_path, idx(PIXELS), idx(LABELS))
    assert not has_images("mnist", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"t10k-images-idx3-ubyte or t10k-images-idx3-ubyte.gz must be in"):
        load_images("mnist", "test", tmp_path)


def test_without_a_data_folder_its_variable_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARMAX_DATA", raising=False)
    monkeypatch.chdir(tmp_path)  # where there is no ../shared/data
    with pytest.raises(FileNotFoundError, match="set HARMAX_DATA"):
        load_images("mnist")
    assert not has_images("mnist")


@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_a_variable_that_names_no_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HARMAX_DATA", str(tmp_path / name))
    for look in (find_data, lambda: has_images("mnist"), lambda: load_images("mnist")):
        with pytest.raises(ValueError, match=rf"`HARMAX_DATA` must name a folder, got '.*/{name}'; correct it"):
            look()
    assert has_images("digits")
    assert not has_images("mnist", tmp_path)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'mnist'"):
        load_images("mnst")
    with pytest.raises(ValueError, match="`split` must be one of train, test, got 'val'"):
        load_images("mnist", "val")
    with pytest.raises(ValueError, match="`name` must be"):
        download("digits", "nowhere")


def real(name: str) -> pytest.MarkDecorator:
    folder = find_data()
    missing = folder is None or not has_images(name, folder)
    return pytest.mark.skipif(missing, reason=f"{name} is not in the data folder")


@real("mnist")
def test_mnist_is_the_published_one() -> None:
    train, test = load_images("mnist", "train"), load_images("mnist", "test")
    assert np.bincount(train.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(test.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    digest = hashlib.sha256(train.pixels[0].tobytes()).hexdigest()
    assert digest == "23ceaef5eb61f0e70d64ac18fdf0f60df3d5971cf30bbadac7b6ebf07f782d2c"
    assert round(float(train.pixels.mean(dtype=np.float64) / 255), 4) == 0.1307


@real("cifar10")
def test_the_packed_cifar_10_test_set_is_whole() -> None:
    found = load_images("cifar10", "test")
    assert found.pixels.shape == (10000, 32, 32, 3)
    assert np.bincount(found.labels).tolist() == [1000] * 10
    assert found.classes[0] == "airplane"
    assert (
        hashlib.sha256(found.pixels[0].tobytes()).hexdigest()
        == "5c55cb6e40aa37b458b2e0de4a3adee984c59704a0e731175d52f1860615c7ad"
    )


@real("imagenet_sample64")
def test_the_imagenet_sample_has_one_picture_a_class() -> None:
    found = load_images("imagenet_sample64", "train")
    assert found.pixels.shape == (1000, 64, 64, 3)
    np.testing.assert_array_equal(found.labels, np.arange(1000))
    assert found.classes[0] == "n01440764"
    assert (
        hashlib.sha256(found.pixels[0].tobytes()).hexdigest()
        == "b0df5f6eaaa64a2e52fa80e08885c3905533e2830489cba87fd9f1c47286acc0"
    )
