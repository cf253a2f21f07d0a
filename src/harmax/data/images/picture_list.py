"""Which pictures of a folder are for training and which for testing: checked, split and written down.

A list is stored as `pictures.json` beside a trained model, with the fields of `PictureList.as_plain`:

    root      the folder of the pictures
    classes   the names of the classes, sorted
    train     one object per picture: file (path below root), label (name of its class), sha256 (of the file)
    test      the same; none of these pictures took part in training
"""

import hashlib
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from harmax.data.images.decoding import decode_image
from harmax.data.images.folders import ClassFolder
from harmax.data.images.picture_files import TEST, TRAIN, PictureFile, find_pictures
from harmax.environment import cores
from harmax.errors import DamagedError
from harmax.files import read_json, read_whole

LIST = "pictures.json"
FEW = 5  # names in a message


class Listed(NamedTuple):
    """A picture of a list."""

    file: str
    """Its path below the folder."""
    label: str
    """The name of its class."""
    sha256: str
    """The checksum of the file."""


@dataclass(frozen=True)
class PictureList:
    """The pictures of a folder, divided into a training and a test side. Each side is sorted by class and name."""

    root: Path
    classes: tuple[str, ...]
    train: tuple[Listed, ...]
    test: tuple[Listed, ...]

    def open_side(self, side: str) -> ClassFolder:
        """Return the pictures of "train" or "test", in the order of the list."""
        own = self.train if side == TRAIN else self.test
        lost = [one.file for one in own if not (self.root / one.file).is_file()]
        if lost:
            raise DamagedError(
                f"{self.root} must hold the pictures of {LIST}, but {len(lost)} of {len(own)} are missing: "
                f"{name_some(lost)}; put them back, or name the folder they are in with --data."
            )
        return ClassFolder.of_files(self.root, {one.file: one.label for one in own})

    def as_plain(self) -> dict[str, Any]:
        """Return the list as plain values, as they are stored."""
        sides = {name: [one._asdict() for one in own] for name, own in ((TRAIN, self.train), (TEST, self.test))}
        return {"root": str(self.root.resolve()), "classes": list(self.classes), **sides}


def read_picture_list(path: Path, root: Path | None = None) -> PictureList:
    """Read a stored list.

    Args:
        path: of the file.
        root: where the pictures are now; None: where they were.
    """
    stored = read_json(path)
    try:
        sides = [
            tuple(Listed(str(one["file"]), str(one["label"]), str(one["sha256"])) for one in stored[name])
            for name in (TRAIN, TEST)
        ]
        there = root or Path(stored["root"])
        classes = tuple(map(str, stored["classes"]))
    except (KeyError, TypeError) as error:
        raise DamagedError(f"{path} must hold root, classes, train and test, got {error!r}; train again.") from error
    for one in (*sides[0], *sides[1]):
        if PurePosixPath(one.file).is_absolute() or ".." in PurePosixPath(one.file).parts or one.label not in classes:
            raise DamagedError(
                f"{path} must list pictures below one folder with classes it names, got {one.file!r} of {one.label!r}; "
                "train again."
            )
    return PictureList(there, classes, *sides)


class Opened(NamedTuple):
    """A folder of pictures that is ready for training."""

    pictures: PictureList
    how: str
    """How classes and sides were found, in words."""
    cautions: list[str]
    """What is probably not intended, one sentence each."""
    side: int
    """The median of the pictures' shorter sides, in pixels."""
    pixels: float
    """The mean number of pixels."""


def open_pictures(
    root: Path,
    *,
    labels: Path | None = None,
    validation: float = 0.2,
    seed: int = 0,
    skip_broken: bool = False,
    tell: Callable[[int, int], object] = lambda done, of: None,
) -> Opened:
    """Read every picture of a folder once, and divide the pictures into a training and a test side.

    The division is by checksum, class by class. It stays the same when files are renamed, and equal pictures are on the
    same side.

    Args:
        root: the folder; `find_pictures` says what it may look like.
        labels: a table with the classes.
        validation: share of each class to test on, if neither folders nor the table decide.
        seed: of the division.
        skip_broken: leave out pictures that cannot be read. Otherwise they are an error.
        tell: is called with the number of pictures read and of all.
    """
    found = find_pictures(root, labels)
    _check_classes([one.label for one in found.pictures], found.how, root)
    read, broken = _read_all(root, found.pictures, tell)
    cautions = list(found.cautions)
    if broken:
        first = next(iter(broken.values()))
        words = f"{len(broken)} of {len(found.pictures)} pictures cannot be read: {name_some(broken)}."
        if not skip_broken:
            raise DamagedError(f"{words} {first} Or add --skip-broken to train without them.")
        cautions.append(f"{words} They are left out.")
    kept = [one for one in found.pictures if one.file in read]
    gone = {one.label for one in found.pictures} - {one.label for one in kept}
    if gone:
        raise DamagedError(
            f"every class must have pictures that can be read, got none for {name_some(sorted(gone))}; replace the "
            "broken files."
        )
    sums = {file: one.sha256 for file, one in read.items()}
    cautions += _twins(kept, sums)
    sides, how = _divide(kept, sums, validation, seed, root)
    classes = tuple(sorted({one.label for one in kept}))
    number = {name: index for index, name in enumerate(classes)}

    def listed(side: str) -> tuple[Listed, ...]:
        own = [Listed(one.file, one.label, sums[one.file]) for one in kept if sides[one.file] == side]
        return tuple(sorted(own, key=lambda one: (number[one.label], str(root / one.file))))

    shorter = sorted(min(one.shape) for one in read.values())
    pixels = sum(one.shape[0] * one.shape[1] for one in read.values()) / len(read)
    pictures = PictureList(root, classes, listed(TRAIN), listed(TEST))
    return Opened(pictures, f"classes from {found.how}; {how}", cautions, shorter[len(shorter) // 2], pixels)


def name_some(names: Iterable[str]) -> str:
    """Name a few of many.

    >>> name_some("abcdefg")
    'a, b, c, d, e and 2 more'
    """
    every = list(names)
    rest = f" and {len(every) - FEW} more" if len(every) > FEW else ""
    return ", ".join(every[:FEW]) + rest


class _Read(NamedTuple):
    sha256: str
    shape: tuple[int, int]


def _read_all(
    root: Path, pictures: Sequence[PictureFile], tell: Callable[[int, int], object]
) -> tuple[dict[str, _Read], dict[str, str]]:
    """Return checksum and size of the pictures that can be read, and what is wrong with the others, by file."""

    def read(one: PictureFile) -> _Read | str:
        path = root / one.file
        try:
            data = read_whole(path)
            height, width, _ = decode_image(data, path).shape
        except (DamagedError, OSError) as error:
            return str(error)
        return _Read(hashlib.sha256(data).hexdigest(), (height, width))

    good: dict[str, _Read] = {}
    broken: dict[str, str] = {}
    with warnings.catch_warnings(), ThreadPoolExecutor(cores()) as pool:
        warnings.simplefilter("ignore")  # of Pillow, about odd files that it can read
        for place, (one, result) in enumerate(zip(pictures, pool.map(read, pictures), strict=True)):
            tell(place, len(pictures))
            if isinstance(result, str):
                broken[one.file] = result
            else:
                good[one.file] = result
    return good, broken


def _check_classes(labels: list[str], how: str, root: Path) -> None:
    counts = Counter(labels)
    if len(counts) < 2:
        raise ValueError(
            f"{root} must hold pictures of at least 2 classes, got {len(labels)} pictures of {next(iter(counts))!r} "
            f"(classes from {how}); put each class into a sub-folder, name the files cat_001.jpg, or give --labels."
        )
    single = sorted(name for name, count in counts.items() if count == 1)
    if single:
        raise ValueError(
            f"every class must have at least 2 pictures, one to train on and one to test, got 1 for "
            f"{name_some(single)} ({len(labels)} pictures, {len(counts)} classes from {how}); add pictures or remove "
            "these classes."
        )


def _twins(pictures: Sequence[PictureFile], sums: dict[str, str]) -> list[str]:
    """Return cautions about equal pictures in two classes or on both sides."""
    same: dict[str, list[PictureFile]] = defaultdict(list)
    for one in pictures:
        same[sums[one.file]].append(one)
    found = []
    for field, words in (("label", "have two classes"), ("side", "are in train and in test too")):
        odd = [own[0].file for own in same.values() if len({getattr(one, field) for one in own}) > 1]
        if odd:
            found.append(f"{len(odd)} pictures {words} (equal files), for example {name_some(odd)}.")
    return found


def _divide(
    pictures: Sequence[PictureFile], sums: dict[str, str], validation: float, seed: int, root: Path
) -> tuple[dict[str, str], str]:
    """Return the side of every file, and how it was decided."""
    if any(one.side is not None for one in pictures):
        sides = {one.file: one.side or TRAIN for one in pictures}
        every = {one.label for one in pictures}
        for side in (TRAIN, TEST):
            lacking = every - {one.label for one in pictures if sides[one.file] == side}
            if lacking:
                raise ValueError(
                    f"{root} must have pictures of every class to train on and to test, got none of "
                    f"{name_some(sorted(lacking))} to {'train on' if side == TRAIN else 'test'}; move some."
                )
        return sides, "train and test as they are divided there"
    if not 0 < validation < 1:
        raise ValueError(f"`validation` must be a share between 0 and 1, got {validation}; 0.2 is usual.")
    sides = {}
    for label in {one.label for one in pictures}:
        groups: dict[str, list[str]] = defaultdict(list)
        for one in pictures:
            if one.label == label:
                groups[sums[one.file]].append(one.file)
        if len(groups) < 2:
            raise ValueError(
                f"class {label!r} must have 2 different pictures, one to train on and one to test, got equal files; "
                "add others."
            )
        order = sorted(groups, key=lambda content: hashlib.sha256(f"{seed}:{content}".encode()).digest())
        wanted = max(1, round(validation * sum(map(len, groups.values()))))
        tested = 0
        for place, content in enumerate(order):
            test = tested < wanted and place < len(order) - 1
            tested += len(groups[content]) if test else 0
            sides |= dict.fromkeys(groups[content], TEST if test else TRAIN)
    return sides, f"{validation:.0%} of each class held out to test, by checksum (--validation, --seed)"
