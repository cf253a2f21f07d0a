"""Where documents come from: text files, or the rows of a Hugging Face dataset."""

import gzip
import hashlib
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harmax.data.text.vocabulary import SEPARATOR
from harmax.errors import DamagedError, needs

OPENERS: dict[str, Callable[..., Any]] = {"": open, ".gz": gzip.open, ".xz": lzma.open}
UNREADABLE = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error)
KINDS = (".txt", ".jsonl")


@dataclass(frozen=True)
class TextSource:
    """Documents in a fixed order, and what is said about them in shards.json."""

    description: dict[str, Any]
    """Plain values that name the source: where they differ, it is another one."""
    documents: Iterable[tuple[str, str]]
    """Place (a file's or a dataset's name) and text of each document."""


def from_files(inputs: Iterable[Path | str], *, field: str = "text") -> TextSource:
    """Read .txt and .jsonl files, plain, .gz or .xz; of a folder all of them, in the order of their names.

    A .txt file is one document, or as many as <|endoftext|> separates; each line of a .jsonl file is an object whose
    `field` is a document.
    """
    named = [pair for path in inputs for pair in _expand(Path(path))]
    if not named:
        raise ValueError("`inputs` must name a file or a folder, got none; pass one or more.")
    sizes = [(name, path.stat().st_size) for name, path in named]
    description = {
        "files": len(sizes),
        "bytes": sum(size for _, size in sizes),
        "listing": hashlib.sha256(repr(sizes).encode()).hexdigest(),
        "field": field,
    }

    def documents() -> Iterator[tuple[str, str]]:
        for name, path in named:
            for text in _read(path, field):
                yield name, text

    return TextSource(description, documents())


def from_rows(rows: Iterable[Mapping[str, Any]], *, name: str, field: str = "text") -> TextSource:
    """Take any rows with a text in `field`, such as those of a Hugging Face dataset.

    >>> source = from_rows([{"text": "To be, or not to be"}], name="hamlet")
    >>> list(source.documents)
    [('hamlet', 'To be, or not to be')]
    """

    def documents() -> Iterator[tuple[str, str]]:
        for number, row in enumerate(rows):
            yield name, _text(row, field, f"row {number} of {name}")

    return TextSource({"dataset": name, "field": field}, documents())


def from_dataset(name: str, *, subset: str | None = None, split: str = "train", field: str = "text") -> TextSource:
    """Load a dataset of the Hugging Face Hub, such as Skylion007/openwebtext.

    It is downloaded into the library's cache first rather than streamed, so that going on after an interrupt does not
    load everything again.
    """
    with needs("text"):
        import datasets
    rows = datasets.load_dataset(name, subset, split=split)
    return from_rows(rows, name=" ".join(filter(None, (name, subset, split))), field=field)


def _expand(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield a file, or a folder's files in order, each with the name that shards.json will have: no machine's paths."""
    if path.is_dir():
        inside = [(file.relative_to(path).as_posix(), file) for file in path.rglob("*") if _kind(file) in KINDS]
        if not inside:
            raise ValueError(f"a folder of texts must hold {_endings()} files, got {str(path)!r} without one.")
        yield from sorted(inside)
        return
    if not path.is_file():
        raise ValueError(f"`inputs` must be files or folders that exist, got {str(path)!r}; check the spelling.")
    if _kind(path) not in KINDS:
        raise ValueError(f"a text file must end in {_endings()}, got {str(path)!r}; rename or convert it.")
    yield path.name, path


def _kind(path: Path) -> str:
    return path.with_suffix("").suffix if path.suffix in OPENERS else path.suffix


def _endings() -> str:
    return f"{' or '.join(KINDS)} (then perhaps {' or '.join(filter(None, OPENERS))})"


def _read(path: Path, field: str) -> Iterator[str]:
    opener = OPENERS.get(path.suffix, open)
    try:
        # utf-8-sig: a byte order mark is no part of the text
        with opener(path, "rt", encoding="utf-8-sig") as file:
            yield from _read_lines(file, path, field) if _kind(path) == ".jsonl" else _read_plain(file)
    except UNREADABLE as error:
        raise DamagedError(f"{path} must be a whole {path.suffix} file, got {error!r}; pack it again.") from error
    except UnicodeDecodeError as error:
        raise DamagedError(f"{path} must be UTF-8, got {error}; convert it.") from error


def _read_plain(file: Iterable[str]) -> Iterator[str]:
    parts: list[str] = []
    separated = False
    for line in file:
        *ended, rest = line.split(SEPARATOR)
        for part in ended:
            separated = True
            # The newlines around a separator belong to it.
            yield "".join((*parts, part)).strip("\n")
            parts = []
        parts.append(rest)
    last = "".join(parts)
    yield last.strip("\n") if separated else last


def _read_lines(file: Iterable[str], path: Path, field: str) -> Iterator[str]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        place = f"line {number} of {path}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DamagedError(f"{place} must be a JSON object, got {line[:40]!r} ({error}); mend it.") from error
        yield _text(row, field, place)


def _text(row: Any, field: str, place: str) -> str:
    if not isinstance(row, Mapping) or not isinstance(row.get(field), str):
        fields = ", ".join(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
        raise ValueError(f"{place} must have a text in `{field}`, got {fields}; name the field that has it (--field).")
    text: str = row[field]
    return text
