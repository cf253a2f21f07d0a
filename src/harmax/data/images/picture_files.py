"""The pictures of a person's own folder and their classes: from sub-folders, from file names, or from a table.

class folders   cat/1.jpg, dog/1.jpg             the class is the first sub-folder
two sides       train/cat/1.jpg, val/cat/2.jpg   the same below train/ and val/ (or test/)
a flat folder   cat_001.jpg, cat (2).jpg         the class is the name before its first digit
a table         labels.csv                       columns file and label, and if you like split (train or val)
"""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from harmax.data.images.folders import PICTURES
from harmax.errors import DamagedError
from harmax.files import check_ordinary

TRAIN, TEST = "train", "test"
SIDES = {"train": TRAIN, "val": TEST, "valid": TEST, "validation": TEST, "test": TEST}
"""Names of folders and of splits in a table, and what they mean."""
FILE_COLUMNS = ("file", "filename", "file_name", "image", "path")
LABEL_COLUMNS = ("label", "class", "target")
FEW = 5
MOST_TABLE = 2**28


class PictureFile(NamedTuple):
    """A picture with its class."""

    file: str
    """Its path below the folder, with slashes."""
    label: str
    side: str | None
    """`TRAIN` or `TEST`, if the folder or the table decides; else None."""


class Found(NamedTuple):
    """What a folder holds."""

    pictures: list[PictureFile]
    how: str
    """Where the classes come from, in words."""
    cautions: list[str]
    """What was ignored, one sentence each."""


def find_pictures(root: Path, labels: Path | None = None) -> Found:
    """Return the pictures of a folder and their classes. No picture is read.

    Args:
        root: the folder.
        labels: a table (CSV) with a column for the file and one for the label; None: folders or names decide.
    """
    if not root.is_dir():
        raise ValueError(f"`data` must be a folder of pictures, got {str(root)!r}, which is none; check its name.")
    if labels is not None:
        return _from_table(root, labels)
    files, others = _list_files(root)
    cautions = [_ignored(others)] if others else []
    if not files:
        raise ValueError(
            f"{root} must hold pictures ({', '.join(sorted(PICTURES))}), got none{_besides(others)}; name the folder "
            "that holds the pictures or the class folders."
        )
    tops = {PurePosixPath(file).parts[0] for file in files if "/" in file}
    if "train" in tops:
        return _from_sides(files, tops, cautions)
    return Found(*_labelled(files, None, root.name or str(root)), cautions)


def _list_files(root: Path) -> tuple[list[str], Counter[str]]:
    """Return the pictures below a folder, sorted, and how many other files there are per ending."""
    files, others = [], Counter[str]()
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        if path.is_dir() or any(part.startswith(".") for part in inside.parts):
            continue  # .DS_Store and ._1.jpg are no pictures
        if path.suffix.lower() in PICTURES:
            files.append(check_ordinary(path).relative_to(root).as_posix())
        else:
            others[path.suffix.lower() or "without ending"] += 1
    return files, others


def _ignored(others: Counter[str]) -> str:
    return f"other files are ignored{_besides(others)}."


def _besides(others: Counter[str]) -> str:
    if not others:
        return ""
    words = ", ".join(f"{count} {ending}" for ending, count in others.most_common(FEW))
    return f" ({words})" + ("; convert .heic to .jpg first" if ".heic" in others else "")


def _from_sides(files: list[str], tops: set[str], cautions: list[str]) -> Found:
    sides = ["train", *[name for name in SIDES if name != "train" and name in tops][:1]]
    found: list[PictureFile] = []
    hows = []
    for side in sides:
        own = [file for file in files if file.startswith(f"{side}/")]
        decided = SIDES[side] if len(sides) > 1 else None
        pictures, how = _labelled(own, decided, side, skip=1)
        found += pictures
        hows.append(how)
    unused = sum(not file.startswith(tuple(f"{side}/" for side in sides)) for file in files)
    if unused:
        cautions = [*cautions, f"{unused} pictures outside {' and '.join(f'{side}/' for side in sides)} are ignored."]
    return Found(found, f"{hows[0]} below {' and '.join(f'{side}/' for side in sides)}", cautions)


def _labelled(files: list[str], side: str | None, name: str, *, skip: int = 0) -> tuple[list[PictureFile], str]:
    """Return pictures with classes from the sub-folder below the first `skip` ones, or from file names."""
    inside = {file: PurePosixPath(file).parts[skip:] for file in files}
    loose = [file for file in files if len(inside[file]) == 1]
    if not loose:
        return [PictureFile(file, inside[file][0], side) for file in files], "sub-folders"
    if len(loose) < len(files):
        raise ValueError(
            f"{name} must hold either class folders or pictures, got {len(files) - len(loose)} pictures in sub-folders "
            f"and {len(loose)} beside them ({', '.join(loose[:2])}, ...); move them into class folders, or give "
            "--labels."
        )
    return [PictureFile(file, _class_in(file), side) for file in files], "file names, up to the first digit"


def _class_in(file: str) -> str:
    """Return the class that a file name begins with.

    >>> _class_in("great_dane-07b.jpg"), _class_in("cat (2).png")
    ('great_dane', 'cat')
    """
    stem = PurePosixPath(file).stem
    found = re.match(r"\D*", stem)
    name = (found.group() if found else "").rstrip(" _.-([#")
    if not name:
        raise ValueError(
            f"the name of a picture in a flat folder must begin with its class, as in cat_001.jpg, got {file!r}; "
            "rename it, move it into a class folder, or give --labels."
        )
    return name


def _from_table(root: Path, labels: Path) -> Found:
    rows, absent = [], []
    seen: dict[str, int] = {}
    for line, file, label, split in _read_table(labels):
        path = PurePosixPath(file)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{labels}, line {line}: the file must lie below {root}, got {file!r}; correct the line.")
        if not label or not file:
            raise ValueError(f"{labels}, line {line}: file and label must not be empty; fill them in or drop the line.")
        if split and split.lower() not in SIDES:
            raise ValueError(f"{labels}, line {line}: the split must be train or val, got {split!r}; correct the line.")
        if file in seen:
            raise ValueError(f"{labels}, line {line}: {file!r} stands in line {seen[file]} already; drop one of them.")
        seen[file] = line
        if (root / path).is_file():
            rows.append(PictureFile(path.as_posix(), label, SIDES[split.lower()] if split else None))
        else:
            absent.append(file)
    if absent:
        raise ValueError(
            f"the files of {labels} must lie in {root}, but {len(absent)} of {len(seen)} do not: "
            f"{', '.join(absent[:FEW])}; correct their names or drop their lines."
        )
    if not rows:
        raise ValueError(f"{labels} must have a line per picture, got none; write file,label and then the pictures.")
    if len({row.side is None for row in rows}) > 1:
        raise ValueError(f"{labels} must name the split in all lines or in none; fill in the others.")
    unlisted = len({*_list_files(root)[0]} - seen.keys())
    cautions = [f"{unlisted} pictures that {labels} does not list are ignored."] if unlisted else []
    return Found(rows, str(labels), cautions)


def _read_table(path: Path) -> Iterator[tuple[int, str, str, str]]:
    """Yield line number, file, label and split of every row; the split is empty without such a column."""
    if not path.is_file():
        raise ValueError(f"`labels` must be a CSV file, got {str(path)!r}, which is none; check its name.")
    if path.stat().st_size > MOST_TABLE:
        raise DamagedError(f"{path} must have at most {MOST_TABLE:,} bytes, got {path.stat().st_size:,}.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DamagedError(f"{path} must be UTF-8 text, got {error}; save it as CSV (UTF-8).") from error
    lines = text.splitlines()
    header = lines[0] if lines else ""
    mark = max(",;\t", key=header.count)  # spreadsheets of some countries write semicolons
    reader = csv.reader(lines, delimiter=mark)
    names = [name.strip().lower() for name in next(reader, [])]
    file, label = _column(names, FILE_COLUMNS, path), _column(names, LABEL_COLUMNS, path)
    split = names.index("split") if "split" in names else None
    for row in reader:
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != len(names):
            raise ValueError(
                f"{path}, line {reader.line_num}: must have {len(names)} columns as the first line, got {len(row)}; "
                "correct the line."
            )
        cells = [cell.strip() for cell in row]
        yield reader.line_num, cells[file].replace("\\", "/"), cells[label], "" if split is None else cells[split]


def _column(names: list[str], known: Iterable[str], path: Path) -> int:
    for name in known:
        if name in names:
            return names.index(name)
    raise ValueError(
        f"the first line of {path} must name a column {' or '.join(known)}, got {', '.join(names) or 'nothing'}; write "
        "file,label there."
    )
