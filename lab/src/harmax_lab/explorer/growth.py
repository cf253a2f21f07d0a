"""Stored trainings of the algorithmic tasks as the explorer shows them."""

# T snapshots, K tokens, D features

from collections.abc import Iterable
from typing import Any

import numpy as np

from harmax.inspect.explorer.document import GrownRun
from harmax.inspect.explorer.growth import broken_run, grown_run
from harmax.inspect.explorer.parts import Cloud, ExplorerOptions, ExplorerParts
from harmax_lab.algorithmic import planes
from harmax_lab.algorithmic.runs import EXPERIMENT as SOURCE
from harmax_lab.algorithmic.runs import AlgorithmicSpec
from harmax_lab.algorithmic.training import RunCell, task_of
from harmax_lab.kit.experiment import PROFILES
from harmax_lab.kit.store import CellResult, Run

HEADS = {"linear": "standard", "harmonic": "harmonic"}


def best_run(runs: Iterable[Run]) -> Run | None:
    """Return the most thorough run of `algorithmic`, of the current version, with finished cells; None without one."""
    own = [run for run in runs if run.experiment == SOURCE.name and run.config["version"] == SOURCE.version]
    known = [run for run in own if run.done and run.profile in PROFILES]
    return max(known, key=lambda run: (PROFILES.index(run.profile), len(run.done)), default=None)


def growth_parts(run: Run, options: ExplorerOptions) -> ExplorerParts:
    """Return the finished trainings of a run, at most some seeds of each model, and what is missing."""
    spec: AlgorithmicSpec = SOURCE.load_spec(run.config["spec"])
    finished = set(run.done)
    seeds = spec.seeds[: options.seeds]
    cells = [cell for cell in SOURCE.work.cells(spec) if cell.name in finished and cell.seed in seeds]
    results = {cell: run.read(cell.name) for cell in cells}
    clouds = tuple(cloud(cell, result) for cell, result in results.items()) if options.clouds else ()
    return ExplorerParts(
        growth=tuple(shown(cell, result) for cell, result in results.items()),
        clouds=tuple(one for one in clouds if one is not None),
        notes=tuple(_notes(run, spec, len(cells))),
    )


def shown(cell: RunCell, result: CellResult) -> GrownRun:
    """Return one training as a page shows it."""
    task = task_of(cell)
    curves = (result.curves["train_accuracy"], result.curves["test_accuracy"])
    named: dict[str, Any] = {
        "task": cell.task,
        "task_title": task.title,
        "protocol": cell.protocol,
        "model": cell.model,
        "head": cell.head,
        "seed": cell.seed,
        "labels": task.labels,
    }
    embedding = np.asarray(result.arrays["embedding"], dtype=np.float64)
    if result.metrics.get("diverged_at") is not None or not np.isfinite(embedding).all():
        epoch = result.metrics.get("diverged_at")
        return broken_run(f"This run diverged at epoch {epoch}.", _finite(curves), **named)
    _, look = planes.plane_of(task.structure, embedding[-1])
    epochs = result.arrays["snapshot_epoch"].tolist()
    return grown_run(embedding, epochs, curves, colors=look.colors, edges=look.edges, **named)


def cloud(cell: RunCell, result: CellResult) -> Cloud | None:
    """Return the tokens of the last snapshot as a point cloud; None where the run diverged."""
    embedding = np.asarray(result.arrays["embedding"][-1])
    if not np.isfinite(embedding).all():
        return None
    name = f"{cell.task} {cell.protocol} {cell.model} {HEADS.get(cell.head, cell.head)} seed {cell.seed}"
    return Cloud(name, embedding, {"token": list(task_of(cell).labels), "place": list(range(len(embedding)))})


def _finite(curves: tuple[np.ndarray, ...]) -> Any:
    return tuple(np.nan_to_num(curve, nan=0.0) for curve in curves)


def _notes(run: Run, spec: AlgorithmicSpec, shown_runs: int) -> Iterable[str]:
    where = f"{run.folder} ({run.profile} profile)"
    if run.pending or run.damaged or run.failed:
        yield (
            f"{where} has {len(run.done)} of {len(run.cells)} trainings. The others are missing; finish them with "
            f"`harmax run {SOURCE.name}`."
        )
    for damage in run.damaged:
        yield f"{damage}. This training is left out; delete its folder and run it again."
    if len(spec.seeds) and shown_runs < len(run.done):
        counts = f"{shown_runs} of {len(run.done)}"
        yield f"{where}: {counts} finished trainings are shown. All of them: --seeds {len(spec.seeds)}."
    if short := spec.short_of([cell for cell in SOURCE.work.cells(spec) if cell.name in set(run.done)]):
        yield f"{where}: {short}"
