"""The published results that travel with the laboratory: verdicts, tables and pictures of full runs."""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from harmax.errors import DamagedError
from harmax.files import read_json, read_whole
from harmax_lab.kit.claims import VERDICTS, Verdict
from harmax_lab.kit.store import Damage
from harmax_lab.kit.tables import Table
from harmax_lab.report.markdown import from_markdown

PICTURE = re.compile(r"!\[[^\]]*\]\(([A-Za-z0-9_-]+)\.png\)")
PNG = b"\x89PNG\r\n\x1a\n"


class StoredPicture(NamedTuple):
    """A published picture, as bytes of a PNG, with its caption."""

    png: bytes
    caption: str

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, as the file says."""
        width, height = struct.unpack(">II", self.png[16:24])
        return width, height


@dataclass(frozen=True)
class Published:
    """What was published of one experiment."""

    profile: str
    made: str
    """Versions and devices that computed the runs."""
    verdicts: Mapping[str, Verdict]
    """By the id of the claim."""
    tables: tuple[Table, ...] = ()
    pictures: Mapping[str, StoredPicture] = field(default_factory=dict)


def published_folder() -> Path:
    """Return the folder of the published results: inside an installed laboratory, lab/results in a checkout."""
    package = Path(str(files("harmax_lab")))
    shipped = package / "results"
    return shipped if shipped.is_dir() else package.parents[1] / "results"


def read_published(name: str, folder: Path) -> tuple[Published | None, list[Damage]]:
    """Read what was published of an experiment, and list what cannot be read. None: nothing was published.

    Args:
        name: of the experiment.
        folder: with one folder per experiment, as `write_results` makes it.
    """
    own = folder / name
    if not (own / "summary.json").exists():
        return None, []
    damaged: list[Damage] = []
    try:
        stored = read_json(own / "summary.json")
        verdicts, tables = _verdicts(stored), _tables(stored)
        profile = str(stored["profile"])
    except (DamagedError, KeyError, TypeError, AttributeError) as error:
        reason = str(error) if isinstance(error, DamagedError) else "summary.json is no summary of results"
        return None, [Damage(own, reason)]
    try:
        made, captions = _page(own / "README.md")
    except DamagedError as error:
        made, captions = "unknown", {}
        damaged.append(Damage(own, str(error)))
    pictures = {}
    for picture, caption in captions.items():
        try:
            pictures[picture] = StoredPicture(_read_png(own / f"{picture}.png"), caption)
        except DamagedError as error:
            damaged.append(Damage(own, str(error)))
    return Published(profile, made, verdicts, tables, pictures), damaged


def _verdicts(stored: Mapping[str, Any]) -> dict[str, Verdict]:
    found = {}
    for one in stored["verdicts"]:
        if one["verdict"] not in VERDICTS:
            known = ", ".join(VERDICTS)
            raise DamagedError(f"summary.json must have one of {known} as verdict, got {one['verdict']!r}")
        found[str(one["claim"])] = Verdict(str(one["claim"]), one["verdict"], str(one["sentence"]))
    return found


def _tables(stored: Mapping[str, Any]) -> tuple[Table, ...]:
    tables = tuple(Table(str(one["title"]), tuple(map(dict, one["rows"]))) for one in stored.get("tables", ()))
    if any(set(row) != set(table.rows[0]) for table in tables for row in table.rows):
        raise DamagedError("summary.json has a table whose rows differ in their columns")
    return tuple(table for table in tables if table.rows)


def _page(path: Path) -> tuple[str, dict[str, str]]:
    """Return what a published page says on its making, and the captions of its pictures."""
    try:
        text = read_whole(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedError(f"{path.name} cannot be read, so its pictures are not shown ({error})") from None
    blocks = [from_markdown(block) for block in text.strip().split("\n\n")]
    made = next((block.partition(" Cells failed:")[0] for block in blocks if " Cells failed:" in block), "unknown")
    captions = {}
    for block, after in zip(blocks, [*blocks[1:], ""], strict=True):
        if found := PICTURE.fullmatch(block):
            captions[found[1]] = "" if after.startswith(("![", "#", "|")) else after
    return made.rstrip("."), captions


def _read_png(path: Path) -> bytes:
    try:
        data = read_whole(path)
    except OSError as error:
        raise DamagedError(f"{path.name} cannot be read ({error.strerror})") from None
    if not data.startswith(PNG) or len(data) < 24:
        raise DamagedError(f"{path.name} must be a PNG, and is not")
    return data
