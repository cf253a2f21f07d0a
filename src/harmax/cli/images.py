"""`harmax data images`: fetch, list and check image data sets."""

import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from harmax.cli.live_line import LiveLine
from harmax.cli.usage import UsageError, check_folder, checking_usage, print_json
from harmax.data.folder import find_data
from harmax.data.images import IMAGES, ImageCheck, check_images, download, has_images
from harmax.data.images.download import list_files
from harmax.errors import unknown

UNREADABLE = ("missing", "incomplete")
WIDTH = max(map(len, IMAGES))


@dataclass(frozen=True)
class ImageFiles:
    """Fetch image data sets and check them, or list those that are there. No file is fetched twice.

    harmax data images mnist fashion_mnist --folder data

    harmax data images --list

    harmax data images --check cifar10
    """

    names: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[NAME ...]")] = ()
    """Data sets to fetch: mnist, fashion_mnist, cifar10, cifar100. `--list` and `--check` know more; default: all."""
    folder: Path | None = None
    """Data folder, with one sub-folder per data set. Default: HARMAX_DATA, else ../shared/data."""
    list: bool = False
    """Fetch nothing; list the data sets that are there. With NAME also list missing files, checksums and addresses."""
    check: bool = False
    """Fetch nothing; compare every file with its checksum, and read every image."""
    json: bool = False
    """Print one JSON array with one object per data set."""

    def __call__(self) -> int:
        """Fetch, list or check the data sets."""
        with checking_usage():
            self._check_words()
        if not (self.list or self.check):
            return self._fetch()
        found = []
        for name in self.names or IMAGES:
            found.append(check_images(name, self.folder, read=self.check))
            if not self.json:
                print(describe(found[-1]), flush=True)
                for problem in found[-1].problems:
                    print(f"  {problem}")
                if self.list and self.names and found[-1].wanted:
                    print(wanted_files(found[-1]))
        if self.json:
            print_json([as_plain(one) for one in found])
        wrong = [one for one in found if one.state == "damaged" or (self.names and one.state in UNREADABLE)]
        return 1 if self.check and wrong else 0

    def _check_words(self) -> None:
        if self.folder is not None:
            check_folder(self.folder)
        elif self.list or self.check:
            find_data()  # refuses a HARMAX_DATA that is not a folder
        if self.list and self.check:
            raise UsageError(
                "`--list` and `--check` must not be given together, got both; `--check` also lists the data sets."
            )
        if not (self.names or self.list or self.check):
            raise UsageError("NAME, `--list` or `--check` must be given, got none; `--list` prints the names.")
        known = [name for name, source in IMAGES.items() if source.files or self.list or self.check]
        for name in self.names:
            if name not in known:
                raise UsageError(unknown("NAME", name, known))

    def _fetch(self) -> int:
        target = self.folder or _writable()
        rows: list[dict[str, Any]] = []
        for name in dict.fromkeys(self.names):
            published = any((target / name / file.name).is_file() for file in IMAGES[name].files)
            # Without the folder there can be no data set in it.
            if target.is_dir() and has_images(name, self.folder) and not published:
                print(
                    f"harmax: {name} is already there in another form, so nothing is fetched; to get the published "
                    "files, name another `--folder`.",
                    file=sys.stderr,
                )
                own = check_images(name, self.folder, read=False).folder
                rows.append({"name": name, "folder": str(own), "fetched": False})
            else:
                own = fetch(name, target)
                rows.append({"name": name, "folder": str(own), "fetched": True})
            if not self.json:
                print(own, flush=True)
        if self.json:
            print_json(rows)
        return 0


def _writable() -> Path:
    """Return the data folder to write to, which may not exist yet."""
    named = os.environ.get("HARMAX_DATA")
    found = Path(named) if named else find_data()
    if found is None:
        raise UsageError("no data folder was found; name the folder to make with `--folder`, or set HARMAX_DATA to it.")
    return check_folder(found)


def fetch(name: str, folder: Path) -> Path:
    """Download a data set and show the progress on standard error."""
    with LiveLine("connecting") as line:

        def show(file: str, there: int, total: int) -> None:
            line(f"{file}: {there / 1e6:,.1f} of {total / 1e6:,.1f} MB", important=there == total)

        return download(name, folder, progress=show)


def describe(found: ImageCheck) -> str:
    """Return one line about a data set.

    >>> describe(ImageCheck("digits", "embedded", counts={"train": 1437, "test": 360}))
    'digits             embedded    1,437 train, 360 test'
    """
    counts, published = found.counts, IMAGES[found.name].counts
    words = []
    for split, count in counts.items():
        less = f" of {published[split]:,}" if count != published[split] else ""
        words.append(f"{count:,}{less} {split}")
    parts = [", ".join(words)] if words else []
    if found.state == "embedded" and not words:
        parts.append(IMAGES[found.name].title)
    if found.checked:
        parts.append(f"{len(found.checked)} checksum{'s' * (len(found.checked) > 1)} right")
    if found.state in UNREADABLE:
        parts.append(how_to_get(found.name))
    if found.folder is not None:
        parts.append(str(found.folder))
    return f"{found.name:<{WIDTH}}  {found.state:<10}  {'; '.join(parts)}".rstrip()


def how_to_get(name: str) -> str:
    """Return how to get a data set."""
    source = IMAGES[name]
    if not source.files:
        return source.note.rstrip(".")
    size = sum(file.size for file in source.files) / 1e6
    return f"fetch {size:.1f} MB with `harmax data images {name}`"


def wanted_files(found: ImageCheck) -> str:
    """Return the missing files of a data set, one per line, for a download by hand."""
    source = IMAGES[found.name]
    files = [file for file in source.files if file.name in found.wanted]
    more = "".join(f"\n  also at {mirror}" for mirror in source.mirrors[1:])
    note = f"\n  {source.note}" if source.note else ""
    return f"  missing in {found.name}/ of the data folder:\n{list_files(files, source.mirrors[0])}{more}{note}"


def as_plain(found: ImageCheck) -> dict[str, Any]:
    """Return the state of a data set as plain values, with size, checksum and address of each missing file."""
    source = IMAGES[found.name]
    mirrors = source.mirrors
    wanted = [
        {**asdict(file), "addresses": [mirror + file.name for mirror in mirrors]}
        for file in source.files
        if file.name in found.wanted
    ]
    folder = None if found.folder is None else str(found.folder)
    return {**asdict(found), "folder": folder, "wanted": wanted, "published": dict(source.counts)}
