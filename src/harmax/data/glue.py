"""Sentences with two labels, for probes: SST-2 (is a film review positive?) and CoLA (is a sentence acceptable?)."""

# N sentences

import os
from typing import NamedTuple

import numpy as np

from harmax.data.folder import read_text
from harmax.errors import DamagedError, unknown


class _Source(NamedTuple):
    files: dict[str, dict[str, int]]
    """Split to its files, each with the number of sentences that it has when it is complete."""
    columns: int
    sentence: int
    label: int
    header: bool


# The dev side of CoLA is GLUE's: sentences of the sources of the train side, then those of other sources.
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
    """One side of a task."""

    sentences: tuple[str, ...]
    labels: np.ndarray
    """(N,) int64: 1 for positive (SST-2) or acceptable (CoLA), else 0."""


def load_glue(
    task: str, split: str = "train", folder: str | os.PathLike[str] | None = None, *, complete: bool = True
) -> Sentences:
    """Read one side of SST-2 or CoLA, in the files' order.

    SST-2 has 67,349 sentences to train on and 872 to develop with, CoLA 8,551 and 1,043 (527 and 516 of other sources).
    Blanks around a sentence are removed: SST-2's all end in one, and a probe would see it as the last token.

    Args:
        task: "sst2" or "cola".
        split: "train" or "dev"; the labels of the test sides are not public.
        folder: the data folder, which holds `sst2/` and `cola/`; None: HARMAX_DATA, else ../shared/data.
        complete: refuse a file with another number of sentences than it was published with.
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
                "for a part of it."
            )
        for place, row in enumerate(rows):
            sentence, label = _cells(name, source, place, row)
            sentences.append(sentence)
            labels.append(label)
    return Sentences(tuple(sentences), np.array(labels, dtype=np.int64))


def _cells(name: str, source: _Source, place: int, row: str) -> tuple[str, int]:
    # Quotes are letters like others in these files, so the csv module would join lines here and there.
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
