"""`harmax run` and `harmax reproduce`."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from harmax.cli.usage import UsageError, check_folder, checking_usage, parse_seeds, print_json
from harmax.environment import choose_device
from harmax.errors import DamagedError, unknown
from harmax_lab.cli.progress import ShowProgress
from harmax_lab.experiments import EXPERIMENTS, all_experiments, find_experiment, run
from harmax_lab.kit.claims import verdict_words
from harmax_lab.kit.engine import ENGINES, device_for, matching
from harmax_lab.kit.store import Run
from harmax_lab.kit.variants import changes_of, in_words, parse_changes
from harmax_lab.report import write_report


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What both verbs are told."""

    smoke: bool = False
    """Only check that everything works; takes seconds per experiment."""
    full: bool = False
    """The paper's full settings instead of the quick ones."""
    folder: Path = Path("runs")
    """Where run folders live."""
    device: str | None = None
    """Where to compute: cpu, cuda, cuda:1. Left out: a GPU where there is one and the experiment can use it."""

    def profile(self) -> str:
        """Return the profile that is asked for; refuse a folder that cannot be one."""
        check_folder(self.folder)
        if self.smoke and self.full:
            raise ValueError("`--smoke` and `--full` exclude each other; give one of them.")
        return "smoke" if self.smoke else "full" if self.full else "quick"


@dataclass(frozen=True, kw_only=True)
class RunExperiment(Flags):
    """Run one experiment, or what is left of it. Finished cells are never run twice."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """Name of an experiment from `harmax list`, or a place in the paper ("Fig. 4, left", "Sec. 3.5")."""
    set: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="FIELD=VALUE")] = ()
    """Another value for a setting (exponent=4); may be given several times. The run is a variant, with a folder of its
    own. A wrong name lists the settings."""
    seeds: str | None = None
    """Seeds other than the profile's: how many (5), or which ones (3,7,9)."""
    cells: str | None = None
    """Run only cells with these fields (dataset=cifar10,stage=final; * is anything), so that processes share a run."""
    engine: str = "local"
    """Where the work runs. local: in this process. ray: on all cores or GPUs of this machine or of a Ray cluster."""
    json: bool = False
    """Print the run's summary as JSON."""

    def __call__(self) -> int:
        """Run, and print the verdicts."""
        with checking_usage():
            profile = self.profile()
            seeds = parse_seeds(self.seeds)
            experiment = find_experiment(self.name)
            changes = parse_changes(self.set)
            spec = experiment.resolve(profile, seeds, changes)
            matching([cell.name for cell in experiment.work.cells(spec)], self.cells)
            if self.engine not in ENGINES:
                raise UsageError(unknown("engine", self.engine, ENGINES))
            device_for(experiment, self.device, self.engine)
        with ShowProgress() as progress:
            result = run(
                experiment,
                engine=self.engine,
                seeds=seeds,
                changes=changes,
                figures=True,
                profile=profile,
                folder=self.folder,
                device=self.device,
                cells=self.cells,
                progress=progress,
            )
        complain(result)
        if self.json:
            print_json({**(result.summary or {}), "folder": str(result.folder)})
        else:
            print_run(result)
        return 1 if result.failed or result.damaged else 0


@dataclass(frozen=True, kw_only=True)
class Reproduce(Flags):
    """Run the quick profile of every experiment, then write the report; its path is printed last."""

    def __call__(self) -> int:
        """Run everything, and print verdicts and the report's path."""
        with checking_usage():
            profile = self.profile()
            choose_device(self.device)
            for experiment in EXPERIMENTS.values():
                experiment.resolve(profile)  # which looks for data sets: better refused now than between two runs
        status = 0
        for name, experiment in EXPERIMENTS.items():
            try:
                with ShowProgress() as progress:
                    result = run(
                        name,
                        profile=profile,
                        folder=self.folder,
                        device=self.device if experiment.work.accelerated else None,
                        retry=experiment.source is None,  # the source has just had its second chance
                        progress=progress,
                    )
            except DamagedError as error:
                print(f"harmax: {error}", file=sys.stderr)
                status = 1
                continue
            if experiment.source is None:
                complain(result)
            print_run(result)
            status = 1 if result.failed or result.damaged else status
        print(write_report(all_experiments().values(), self.folder).path)
        return status


def complain(run: Run) -> None:
    """Print on standard error which cells failed or are damaged, and what to do; each reason once."""
    trained = run.home.parent.name
    failed: dict[str, list[str]] = {}
    for name, error in run.failed.items():
        failed.setdefault(reason_of(error), []).append(name)
    for reason, (first, *others) in failed.items():
        more = f" and {len(others)} other{'s' * (len(others) > 1)}" if others else ""
        print(f"harmax: {trained}, cell {first}{more} failed: {reason}", file=sys.stderr)
    for damage in run.damaged:
        print(f"harmax: damaged and left alone: {damage}; delete it to run it again.", file=sys.stderr)


def reason_of(error: str) -> str:
    """Return the line of a traceback that says what went wrong: the first one after the last place in the code.

    >>> reason_of('Traceback (most recent call last):\\n  File "x", line 1\\nValueError: no\\nSearch for it\\n')
    'ValueError: no'
    """
    lines = error.strip().splitlines()
    places = [number for number, line in enumerate(lines[:-1]) if line.startswith("  ")]
    return lines[places[-1] + 1 if places else -1]


def print_run(run: Run) -> None:
    """Print the verdicts of a run."""
    origin = "" if run.source is None else f" of {run.home.parent.name}"
    counts = f"{len(run.done)} of {len(run.cells)} cells{origin} done, {len(run.failed)} failed"
    variant = in_words(changes_of(run))
    print(f"{run.experiment} ({run.profile}{', variant ' * bool(variant)}{variant}): {counts}")
    claims = {claim.id: claim for claim in find_experiment(run.experiment).claims}
    for verdict in (run.summary or {}).get("verdicts", []):
        words = verdict_words(verdict["verdict"], claims[verdict["claim"]])
        print(f"  {words:<14}  {verdict['claim']}: {verdict['sentence']}")
    print(f"  {run.folder}")
    if drawn := sorted(path.name for path in run.figures.glob("*.png")):
        print(f"  figures: {', '.join(drawn)} in {run.figures}")
