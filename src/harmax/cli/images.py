"""`harmax data images`: fetch image data sets, say which are there, and check them."""

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
    """Fetch image data sets with their checksums, or say which are there; what is there is not fetched again.

    harmax data images mnist fashion_mnist --folder data

    harmax data images --list

    harmax data images --check cifar10
    """

    names: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[NAME ...]")] = ()
    """Data sets: mnist, fashion_mnist, cifar10, cifar100; with `--list` or `--check` also others, all if left out."""
    folder: Path | None = None
    """The data folder, each set in a sub-folder of its name; HARMAX_DATA, else ../shared/data, if left out."""
    list: bool = False
    """Fetch nothing: say which sets are there, and for NAME which files are wanted, with checksums and addresses."""
    check: bool = False
    """Fetch nothing: compare every file with its checksum, and read every image."""
    json: bool = False
    """Print one JSON array, an object a data set."""

    def __call__(self) -> int:
        """Fetch, list or check."""
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
            find_data()  # refuses a HARMAX_DATA that is no folder, where there is nothing to look at
        if self.list and self.check:
            raise UsageError("`--list` and `--check` must not come together, got both; `--check` says what both do.")
        if not (self.names or self.list or self.check):
            raise UsageError("NAME, `--list` or `--check` must be given, got none; `--list` shows the names.")
        known = [name for name, source in IMAGES.items() if source.files or self.list or self.check]
        for name in self.names:
            if name not in known:
                raise UsageError(unknown("NAME", name, known))

    def _fetch(self) -> int:
        target = self.folder or _writable()
        rows: list[dict[str, Any]] = []
        for name in dict.fromkeys(self.names):
            published = any((target / name / file.name).is_file() for file in IMAGES[name].files)
            # A folder that is still to be made holds nothing.
            if target.is_dir() and has_images(name, self.folder) and not published:
                print(
                    f"harmax: {name} is there in another form, which would be read first, and is left as it is; for "
                    "the published files name another `--folder`.",
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
    """Return where data sets will be looked for, whether or not it is there yet."""
    named = os.environ.get("HARMAX_DATA")
    found = Path(named) if named else find_data()
    if found is None:
        raise UsageError("`--folder` must name the data folder to make, got none; or set HARMAX_DATA to it.")
    return check_folder(found)


def fetch(name: str, folder: Path) -> Path:
    """Download a data set and say on standard error how far it is."""
    with LiveLine("connecting") as line:

        def tell(file: str, there: int, total: int) -> None:
            line(f"{file}: {there / 1e6:,.1f} of {total / 1e6:,.1f} MB", important=there == total)

        return download(name, folder, progress=tell)


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
    """Say where a data set comes from."""
    source = IMAGES[name]
    if not source.files:
        return source.note.rstrip(".")
    return f"`harmax data images {name}` fetches {sum(file.size for file in source.files) / 1e6:.1f} MB"


def wanted_files(found: ImageCheck) -> str:
    """List the published files that a data set lacks, a line each, for who fetches them by hand."""
    source = IMAGES[found.name]
    files = [file for file in source.files if file.name in found.wanted]
    more = "".join(f"\n  also at {mirror}" for mirror in source.mirrors[1:])
    note = f"\n  {source.note}" if source.note else ""
    return f"  wanted in {found.name}/ of the data folder:\n{list_files(files, source.mirrors[0])}{more}{note}"


def as_plain(found: ImageCheck) -> dict[str, Any]:
    """Return what was found as plain values, the wanted files with size, checksum and address."""
    source = IMAGES[found.name]
    mirrors = source.mirrors
    wanted = [
        {**asdict(file), "addresses": [mirror + file.name for mirror in mirrors]}
        for file in source.files
        if file.name in found.wanted
    ]
    folder = None if found.folder is None else str(found.folder)
    return {**asdict(found), "folder": folder, "wanted": wanted, "published": dict(source.counts)}
