"""Training to be watched: one task, both losses, some seeds, and of each loss the median run."""

# S runs, V tokens, D width

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from harmax.analysis import explained_variance
from harmax_lab.algorithmic import measures
from harmax_lab.algorithmic.film import median_seed
from harmax_lab.algorithmic.protocols import HEADS, Settings, settings
from harmax_lab.algorithmic.training import RunCell, result_of, stacks_of, task_of
from harmax_lab.ensemble import fit_all
from harmax_lab.ensemble.parts import Status
from harmax_lab.kit.store import CellResult
from harmax_lab.tasks import Task

SNAPSHOTS = 80
TRAIN_FRACTION = 0.8
Arm = tuple[str, str]


class Glance(NamedTuple):
    """Where the training of one loss stands: medians over its runs."""

    epoch: int
    epochs: int
    accuracy: float
    explained: float
    """Share of the embedding's variance in two components, at the last snapshot."""


class Watched(NamedTuple):
    """The runs of one loss, and the one that is shown."""

    arm: Arm
    runs: dict[int, CellResult]
    """By seed."""
    seed: int
    """Of the median run."""

    @property
    def result(self) -> CellResult:
        """The run that is shown."""
        return self.runs[self.seed]

    @property
    def sentence(self) -> str:
        """Say which run is shown, and why."""
        passed = {seed: measures.grokking(result)["test_epoch"] for seed, result in self.runs.items()}
        end, own = measures.last_embedding(self.result), passed[self.seed]
        when = "never passes 0.9 in test" if np.isinf(own) else f"passes 0.9 in test at epoch {own + 1:.0f}"
        share = "" if end is None else f"; two components have {100 * explained_variance(end):.1f} % of its variance"
        count = sum(np.isfinite(epoch) for epoch in passed.values())
        return f"median of {len(passed)} runs is seed {self.seed}, which {when}{share}; {count} of the runs pass"


def describe_runs(watched: Sequence[Watched]) -> str:
    """Say in a few words which runs are shown.

    >>> describe_runs([Watched(("mlp", "linear"), {50: CellResult()}, 50), Watched(("mlp", "harmonic"), {}, 7)])
    'seeds 50 and 7'
    """
    if len({*watched[0].runs}) > 1:
        return f"medians of {len(watched[0].runs)} runs"
    return " and ".join([f"seeds {watched[0].seed}", *(str(side.seed) for side in watched[1:])])


def train(
    task: str,
    *,
    seeds: Sequence[int],
    epochs: int,
    protocol: str = "matched",
    model: str = "mlp",
    device: str = "cpu",
    workers: int = 1,
    look: Callable[[Arm, Glance], None] = lambda arm, glance: None,
) -> tuple[Task, list[Watched]]:
    """Train a task with either loss, and choose of each the median run.

    Args:
        task: a name in `TASKS`.
        seeds: runs of each loss.
        epochs: of each run.
        protocol: how data and models are made, as in `protocols.py`.
        model: "mlp" or "transformer".
        device: where to train.
        workers: processes; two train the losses side by side on a CPU.
        look: called from time to time with a model and where its training stands.
    """

    def how(cell: RunCell) -> Settings:
        return settings(cell.protocol, cell.model, cell.head, epochs=epochs)

    cells = [RunCell(protocol, task, model, head, TRAIN_FRACTION, seed) for head in HEADS for seed in seeds]
    stacks = list(stacks_of(cells, how, device, snapshots=SNAPSHOTS))
    shown = task_of(cells[0]).shown
    last: dict[int, tuple[bytes, float]] = {}

    def report(number: int, status: Status) -> None:
        if status.embedding is None or not len(status.accuracy):
            return
        # An embedding comes again until there is a new one.
        key = status.embedding.tobytes()
        if number not in last or last[number][0] != key:
            last[number] = key, _explained(status.embedding[:, shown])
        cell = stacks[number][0][0]
        accuracy = float(np.median(np.nan_to_num(status.accuracy)))
        look(cell.arm, Glance(status.epoch, status.epochs, accuracy, last[number][1]))

    found: dict[Arm, dict[int, CellResult]] = {(model, head): {} for head in HEADS}
    owners = {id(job): own for own, job in stacks}
    for job, history in fit_all([job for _, job in stacks], workers=workers, look=report):
        for index, cell in enumerate(owners[id(job)]):
            found[cell.arm][cell.seed] = result_of(cell, how(cell), history, index, SNAPSHOTS)
    return task_of(cells[0]), [Watched(arm, runs, median_seed(runs)) for arm, runs in found.items()]


def _explained(embeddings_SVD: np.ndarray) -> float:
    """Return the median over runs of the share of variance in two components; a diverged run has none."""
    finite = [one for one in embeddings_SVD.astype(np.float64) if np.isfinite(one).all()]
    return float(np.median([explained_variance(one) for one in finite])) if finite else 0.0
