"""Where work runs: `run` resolves an experiment, opens its folder, and hands the pending cells to an engine."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harmax.engine.local import Event, execute
from harmax.experiments import EXPERIMENTS
from harmax.experiments.spec import Experiment
from harmax.extras import needs
from harmax.functional import unknown
from harmax.store import Run

ENGINES: dict[str, Callable[..., None]] = {
    "local": execute,
}

__all__ = ["ENGINES", "Event", "find_experiment", "run"]


def run(
    experiment: str | Experiment[Any, Any],
    *,
    engine: str = "local",
    seeds: Sequence[int] | int | None = None,
    smoke: bool = False,
    profile: str | None = None,
    folder: Path | str = "runs",
    progress: Callable[[Event], None] | None = None,
) -> Run:
    """Run an experiment, or what is left of it, and return its run folder.

    Finished cells are read, not computed again; failed ones are tried again. An interrupt leaves a folder from
    which the same call goes on.

    Args:
        experiment: a name in `EXPERIMENTS`, or an `Experiment` of your own.
        engine: a name in `ENGINES`.
        seeds: other seeds than the profile's; a number stands for 0, 1, ...
        smoke: short for `profile="smoke"`.
        profile: "smoke", "quick" (the default) or "full".
        folder: where run folders live.
        progress: called with an `Event` whenever there is something to tell.
    """
    if smoke and profile not in (None, "smoke"):
        raise ValueError(f"`profile` must be 'smoke' or None with `smoke=True`, got {profile!r}; give one of the two.")
    with needs("run"):
        import safetensors  # noqa: F401  (before the work, not after the first cell of it)
    chosen = find_experiment(experiment) if isinstance(experiment, str) else experiment
    if engine not in ENGINES:
        raise ValueError(unknown("engine", engine, ENGINES))
    profile = "smoke" if smoke else profile or "quick"
    spec = chosen.resolve(profile, seeds)
    result = Run.create(
        folder,
        experiment=chosen.name,
        version=chosen.version,
        profile=profile,
        spec=asdict(spec),
        cells={cell.name: asdict(cell) for cell in chosen.cells(spec)},
        overrides={} if seeds is None else {"seeds": spec.seeds},
    )
    if result.pending:
        result.record_environment()
        ENGINES[engine](chosen, spec, result, progress or (lambda event: None))
    result.write_summary(chosen.summary_of(result))
    return result


def find_experiment(name: str) -> Experiment[Any, Any]:
    """Return the experiment of that name, or say which names are near."""
    if name not in EXPERIMENTS:
        raise ValueError(unknown("experiment", name, EXPERIMENTS))
    return EXPERIMENTS[name]
