"""Where work runs: `run` opens an experiment's folder and gives the pending cells to an engine."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from harmax.environment import choose_device
from harmax.errors import needs, unknown
from harmax_lab.kit.engine import local, ray
from harmax_lab.kit.engine.ledger import Event
from harmax_lab.kit.experiment import Experiment
from harmax_lab.kit.store import Run


class Engine(NamedTuple):
    """Where work runs."""

    execute: Callable[..., None]
    """Runs cells, as `local.execute` does."""
    choose_device: Callable[[str | None], str | None]
    """Returns the device that is asked for, or the best one; raises where the engine cannot have it."""


ENGINES: dict[str, Engine] = {
    "local": Engine(local.execute, choose_device),
    "ray": Engine(ray.execute, ray.choose_device),
}

__all__ = ["ENGINES", "Event", "device_for", "matching", "run"]


def run(
    experiment: Experiment[Any, Any],
    *,
    engine: str = "local",
    seeds: Sequence[int] | int | None = None,
    smoke: bool = False,
    profile: str | None = None,
    folder: Path | str = "runs",
    device: str | None = None,
    cells: str | None = None,
    retry: bool = True,
    progress: Callable[[Event], None] | None = None,
) -> Run:
    """Run an experiment, or what is left of it, and return its run folder.

    Finished cells are read, not computed again; failed ones are tried again. An interrupt leaves a folder from
    which the same call goes on. An experiment that only judges and draws another's runs has those finished first.

    Args:
        experiment: one of `EXPERIMENTS`, or one of your own.
        engine: a name in `ENGINES`.
        seeds: other seeds than the profile's; a number stands for 0, 1, ...
        smoke: short for `profile="smoke"`.
        profile: "smoke", "quick" (the default) or "full".
        folder: where run folders live.
        device: where to compute, "cpu", "cuda" or "cuda:1"; None: cuda where there is one and the experiment uses it
            (with Ray, in the cluster).
        cells: only cells with these fields ("dataset=cifar10,stage=final"; * stands for anything). Several processes
            can share one run this way, each with a part of its own.
        retry: whether cells that failed before are tried again.
        progress: called with an `Event` whenever the run has moved on.
    """
    if smoke and profile not in (None, "smoke"):
        raise ValueError(f"`profile` must be 'smoke' or None with `smoke=True`, got {profile!r}; give one of the two.")
    with needs("run"):
        import safetensors  # noqa: F401  (before the work, not after the first cell of it)
    if engine not in ENGINES:
        raise ValueError(unknown("engine", engine, ENGINES))
    profile = "smoke" if smoke else profile or "quick"
    spec = experiment.resolve(profile, seeds)
    place = device_for(experiment, device, engine)
    if experiment.source is not None:
        run(
            experiment.source,
            engine=engine,
            seeds=seeds,
            profile=profile,
            folder=folder,
            device=device,
            cells=cells,
            retry=retry,
            progress=progress,
        )
    result = Run.create(
        folder,
        experiment=experiment.name,
        version=experiment.version,
        profile=profile,
        spec=asdict(spec),
        cells={cell.name: asdict(cell) for cell in experiment.cells(spec)},
        overrides={} if seeds is None else {"seeds": spec.seeds},
        source=experiment.source_key(spec),
    )
    if experiment.source is None:
        wanted = matching(result.cells, cells)
        names = [name for name in result.pending if name in wanted and (retry or name not in result.failed)]
        if names:
            ENGINES[engine].execute(
                experiment, spec, result, names, device=place, progress=progress or (lambda event: None)
            )
        if not result.pending:
            result.drop_partial()
    result.write_summary(experiment.summary_of(result))
    return result


def matching(names: Collection[str], pattern: str | None) -> set[str]:
    """Return the names of the cells that have all fields of a pattern, in which * stands for anything.

    >>> sorted(matching(["task=lattice,seed=1", "task=lattice,seed=10"], "seed=1"))
    ['task=lattice,seed=1']
    """
    if pattern is None:
        return set(names)
    wanted = pattern.split(",")
    found = {name for name in names if all(any(fnmatchcase(field, one) for field in name.split(",")) for one in wanted)}
    if not found:
        fields = dict.fromkeys(field.partition("=")[0] for name in names for field in name.split(","))
        raise ValueError(f"no cell matches {pattern!r}; this experiment's cells have the fields {', '.join(fields)}.")
    return found


def device_for(experiment: Experiment[Any, Any], wanted: str | None, engine: str = "local") -> str | None:
    """Return where an experiment computes; None where the engine decides later. Raise where it cannot."""
    device = ENGINES[engine].choose_device(wanted)
    if experiment.accelerated or device == "cpu":
        return device
    if wanted is None:
        return "cpu"
    raise ValueError(f"`{experiment.name}` computes on the CPU only, got device {wanted!r}; leave `device` out.")
