"""`harmax data`: prepare data for training."""

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
    """Make token shards for GPT-2 from texts, a dataset or packed shards. After an interruption, run the same command.

    harmax data text OUT --input books/ reviews.jsonl.gz

    harmax data text OUT --dataset Skylion007/openwebtext --validation 0.0005

    harmax data text OUT --packed corpus/
    """

    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUT")]
    """Folder to make. It gets shards of uint16 tokens (train-*.bin, val-*.bin) and shards.json."""
    input: tuple[Path, ...] = ()
    """Files or folders with .txt and .jsonl, plain, .gz or .xz. In a .txt, <|endoftext|> separates documents."""
    dataset: str | None = None
    """Name of a dataset on the Hugging Face Hub."""
    subset: str | None = None
    """Subset (configuration) of the dataset, if it has several."""
    split: str = "train"
    """Split of the dataset. The validation documents are taken from it."""
    field: str = "text"
    """Field of a .jsonl or dataset row that holds the text."""
    packed: Path | None = None
    """Folder of GPT-2 token shards to unpack and check: train*.bin and val*.bin, plain, .gz or .xz."""
    vocabulary: Path | None = None
    """Folder with encoder.json and vocab.bpe. Default: gpt2_bpe in the data folder, else a download."""
    shard_tokens: int = 100_000_000
    """Tokens per shard. The last document of a shard is always whole."""
    validation: float = 0.01
    """Share of the documents to hold out for validation, chosen by a digest of their text."""
    workers: int | None = None
    """Number of processes that encode. Default: one per core."""
    check: bool = False
    """Make nothing; compare every shard in OUT with its checksum."""
    json: bool = False
    """Print the manifest as JSON."""

    def __call__(self) -> int:
        """Prepare or check the shards, and print a summary."""
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
        check_folder(self.out, "OUT")
        given = [name for name in ("input", "dataset", "packed", "check") if getattr(self, name)]
        if len(given) != 1:
            raise UsageError(
                f"exactly one of `--input`, `--dataset`, `--packed` and `--check` must be given, got "
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
"""The two forms of `harmax data`."""


def default_vocabulary() -> Path | None:
    """Return the vocabulary of the data folder, or None."""
    data = find_data()
    folder = None if data is None else data / "gpt2_bpe"
    return folder if folder is not None and folder.is_dir() else None


def show(folder: Path, manifest: Manifest) -> None:
    """Print one line per split, then the folder."""
    for split in ("train", "val"):
        shards = manifest.of(split)
        if not shards:
            print(f"harmax: the split {split} got no document; raise `--validation` or add documents.", file=sys.stderr)
            continue
        tokens, documents = sum(shard.tokens for shard in shards), sum(shard.documents for shard in shards)
        print(
            f"{split:<6} {_count(tokens, 'token')} in {_count(documents, 'document')}, {_count(len(shards), 'shard')}"
        )
    print(folder)


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'s' * (number != 1)}"


class _Progress:
    """Shows the number of documents and tokens so far on one line."""

    def __init__(self, line: LiveLine) -> None:
        self._line, self._begun, self._first = line, time.monotonic(), -1

    def __call__(self, documents: int, tokens: int) -> None:
        now = time.monotonic()
        if self._first < 0:
            self._first, self._begun = tokens, now  # tokens of an earlier attempt do not count for the speed
        speed = (tokens - self._first) / max(now - self._begun, 1e-9)
        self._line(f"{_count(documents, 'document')}, {_count(tokens, 'token')}, {speed:,.0f} tokens per second")
