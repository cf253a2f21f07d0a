"""A person's own pictures are read once, divided by content, and written down."""

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from harmax.data.images.picture_list import LIST, open_pictures, read_picture_list
from harmax.errors import DamagedError
from harmax.files import write_json
from own_pictures import COLORS, write_folder, write_picture


def test_each_class_is_divided_and_renaming_changes_nothing(tmp_path: Path) -> None:
    folders = write_folder(tmp_path / "folders")
    opened = open_pictures(folders)
    found = opened.pictures
    assert found.classes == tuple(COLORS)
    assert Counter(one.label for one in found.train) == dict.fromkeys(COLORS, 8)
    assert Counter(one.label for one in found.test) == dict.fromkeys(COLORS, 2)
    assert not {one.file for one in found.train} & {one.file for one in found.test}
    assert (opened.side, opened.pixels) == (20, 520)
    flat = open_pictures(write_folder(tmp_path / "flat", "{name}_{index}.png")).pictures
    assert {one.sha256 for one in flat.test} == {one.sha256 for one in found.test}
    other = open_pictures(folders, seed=1, validation=0.5).pictures
    assert len(other.test) == 15
    assert {one.sha256 for one in found.test} - {one.sha256 for one in other.test}


def test_a_list_comes_back_and_finds_pictures_that_have_moved(tmp_path: Path) -> None:
    found = open_pictures(write_folder(tmp_path / "p")).pictures
    write_json(tmp_path / LIST, found.as_plain())
    assert read_picture_list(tmp_path / LIST) == found
    side = found.open_side("train")
    assert [Path(side.name(place)).relative_to(tmp_path / "p").as_posix() for place in range(len(side))] == [
        one.file for one in found.train
    ]
    assert [found.classes[label] for label in side.labels] == [one.label for one in found.train]
    shutil.move(tmp_path / "p", tmp_path / "q")
    with pytest.raises(DamagedError, match=r"24 of 24 are missing: .* and 19 more; .*--data"):
        found.open_side("train")
    moved = read_picture_list(tmp_path / LIST, tmp_path / "q").open_side("train")
    np.testing.assert_array_equal(moved[0][0], open_pictures(tmp_path / "q").pictures.open_side("train")[0][0])
    write_json(tmp_path / LIST, {"root": "x"})
    with pytest.raises(DamagedError, match="must hold root, classes, train and test"):
        read_picture_list(tmp_path / LIST)


def test_broken_pictures_are_named_and_left_out_only_if_asked(tmp_path: Path) -> None:
    root = write_folder(tmp_path, count=4)
    (root / "red" / "1.png").write_bytes((root / "red" / "1.png").read_bytes()[:90])
    (root / "blue" / "2.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n")
    with pytest.raises(DamagedError, match=r"2 of 12 pictures cannot be read: blue/2.png, red/1.png\. .*--skip-broken"):
        open_pictures(root)
    opened = open_pictures(root, skip_broken=True)
    assert len(opened.pictures.train) + len(opened.pictures.test) == 10
    assert opened.cautions == ["2 of 12 pictures cannot be read: blue/2.png, red/1.png. They are left out."]
    for path in (root / "red").iterdir():
        path.write_bytes(b"nothing")
    with pytest.raises(DamagedError, match="every class must have pictures that can be read, got none for red"):
        open_pictures(root, skip_broken=True)


def test_equal_pictures_stay_on_one_side_and_are_reported(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "p", count=3)
    for copy in range(4):
        shutil.copy(root / "red" / "0.png", root / "red" / f"copy{copy}.png")
    found = open_pictures(root, validation=0.4).pictures
    sides = [{one.sha256 for one in side} for side in (found.train, found.test)]
    assert not sides[0] & sides[1]
    shutil.copy(root / "red" / "0.png", root / "blue" / "odd.png")
    assert any("have two classes (equal files)" in words for words in open_pictures(root).cautions)
    divided = write_folder(tmp_path / "d", "train/{name}/{index}.png", count=2)
    write_folder(divided, "val/{name}/{index}.png", count=1)
    assert any("3 pictures are in train and in test too" in words for words in open_pictures(divided).cautions)


def test_too_few_classes_or_pictures_are_refused(tmp_path: Path) -> None:
    write_picture(tmp_path / "IMG_1.png", COLORS["red"], 1)
    write_picture(tmp_path / "IMG_2.png", COLORS["red"], 2)
    with pytest.raises(ValueError, match="at least 2 classes, got 2 pictures of 'IMG'"):
        open_pictures(tmp_path)
    write_picture(tmp_path / "cat1.png", COLORS["red"], 3)
    with pytest.raises(ValueError, match=r"at least 2 pictures, .* got 1 for cat \(3 pictures, 2 classes"):
        open_pictures(tmp_path)
    shutil.copy(tmp_path / "cat1.png", tmp_path / "cat2.png")
    with pytest.raises(ValueError, match="class 'cat' must have 2 different pictures"):
        open_pictures(tmp_path)
    divided = write_folder(tmp_path / "d", "train/{name}/{index}.png", count=2)
    write_picture(divided / "val" / "red" / "9.png", COLORS["red"], 9)
    with pytest.raises(ValueError, match="got none of blue, green to test; move some"):
        open_pictures(divided)
