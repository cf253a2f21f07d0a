"""Sentences with two labels, for probes: SST-2 (is a film review positive?) and CoLA (is a sentence grammatical?)."""

# N sentences

import os
from typing import NamedTuple

import numpy as np

from harmax.data.folder import read_text
from harmax.errors import DamagedError, unknown


class _Source(NamedTuple):
    files: dict[str, dict[str, int]]
    """Maps a split to its files, and each file to the number of sentences that it was published with."""
    columns: int
    sentence: int
    label: int
    header: bool


# As in GLUE, CoLA's dev split joins sentences of the sources of the train split and sentences of other sources.
_SOURCES = {
    "sst2": _Source({"train": {"train.tsv": 67349}, "dev": {"dev.tsv": 872}}, 2, sentence=0, label=1, header=True),
    "cola": _Source(
        {"train": {"in_domain_train.tsv": 8551}, "dev": {"in_domain_dev.tsv": 527, "out_of_domain_dev.tsv": 516}},
        columns=4,
        sentence=3,
        label=1,
        header=False,
    ),
}

GLUE_TASKS = tuple(_SOURCES)
GLUE_SPLITS = ("train", "dev")


class Sentences(NamedTuple):
    """One split of a task."""

    sentences: tuple[str, ...]
    labels: np.ndarray
    """(N,) int64: 1 for positive (SST-2) or acceptable (CoLA), else 0."""


def load_glue(
    task: str, split: str = "train", folder: str | os.PathLike[str] | None = None, *, complete: bool = True
) -> Sentences:
    """Return one split of SST-2 or CoLA, in the order of the files.

    SST-2 has 67,349 training and 872 dev sentences. CoLA has 8,551 and 1,043 (527, and 516 of other sources).
    Blanks around a sentence are removed: each sentence of SST-2 ends in a blank, which a probe would see as a token.

    Args:
        task: "sst2" or "cola".
        split: "train" or "dev". The labels of the test splits are not public.
        folder: the data folder with `sst2/` and `cola/`; None means HARMAX_DATA, else ../shared/data.
        complete: refuse a file whose number of sentences differs from the published one.
    """
    if task not in _SOURCES:
        raise ValueError(unknown("task", task, GLUE_TASKS))
    if split not in GLUE_SPLITS:
        raise ValueError(unknown("split", split, GLUE_SPLITS))
    source = _SOURCES[task]
    sentences: list[str] = []
    labels: list[int] = []
    for file, published in source.files[split].items():
        name = f"{task}/{file}"
        rows = read_text(name, folder).rstrip("\n").split("\n")[int(source.header) :]
        if not rows or (complete and len(rows) != published):
            raise DamagedError(
                f"{name} must hold {published} sentences, got {len(rows)}; fetch it again, or pass complete=False "
                "to use a part of it."
            )
        for place, row in enumerate(rows):
            sentence, label = _cells(name, source, place, row)
            sentences.append(sentence)
            labels.append(label)
    return Sentences(tuple(sentences), np.array(labels, dtype=np.int64))


def _cells(name: str, source: _Source, place: int, row: str) -> tuple[str, int]:
    # Quotes have no meaning in these files. The csv module would treat them as such and join some lines.
    cells = row.rstrip("\r").split("\t")
    line = place + 1 + source.header
    if len(cells) != source.columns:
        raise DamagedError(
            f"{name} must have {source.columns} columns, got {len(cells)} in line {line}; fetch it again."
        )
    sentence, label = cells[source.sentence].strip(), cells[source.label]
    if not sentence or label not in ("0", "1"):
        raise DamagedError(
            f"{name} must have a sentence and a label 0 or 1 in every line, got {row!r} in line {line}; fetch it again."
        )
    return sentence, int(label)
