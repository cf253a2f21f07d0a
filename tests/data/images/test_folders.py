"""Class folders: sorted, decoded on demand, and damage is named."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from harmax.data.images import class_folder
from harmax.data.images import folders as module
from harmax.errors import EXTRAS, DamagedError, MissingExtraError
from small_images import draw, encoded, write_tar

OWLS, CATS = draw(2, 6, 6, 3, seed=1), draw(1, 6, 6, 3, seed=2)


TREE = {
    "owl/b.png": encoded(OWLS[1]),
    "owl/a.png": encoded(OWLS[0]),
    "cat/x.png": encoded(CATS[0]),
    "owl/notes.txt": b"-",
}


def write_tree(root: Path, files: dict[str, bytes], form: str) -> Path:
    path = root / form
    if form == "folder":
        for name, data in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
    else:
        root.mkdir(exist_ok=True)
        write_tar(path, files)
    return path


@pytest.mark.parametrize("form", ["folder", "set.tar", "set.tar.xz", "set.tar.gz"])
def test_class_folders_are_sorted_and_decoded(tmp_path: Path, form: str) -> None:
    files = TREE if form == "folder" else {f"train/{name}": data for name, data in TREE.items()}
    found = class_folder(write_tree(tmp_path, files, form))
    assert found.classes == ("cat", "owl")
    assert found.labels.tolist() == [0, 1, 1]
    assert len(found) == 3
    image, label = found[1]
    np.testing.assert_array_equal(image, OWLS[0])
    assert label == 1
    assert "b.png" in found.name(2)
    np.testing.assert_array_equal(found.to_images().pixels, np.concatenate([CATS, OWLS]))


@pytest.mark.parametrize("form", ["folder", "set.tar", "set.tar.xz"])
def test_a_digest_is_of_names_and_sizes_wherever_the_pictures_lie(tmp_path: Path, form: str) -> None:
    whole = class_folder(write_tree(tmp_path / "one", TREE, form)).digest()
    turned = dict(reversed(TREE.items()))
    assert class_folder(write_tree(tmp_path / "two", turned, form)).digest() == whole
    assert class_folder(write_tree(tmp_path / "plain", TREE, "folder")).digest() == whole
    others = {
        "larger": {**TREE, "owl/b.png": TREE["owl/b.png"] + b"!"},
        "renamed": {name.replace("b.png", "c.png"): data for name, data in TREE.items()},
        "relabelled": {name.replace("owl/a", "cat/y"): data for name, data in TREE.items()},
        "reclassed": {name.replace("owl", "emu"): data for name, data in TREE.items()},
    }
    found = {name: class_folder(write_tree(tmp_path / name, files, form)).digest() for name, files in others.items()}
    assert len({whole, *found.values()}) == 5


def test_pictures_are_decoded_when_they_are_asked_for_and_damage_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "owl"
    folder.mkdir()
    (folder / "a.png").write_bytes(encoded(OWLS[0]))
    (folder / "b.png").write_bytes(encoded(draw(64, 64, 3))[:4000])
    (folder / "c.jpg").write_bytes(b"no picture at all")
    found = class_folder(tmp_path)
    np.testing.assert_array_equal(found[0][0], OWLS[0])
    with pytest.raises(DamagedError, match=r"owl/b.png must be a whole picture"):
        found[1]
    with pytest.raises(DamagedError, match=r"owl/c.jpg must be a whole picture .*got 17 bytes"):
        found[2]


def test_pictures_of_several_sizes_need_a_size(tmp_path: Path) -> None:
    (tmp_path / "owl").mkdir()
    striped = np.zeros((8, 24, 3), np.uint8)
    striped[:, 8:16] = 200  # the middle square
    (tmp_path / "owl" / "a.png").write_bytes(encoded(striped))
    (tmp_path / "owl" / "b.png").write_bytes(encoded(OWLS[0]))
    with pytest.raises(ValueError, match=r"\(8, 24\) and then \(6, 6\) for .*b.png; pass `size`"):
        class_folder(tmp_path).to_images()
    pixels = class_folder(tmp_path, size=8).to_images().pixels
    assert pixels.shape == (2, 8, 8, 3)
    assert (pixels[0] == 200).all()


def test_folders_without_classes_and_broken_archives_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(OWLS[0]))
    with pytest.raises(ValueError, match="one sub-folder per class, got none"):
        class_folder(tmp_path)
    with pytest.raises(ValueError, match="`path` must be a folder or one of"):
        class_folder(tmp_path / "a.png")
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        class_folder(tmp_path / "nowhere")
    write_tar(tmp_path / "set.tar.xz", TREE)
    (tmp_path / "set.tar.xz").write_bytes((tmp_path / "set.tar.xz").read_bytes()[:300])
    with pytest.raises(DamagedError, match=r"set.tar.xz must be a whole archive"):
        class_folder(tmp_path / "set.tar.xz")


def test_without_pillow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owl").mkdir()
    (tmp_path / "owl" / "a.png").write_bytes(encoded(OWLS[0]))
    monkeypatch.setitem(EXTRAS, "vision", ("PIL",))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"harmax\[vision\]"):
        class_folder(tmp_path)[0]


def test_a_pipe_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    path = write_tree(tmp_path, TREE, "folder")
    os.mkfifo(path / "owl" / "c.png")
    with pytest.raises(DamagedError, match=r"owl/c.png must be an ordinary file"):
        class_folder(path)


def test_a_picture_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    files = {"owl/a.png": bytes(1001)}
    with pytest.raises(DamagedError, match=r"owl/a.png in .*set.tar.xz must have at most 1,000 bytes, got 1,001"):
        class_folder(write_tree(tmp_path, files, "set.tar.xz"))


def test_a_compressed_archive_of_many_empty_pictures_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    files = {f"owl/{number}.png": bytes(1000) for number in range(1000)}
    with pytest.raises(DamagedError, match=r"set.tar.xz must unpack to at most [\d,]+ bytes, got more; unpack it"):
        class_folder(write_tree(tmp_path, files, "set.tar.xz"))


@pytest.mark.parametrize("form", ["folder", "set.tar"])
def test_a_picture_file_that_would_fill_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    place = write_tree(tmp_path, {"owl/a.png": bytes(1001)}, form)
    with pytest.raises(DamagedError, match=r"a.png.* must have at most 1,000 bytes, got 1,001"):
        class_folder(place)[0]


def test_zeros_without_end_are_no_archive(tmp_path: Path) -> None:
    path = tmp_path / "set.tar.xz"
    path.touch()
    os.truncate(path, 100 * 2**30)  # which occupies nothing on the disk
    with pytest.raises(DamagedError, match=r"set.tar.xz must be a whole archive, got no xz file"):
        class_folder(path)
