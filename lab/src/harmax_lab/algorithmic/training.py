"""From cells to stacked runs and back: cells that share a shape and settings are trained as one ensemble."""

# S runs of an ensemble, E epochs, K snapshots, V tokens, D width

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import TypeVar

import numpy as np

from harmax.environment import cores
from harmax.heads import LearnedExponent
from harmax_lab.algorithmic import anchors
from harmax_lab.algorithmic.protocols import POWERED, Settings
from harmax_lab.ensemble import Ensemble, History, Job, Plan, fit_all
from harmax_lab.ensemble.plan import CURVES
from harmax_lab.kit.experiment import Cell, Context
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.together import set_aside, take_up
from harmax_lab.tasks import Split, Task, audit, find_task, make_split

WORTH_A_PROCESS = 50  # epochs


@dataclass(frozen=True)
class RunCell(Cell):
    """One model trained on one seed's split of a task."""

    protocol: str
    task: str
    model: str
    head: str
    train_fraction: float
    seed: int

    @property
    def arm(self) -> tuple[str, str]:
        """The model as a key of `MODEL_STYLES`."""
        return self.model, self.head


C = TypeVar("C", bound=RunCell)


def train(
    cells: Sequence[C],
    settings: Callable[[C], Settings],
    context: Context,
    *,
    snapshots: int = 48,
    centers: bool = False,
    ahead: Iterable[Job] = (),
) -> Iterator[tuple[C, CellResult]]:
    """Train cells, as many together as share a shape, and yield each one's result once its ensemble is trained.

    Args:
        cells: what to train, of any protocols, tasks and models.
        settings: how to train a cell.
        context: where to compute, and where to keep partial state.
        snapshots: how often the embedding is kept.
        centers: whether to keep the weight of an untied head too, as it is at the end: array "centers", (1, K, D),
            the rows of the shown tokens.
        ahead: what comes next, as `stacks_of` gives it: a GPU's code for it is compiled meanwhile.
    """
    known, cells = take_up(cells, context)
    yield from known
    stacks = list(stacks_of(cells, settings, context.device, snapshots=snapshots))
    found, jobs = {id(job): stack for stack, job in stacks}, [job for _, job in stacks]
    # A process takes seconds to start.
    workers = cores() if max((job.plan.longest for job in jobs), default=0) >= WORTH_A_PROCESS else 1
    for job, history in fit_all(jobs, progress=context, checkpoint=context.scratch, workers=workers, ahead=ahead):
        results = []
        for index, cell in enumerate(found[id(job)]):
            result = result_of(cell, settings(cell), history, index, snapshots)
            trained = job.ensemble[index]
            # A tied weight is a parameter once, under the name of the embedding.
            weight = dict(trained.named_parameters()).get("head.weight") if centers else None
            if weight is not None:
                kept = weight.detach()[None, task_of(cell).shown].numpy()
                result = replace(result, arrays={**result.arrays, "centers": kept})
            if isinstance(trained.head, LearnedExponent):
                result = replace(result, metrics={**result.metrics, "exponent": trained.head.exponent.item()})
            results.append((cell, result))
        yield from set_aside(results, context)


def stacks_of(
    cells: Sequence[C], settings: Callable[[C], Settings], device: str, *, snapshots: int = 48
) -> Iterator[tuple[list[C], Job]]:
    """Yield the cells that can be trained as one ensemble, and that ensemble, built; the longest work first."""
    stacks: dict[tuple[str, str, int, Settings], list[C]] = {}
    for cell in cells:
        # What may differ between the runs of an ensemble does not set them apart.
        how = settings(cell)
        common = replace(how, epochs=0, learning_rate=0.0, weight_decay=0.0)
        if how.stack_exponents:
            common = replace(common, exponent=1.0)
        stacks.setdefault((cell.model, cell.head, task_of(cell).inputs, common), []).append(cell)
    # So that the short work fills the gaps at the end.
    ordered = sorted(stacks.items(), key=lambda entry: entry[0][0] != "transformer")
    for (model, head, _, how), stack in ordered:
        own = [settings(cell) for cell in stack]
        plan = Plan(
            epochs=[one.epochs for one in own],
            batch_size=how.batch_size,
            learning_rate=[one.learning_rate for one in own],
            weight_decay=[one.weight_decay for one in own],
            exponent=[one.exponent for one in own] if how.stack_exponents else None,
            penalty=how.penalty,
            exact=how.exact,
            dropout_in_tests=how.dropout_in_tests,
            snapshots=sorted({epoch for one in own for epoch in snapshot_epochs(one.epochs, snapshots)}),
        )
        # Models of an ensemble are built alike; what differs is in the plan.
        builds = [partial(how.build, task_of(cell), model, head) for cell in stack]
        ensemble = Ensemble(builds, [cell.seed for cell in stack], device=device)
        yield stack, Job(ensemble, [split_of(cell) for cell in stack], plan)


def result_of(cell: RunCell, how: Settings, history: History, index: int, snapshots: int = 48) -> CellResult:
    """Return what is stored of one run of an ensemble."""
    powered = cell.head in POWERED
    own = np.isin(history.snapshot_epochs, snapshot_epochs(how.epochs, snapshots))
    return CellResult(
        curves={name: np.asarray(getattr(history, name)[index, : how.epochs], dtype=np.float32) for name in CURVES},
        arrays={
            "embedding": history.snapshots[index][own][:, task_of(cell).shown],
            "snapshot_epoch": np.asarray(history.snapshot_epochs[own], dtype=np.int64),
        },
        metrics={
            "diverged_at": history.diverged_at[index],
            **asdict(audit(split_of(cell))),
            "epochs": how.epochs,
            "learning_rate": how.learning_rate,
            "weight_decay": how.weight_decay,
            "exponent": how.exponent if powered else None,
            "softening": how.softening if powered else None,
            "tied": how.tied,
            "waste": history.waste,
        },
    )


def snapshot_epochs(epochs: int, count: int) -> tuple[int, ...]:
    """Return 0, the last epoch, and epochs between them that grow by a factor, `count` in all or a few more.

    >>> snapshot_epochs(1000, 8)
    (0, 1, 3, 10, 32, 100, 316, 1000)
    >>> snapshot_epochs(3, 8)
    (0, 1, 2, 3)
    >>> snapshot_epochs(1000, 2)
    (0, 1000)
    """
    if epochs < count:
        return tuple(range(epochs + 1))
    if epochs > anchors.EPOCHS:  # where the authors' code ends
        return tuple(sorted({*snapshot_epochs(anchors.EPOCHS, count - 1), epochs}))
    points = count - 1
    # Rounding makes the first ones fall together, so it takes some more.
    while len(found := np.unique(np.rint(np.geomspace(epochs, 1, points)).astype(int))) < count - 1:
        points += 1
    return (0, *map(int, found))


def task_of(cell: RunCell) -> Task:
    """Return a cell's task under its protocol."""
    return _task(cell.task, cell.protocol)


def split_of(cell: RunCell) -> Split:
    """Draw a cell's data: the same for every model."""
    return make_split(task_of(cell), cell.seed, train_fraction=cell.train_fraction)


@cache
def _task(name: str, protocol: str) -> Task:
    return find_task(name, protocol=protocol)
