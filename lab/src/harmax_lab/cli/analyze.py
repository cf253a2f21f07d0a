"""`harmax analyze`: what the stored embeddings of the algorithmic runs show, as numbers or as a film."""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from harmax.analysis import bootstrap_interval, explained_variance, participation_ratio
from harmax.cli.usage import UsageError, checking_usage, print_json
from harmax.errors import unknown
from harmax_lab.algorithmic import anchors, runs
from harmax_lab.algorithmic.film import check_output, median_seed
from harmax_lab.algorithmic.measures import last_embedding, measure
from harmax_lab.algorithmic.protocols import HEADS
from harmax_lab.algorithmic.training import RunCell, task_of
from harmax_lab.algorithmic.watch import Watched
from harmax_lab.cli.watch import show
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.experiment import PROFILES
from harmax_lab.kit.store import Run, open_runs
from harmax_lab.kit.tables import yes_or_no
from harmax_lab.models import MODELS
from harmax_lab.tasks import PROTOCOLS, TASKS, audit_table

SOURCE = runs.EXPERIMENT
CHOICES: dict[str, Iterable[str]] = {"task": TASKS, "model": MODELS, "protocol": PROTOCOLS, "profile": PROFILES}
Measures = dict[str, Any] | None  # of a run; None where it diverged


@dataclass(frozen=True)
class Analyze:
    """Measure the stored embeddings of `algorithmic`, standard beside harmonic, or make a film of one pair."""

    task: str | None = None
    """One task instead of all, for example `modular_addition`."""
    model: str | None = None
    """mlp or transformer instead of both."""
    protocol: str | None = None
    """authors or matched instead of both."""
    seed: int | None = None
    """One seed; without it medians over all, with 95 % intervals."""
    profile: str | None = None
    """smoke, quick or full; the most thorough run there is if left out."""
    folder: Path = Path("runs")
    """Where run folders live."""
    animate: Path | None = None
    """Write a film of one task's tokens over training to this .gif, .mp4 or (last frame) .png, or an explorer page of
    all its runs to this .html. Left open: MLPs, the matched protocol, and for a film of each loss the run that passes
    the test at the median time."""
    audit: bool = False
    """Print how much of each task's test is in its training set, over the authors' 20 seeds; needs no runs."""
    json: bool = False
    """Print every run's measures, or the audit, as JSON."""

    def __call__(self) -> int:
        """Measure and print, animate, or audit the data."""
        if self.audit:
            (print_json if self.json else print_audit)(audit_table(anchors.SEEDS))
            return 0
        with checking_usage():
            self._check()
            run = self._find_run()
            chosen = self._choose(run)
        if self.animate is not None:
            self._animate(self.animate, run, chosen)
            return 0
        found = {cell: measured(run, cell) for cell in chosen}
        if self.json:
            rows = [{**asdict(cell), "measures": measures} for cell, measures in found.items()]
            print_json({"folder": str(run.folder), "profile": run.profile, "runs": rows})
        else:
            print_tables(found)
            print(f"{run.profile} profile, {run.folder}", file=sys.stderr)
        return 0

    def _check(self) -> None:
        for name, known in CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in known:
                raise ValueError(unknown(f"--{name}", value, known))
        if self.animate is None:
            return
        check_output(self.animate, "--animate")
        if self.task is None:
            raise ValueError(f"`--animate` must come with `--task`, got none; choose one of {', '.join(TASKS)}.")
        if self.json:
            raise ValueError("`--animate` and `--json` must not come together, got both; give one of them.")

    def _find_run(self) -> Run:
        stored = open_runs(self.folder).query(experiment=SOURCE.name, profile=self.profile)
        current = [run for run in stored if run.config["version"] == SOURCE.version and run.profile in PROFILES]
        known = [run for run in current if run.done]
        if not known:
            wanted = f"a {self.profile} run" if self.profile else "a run"
            flag = {"smoke": " --smoke", "full": " --full"}.get(self.profile or "", "")
            raise ValueError(
                f"`--folder` must hold {wanted} of `{SOURCE.name}` made by this version, got {str(self.folder)!r}, "
                f"which has none; make one with `harmax run {SOURCE.name}{flag}`."
            )
        return max(known, key=lambda run: (PROFILES.index(run.profile), len(run.done)))

    def _choose(self, run: Run) -> list[RunCell]:
        finished = set(run.done)
        cells = [cell for cell in SOURCE.work.cells(SOURCE.load_spec(run.config["spec"])) if cell.name in finished]
        for name in ("task", "model", "protocol", "seed"):
            wanted = getattr(self, name)
            there = dict.fromkeys(getattr(cell, name) for cell in cells)
            if wanted is not None and wanted not in there:
                raise ValueError(
                    f"`--{name}` must be one that has finished, {', '.join(map(str, there))}, got {wanted}; "
                    f"finish the others with `harmax run {SOURCE.name}`."
                )
            cells = [cell for cell in cells if wanted in (None, getattr(cell, name))]
        return cells

    def _animate(self, output: Path, run: Run, cells: list[RunCell]) -> None:
        model, protocols = self.model or "mlp", [self.protocol] if self.protocol else sorted(PROTOCOLS, reverse=True)
        for protocol in protocols:  # matched first: its models are alike, and no test row is a training row
            own = {head: self._by_seed(cells, protocol, model, head) for head in HEADS}
            if all(own.values()):
                break
        else:
            raise UsageError(
                f"`--animate` must find a standard and a harmonic {model}, got {len(cells)} finished runs and no pair; "
                f"finish them with `harmax run {SOURCE.name}`."
            )
        with checking_usage():
            watched = []
            for head, seeds in own.items():
                found = {seed: run.read(cell.name) for seed, cell in seeds.items()}
                watched.append(Watched((model, head), found, median_seed(found)))
            task = task_of(next(iter(own["linear"].values())))
        show(task, watched, output)
        for side in watched:
            print(f"{MODEL_STYLES[side.arm].label}: {side.sentence}", file=sys.stderr)

    def _by_seed(self, cells: list[RunCell], protocol: str, model: str, head: str) -> dict[int, RunCell]:
        wanted = (protocol, model, head)
        return {cell.seed: cell for cell in cells if (cell.protocol, cell.model, cell.head) == wanted}


def print_audit(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print an audit of the data, means over seeds."""
    table = Table(title="Rows, means over seeds; leak: test rows that are training rows", title_justify="left")
    for column in ("protocol", "task", "train", "facts", "test", "leak", "theirs"):
        table.add_column(column, justify="left" if column in ("protocol", "task") else "right", no_wrap=True)
    for row in rows:
        theirs = f"{anchors.LEAK[row['task']]:.0%}" if row["protocol"] == "authors" else ""
        counts = (f"{row[name]:.0f}" for name in ("train_rows", "train_facts", "test_rows"))
        table.add_row(row["protocol"], runs.TITLES[row["task"]], *counts, f"{row['leak']:.1%}", theirs)
    Console().print(table)


def measured(run: Run, cell: RunCell) -> Measures:
    """Measure a run's last embedding."""
    embedding = last_embedding(run.read(cell.name))
    if embedding is None:
        return None
    shape = {"explained variance": explained_variance(embedding), "participation ratio": participation_ratio(embedding)}
    return {**shape, **measure(task_of(cell).structure, embedding)}


def print_tables(found: Mapping[RunCell, Measures]) -> None:
    """Print a table per task, protocol and body: measures down, standard and harmonic across."""
    # A pipe has no width of its own, and a narrower table would lose its numbers.
    console = Console() if sys.stdout.isatty() else Console(width=120)
    bodies = dict.fromkeys((cell.task, cell.protocol, cell.model) for cell in found)
    for task, protocol, model in bodies:
        names, whole = [], []
        for head in HEADS:
            arm = (task, protocol, model, head)
            every = [one for cell, one in found.items() if (cell.task, cell.protocol, *cell.arm) == arm]
            whole.append([one for one in every if one is not None])
            lost = len(every) - len(whole[-1])
            count = f"{len(every)} run{'s' * (len(every) != 1)}" + f", {lost} diverged" * bool(lost)
            names.append(f"{MODEL_STYLES[model, head].label}, {count}")
        table = Table("", *names, title=f"{runs.TITLES[task]}, {protocol} protocol", title_justify="left")
        for key in next((some[0] for some in whole if some), ()):
            table.add_row(key, *(_over_seeds([one[key] for one in some]) for some in whole))
        console.print(table)


def _over_seeds(values: list[Any]) -> str:
    if not values:
        return ""
    if isinstance(values[0], bool):
        return f"{sum(values)} of {len(values)}" if len(values) > 1 else yes_or_no(values[0])
    if isinstance(values[0], str | int):
        ((value, count),) = Counter(values).most_common(1)
        return f"{value} ({count} of {len(values)})" if len(values) > 1 else str(value)
    return f"{values[0]:.4g}" if len(values) == 1 else str(bootstrap_interval(values))
