"""Where the classes of a person's own pictures come from, and what is refused."""

from pathlib import Path

import pytest

from harmax.data.images.picture_files import find_pictures


def touch(root: Path, *files: str) -> Path:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root


def labels(root: Path, table: Path | None = None) -> dict[str, tuple[str, str | None]]:
    return {one.file: (one.label, one.side) for one in find_pictures(root, table).pictures}


def test_class_folders_with_deeper_ones_and_files_that_are_no_pictures(tmp_path: Path) -> None:
    touch(tmp_path, "cat/a.JPG", "cat/old/b.png", "dog/c.webp", "dog/._c.webp", ".thumbs/x.png", "dog/d.heic", "n.txt")
    assert labels(tmp_path) == {"cat/a.JPG": ("cat", None), "cat/old/b.png": ("cat", None), "dog/c.webp": ("dog", None)}
    (caution,) = find_pictures(tmp_path).cautions
    assert "1 .heic" in caution
    assert "convert .heic" in caution


def test_a_flat_folder_has_its_classes_in_the_names(tmp_path: Path) -> None:
    touch(tmp_path, "cat_001.jpg", "cat (2).jpg", "cat3.png", "cat.4.jpg", "great_dane-07b.png")
    assert {one: label for one, (label, _) in labels(tmp_path).items()} == {
        "cat_001.jpg": "cat",
        "cat (2).jpg": "cat",
        "cat3.png": "cat",
        "cat.4.jpg": "cat",
        "great_dane-07b.png": "great_dane",
    }
    touch(tmp_path, "007.png")
    with pytest.raises(ValueError, match=r"must begin with its class, as in cat_001.jpg, got '007.png'"):
        find_pictures(tmp_path)


@pytest.mark.parametrize("other", ["val", "test", "validation"])
def test_two_sides_are_kept_as_they_are(tmp_path: Path, other: str) -> None:
    touch(tmp_path, "train/cat/a.png", "train/dog/b.png", f"{other}/cat/c.png", f"{other}/dog/d.png", "more/e.png")
    assert labels(tmp_path) == {
        "train/cat/a.png": ("cat", "train"),
        "train/dog/b.png": ("dog", "train"),
        f"{other}/cat/c.png": ("cat", "test"),
        f"{other}/dog/d.png": ("dog", "test"),
    }
    assert "1 pictures outside" in find_pictures(tmp_path).cautions[0]


def test_a_training_side_alone_is_divided_later(tmp_path: Path) -> None:
    touch(tmp_path, "train/cat/a.png", "train/dog/b.png")
    assert {side for _, side in labels(tmp_path).values()} == {None}


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_table_names_file_label_and_split(tmp_path: Path, mark: str) -> None:
    touch(tmp_path / "p", "x/1.png", "2.png", "3.png")
    table = tmp_path / "labels.csv"
    lines = [["Filename", "note", "Class", "split"], ["x\\1.png", "", "cat", "train"], ["2.png", "", "dog", "VAL"]]
    table.write_text("\ufeff" + "\r\n".join(mark.join(line) for line in lines) + "\r\n\r\n", encoding="utf-8")
    assert labels(tmp_path / "p", table) == {"x/1.png": ("cat", "train"), "2.png": ("dog", "test")}
    assert find_pictures(tmp_path / "p", table).cautions == [f"1 pictures that {table} does not list are ignored."]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must name a column file or filename .* got nothing"),
        ("picture,label\n1.png,cat\n", "must name a column file or .* got picture, label"),
        ("file,label\n1.png,\n", r"line 2: file and label must not be empty"),
        ("file,label\n1.png,cat,dog\n", r"line 2: must have 2 columns as the first line, got 3"),
        ("file,label\n1.png,cat\n1.png,dog\n", r"line 3: '1.png' stands in line 2 already"),
        ("file,label\n9.png,cat\n", r"1 of 1 do not: 9.png"),
        ("file,label\n../1.png,cat\n", r"line 2: the file must lie below"),
        ("file,label,split\n1.png,cat,later\n", r"line 2: the split must be train or val, got 'later'"),
        ("file,label,split\n1.png,cat,train\n2.png,cat,\n", "must name the split in all lines or in none"),
        ("file,label\n", "must have a line per picture, got none"),
    ],
)
def test_a_table_with_a_fault_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    touch(tmp_path / "p", "1.png", "2.png")
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        find_pictures(tmp_path / "p", tmp_path / "labels.csv")


def test_folders_without_pictures_or_with_both_forms_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be a folder of pictures, got .*nowhere"):
        find_pictures(tmp_path / "nowhere")
    touch(tmp_path / "p", "a.txt", "b.txt")
    with pytest.raises(ValueError, match=r"must hold pictures .* got none \(2 .txt\)"):
        find_pictures(tmp_path / "p")
    touch(tmp_path / "p", "cat/1.png", "dog1.png")
    with pytest.raises(ValueError, match=r"1 pictures in sub-folders and 1 beside them \(dog1.png"):
        find_pictures(tmp_path / "p")
    with pytest.raises(ValueError, match="`labels` must be a CSV file"):
        find_pictures(tmp_path / "p", tmp_path / "none.csv")
