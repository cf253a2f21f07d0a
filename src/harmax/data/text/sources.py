"""Sources of documents: text files, or the rows of a Hugging Face dataset."""

import functools
import gzip
import hashlib
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from harmax.data.text.vocabulary import SEPARATOR
from harmax.errors import DamagedError, needs
from harmax.files import MOST_BYTES, check_ordinary

# Without a format, lzma takes zeros without end for empty files, one after another.
OPENERS: dict[str, Callable[..., Any]] = {
    "": open,
    ".gz": gzip.open,
    ".xz": functools.partial(lzma.open, format=lzma.FORMAT_XZ),
}
UNREADABLE = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error)
KINDS = (".txt", ".jsonl")


@dataclass(frozen=True)
class TextSource:
    """Documents in a fixed order, with their description for shards.json."""

    description: dict[str, Any]
    """Plain values that identify the source."""
    documents: Iterable[tuple[str, str]]
    """The name of the file or dataset, and the text, of each document."""


def from_files(inputs: Iterable[Path | str], *, field: str = "text") -> TextSource:
    """Read .txt and .jsonl files, plain, .gz or .xz. A folder means all such files in it, in the order of their names.

    A .txt file is one document, or several that are separated by <|endoftext|>. Each line of a .jsonl file is an
    object whose `field` is a document.
    """
    named = [pair for path in inputs for pair in _expand(Path(path))]
    if not named:
        raise ValueError("`inputs` must name at least one file or folder, got none; pass one or more.")
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
    """Use any rows with a text in `field`, such as the rows of a Hugging Face dataset.

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

    It is downloaded into the cache of `datasets` and not streamed. So continuing after an interruption does not
    download it again.
    """
    with needs("text"):
        import datasets
    rows = datasets.load_dataset(name, subset, split=split)
    return from_rows(rows, name=" ".join(filter(None, (name, subset, split))), field=field)


def _expand(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield a file, or the files of a folder in order, each with its name for shards.json, which has no full paths."""
    if path.is_dir():
        files = [file for file in path.rglob("*") if _kind(file) in KINDS and not file.is_dir()]
        if not files:
            raise ValueError(
                f"a folder of texts must hold {_endings()} files, got none in {str(path)!r}; name the folder that has "
                "them."
            )
        yield from sorted((file.relative_to(path).as_posix(), check_ordinary(file)) for file in files)
        return
    if not path.exists():
        raise ValueError(f"`inputs` must be files or folders that exist, got {str(path)!r}; check the spelling.")
    if _kind(path) not in KINDS:
        raise ValueError(f"a text file must end in {_endings()}, got {str(path)!r}; rename or convert it.")
    yield path.name, check_ordinary(path)


def _kind(path: Path) -> str:
    return path.with_suffix("").suffix if path.suffix in OPENERS else path.suffix


def _endings() -> str:
    return f"{' or '.join(KINDS)} (optionally with {' or '.join(filter(None, OPENERS))})"


def _read(path: Path, field: str) -> Iterator[str]:
    opener = OPENERS.get(path.suffix, open)
    try:
        # utf-8-sig removes a byte order mark, which is not part of the text
        with opener(path, "rt", encoding="utf-8-sig") as file:
            lines = _short_lines(file, path)
            yield from _read_lines(lines, path, field) if _kind(path) == ".jsonl" else _read_plain(lines)
    except UNREADABLE as error:
        raise DamagedError(f"{path} must be a whole {path.suffix} file, got {error!r}; compress it again.") from error
    except UnicodeDecodeError as error:
        raise DamagedError(f"{path} must be UTF-8, got {error}; convert it.") from error


def _short_lines(file: TextIO, path: Path) -> Iterator[str]:
    """Yield the lines of a file; refuse one that would fill the memory."""
    while line := file.readline(MOST_BYTES):
        if len(line) == MOST_BYTES:
            raise DamagedError(f"{path} must have lines of less than {MOST_BYTES:,} characters, got a longer one.")
        yield line


def _read_plain(file: Iterable[str]) -> Iterator[str]:
    parts: list[str] = []
    separated = False
    for line in file:
        *ended, rest = line.split(SEPARATOR)
        for part in ended:
            separated = True
            # The newlines around a separator are part of it.
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
            raise DamagedError(f"{place} must be a JSON object, got {line[:40]!r} ({error}); correct it.") from error
        yield _text(row, field, place)


def _text(row: Any, field: str, place: str) -> str:
    if not isinstance(row, Mapping) or not isinstance(row.get(field), str):
        fields = ", ".join(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
        raise ValueError(f"{place} must have a text in `{field}`, got {fields}; name the right field (--field).")
    text: str = row[field]
    return text
