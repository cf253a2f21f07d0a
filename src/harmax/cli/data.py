"""`harmax data`: data made ready for training."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from harmax.cli.images import ImageFiles
from harmax.cli.live_line import LiveLine
from harmax.cli.usage import UsageError, check_folder, checking_usage, print_json
from harmax.data.folder import find_data
from harmax.data.text import (
    Manifest,
    TextSource,
    TokenShards,
    from_dataset,
    from_files,
    load_encoding,
    prepare_text,
    unpack_corpus,
)


@dataclass(frozen=True)
class TextShards:
    """Make token shards for GPT-2 from texts, a dataset or packed shards; the same command goes on after an interrupt.

    harmax data text OUT --input books/ reviews.jsonl.gz

    harmax data text OUT --dataset Skylion007/openwebtext --validation 0.0005

    harmax data text OUT --packed corpus/
    """

    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUT")]
    """The folder to make: uint16 shards, train-*.bin and val-*.bin, and shards.json."""
    input: tuple[Path, ...] = ()
    """Files or folders of .txt and .jsonl, plain, .gz or .xz; <|endoftext|> separates documents in a .txt."""
    dataset: str | None = None
    """A dataset of the Hugging Face Hub."""
    subset: str | None = None
    """The dataset's subset (configuration), where it has several."""
    split: str = "train"
    """The dataset's split; harmax holds out its own documents."""
    field: str = "text"
    """Where a row of a .jsonl or a dataset has its text."""
    packed: Path | None = None
    """A folder of GPT-2 token shards, train*.bin and val*.bin, plain, .gz or .xz: unpacked and checked."""
    vocabulary: Path | None = None
    """A folder with encoder.json and vocab.bpe; the data folder's gpt2_bpe, or a download, if left out."""
    shard_tokens: int = 100_000_000
    """Tokens of a shard; the last document is always whole."""
    validation: float = 0.01
    """Share of the documents to hold out, chosen by a digest of their text."""
    workers: int | None = None
    """Processes that encode; one for each core if left out."""
    check: bool = False
    """Make nothing: compare every shard of OUT with its checksum."""
    json: bool = False
    """Print the manifest as JSON."""

    def __call__(self) -> int:
        """Prepare or check, and say what is there."""
        with checking_usage():
            self._check_words()
            if self.check:
                manifest = Manifest.read(self.out)
                for split in dict.fromkeys(shard.split for shard in manifest.shards):
                    TokenShards(self.out, split).verify()
            else:
                with LiveLine("starting") as line:
                    manifest = self._make(_Progress(line))
        if self.json:
            print_json({"folder": str(self.out), **manifest.to_dict()})
        else:
            show(self.out, manifest)
        return 0

    def _check_words(self) -> None:
        check_folder(self.out)
        given = [name for name in ("input", "dataset", "packed", "check") if getattr(self, name)]
        if len(given) != 1:
            raise UsageError(
                f"one of `--input`, `--dataset`, `--packed` and `--check` must be given, got "
                f"{' and '.join(f'`--{name}`' for name in given) or 'none'}; choose one."
            )

    def _make(self, progress: "_Progress") -> Manifest:
        if self.packed is not None:
            return unpack_corpus(self.packed, self.out, progress=progress)
        source = self._source()
        return prepare_text(
            self.out,
            source,
            encoding=load_encoding(self.vocabulary or default_vocabulary()),
            shard_tokens=self.shard_tokens,
            validation=self.validation,
            workers=self.workers,
            progress=progress,
        )

    def _source(self) -> TextSource:
        if self.dataset is None:
            return from_files(self.input, field=self.field)
        return from_dataset(self.dataset, subset=self.subset, split=self.split, field=self.field)


Data = Annotated[TextShards, tyro.conf.subcommand("text")] | Annotated[ImageFiles, tyro.conf.subcommand("images")]
"""What `harmax data` does: one of these."""


def default_vocabulary() -> Path | None:
    """Return the vocabulary of the data folder, where there is one."""
    data = find_data()
    folder = None if data is None else data / "gpt2_bpe"
    return folder if folder is not None and folder.is_dir() else None


def show(folder: Path, manifest: Manifest) -> None:
    """Print a line a split, then the folder."""
    for split in ("train", "val"):
        shards = manifest.of(split)
        if not shards:
            print(f"harmax: no document fell to {split}; raise `--validation` or add documents.", file=sys.stderr)
            continue
        tokens, documents = sum(shard.tokens for shard in shards), sum(shard.documents for shard in shards)
        print(
            f"{split:<6} {_count(tokens, 'token')} in {_count(documents, 'document')}, {_count(len(shards), 'shard')}"
        )
    print(folder)


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'s' * (number != 1)}"


class _Progress:
    """Documents and tokens so far, as a line."""

    def __init__(self, line: LiveLine) -> None:
        self._line, self._begun, self._first = line, time.monotonic(), -1

    def __call__(self, documents: int, tokens: int) -> None:
        now = time.monotonic()
        if self._first < 0:
            self._first, self._begun = tokens, now  # what an earlier attempt made is no speed
        speed = (tokens - self._first) / max(now - self._begun, 1e-9)
        self._line(f"{_count(documents, 'document')}, {_count(tokens, 'token')}, {speed:,.0f} a second")
