"""How much data it takes to generalize: test accuracy against the share of the rows that is trained on (Fig. 3 b).

    harmax run data_efficiency            MLPs, few fractions, cut short: about a minute on two CPU cores
    harmax run data_efficiency --full     all models, 9 fractions, 3 seeds; meant for a GPU

The paper says that it shows the mean of three seeds; the authors' figures hold one, 66, which is one of our five.
Runs of all fractions are trained as one ensemble: those with fewer rows wait for the others at the end of each epoch.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from harmax.analysis import bootstrap_interval
from harmax.figures import Picture
from harmax_lab.algorithmic import anchors, runs
from harmax_lab.algorithmic.anchors import HARMONIC_MLP, STANDARD_MLP
from harmax_lab.algorithmic.protocols import HEADS
from harmax_lab.algorithmic.runs import ARMS, TITLES
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding, at_least
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.experiment import Context, Experiment, Spec, Work
from harmax_lab.kit.results import Results, where
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table, combinations
from harmax_lab.tasks import PROTOCOLS, TASKS, find_task

REACHED, LEAST_SEEDS = 0.9, 3
AUTHORS_FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9)
TOLERANCE, SHARE_WITHIN = 0.1, 0.9
BATCH_SIZE = 32
KEPT_EVERY = 50  # epochs: the curves are looked at, but only their ends are judged
INPUTS = {task: find_task(task).inputs for task in TASKS}
BODIES = {"mlp": "MLP", "transformer": "transformer"}
AUTHORS: dict[tuple[str, tuple[str, str]], dict[float, float]] = {
    key: dict(zip(AUTHORS_FRACTIONS, values, strict=True))
    for key, values in {
        ("lattice", STANDARD_MLP): (0.10, 0.25, 0.44, 1, 1, 1, 1, 1),
        ("lattice", HARMONIC_MLP): (0.96, 1, 1, 1, 1, 1, 1, 1),
        ("modular_addition", STANDARD_MLP): (0.08, 0.16, 0.25, 0.32, 0.60, 1, 1, 1),
        ("modular_addition", HARMONIC_MLP): (0.09, 0.18, 0.26, 1, 1, 1, 1, 1),
        ("equivalence", STANDARD_MLP): (0.27, 0.38, 0.65, 0.88, 1, 1, 1, 1),
        ("equivalence", HARMONIC_MLP): (0.34, 0.52, 0.73, 0.93, 1, 1, 1, 1),
        ("genealogy", STANDARD_MLP): (0.28, 0.46, 0.59, 0.67, 0.82, 0.87, 0.90, 0.89),
        ("genealogy", HARMONIC_MLP): (0.29, 0.54, 0.76, 0.85, 0.96, 1, 1, 0.99),
        ("permutation", STANDARD_MLP): (0.01, 0.01, 0.01, 0.00, 0.03, 0.15, 1, 1),
        ("permutation", HARMONIC_MLP): (0.02, 0.02, 0.04, 0.03, 0.07, 1, 1, 1),
    }.items()
}
"""One seed, last epoch, by train fraction."""


@dataclass(frozen=True, kw_only=True)
class EfficiencySpec(Spec):
    """Settings of the runs; what a protocol fixes is in protocols.py."""

    protocols: tuple[str, ...] = PROTOCOLS
    tasks: tuple[str, ...] = tuple(TASKS)
    models: tuple[str, ...] = tuple(BODIES)
    fractions: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    mlp_epochs: int = anchors.EPOCHS
    transformer_epochs: int = anchors.LONG_EPOCHS
    snapshots: ClassVar[int] = 3

    @property
    def arms(self) -> tuple[tuple[str, str], ...]:
        """The models with either head, in the order of legends."""
        return tuple(arm for arm in ARMS if arm[0] in self.models)

    def epochs(self, task: str, model: str) -> int:
        """Return how long a model is trained on a task."""
        return self.mlp_epochs if model == "mlp" else self.transformer_epochs


def cells(spec: EfficiencySpec) -> list[RunCell]:
    """List every protocol, task, model, fraction and seed."""
    fields = {"protocol": spec.protocols, "task": spec.tasks, "arm": spec.arms, "fraction": spec.fractions}
    every = combinations(**fields, seed=spec.seeds)
    return [RunCell(at.protocol, at.task, at.arm[0], at.arm[1], at.fraction, at.seed) for at in every]


def run_cells(spec: EfficiencySpec, group: Sequence[RunCell], context: Context) -> Iterator[tuple[RunCell, CellResult]]:
    """Train the runs of one protocol, as many together as share a shape, and thin their curves."""
    for cell, result in runs.run_cells(spec, group, context):
        # How long a run waits depends on its company, which is another one after an interruption: the table tells it.
        metrics = {name: value for name, value in result.metrics.items() if name != "waste"}
        yield cell, replace(thinned(result), metrics=metrics)


def thinned(result: CellResult) -> CellResult:
    """Keep every 50th epoch and the last, and which they are, as `epoch`."""
    last = len(result.curves["test_accuracy"]) - 1
    epoch = np.unique([*range(0, last + 1, KEPT_EVERY), last])
    curves = {name: curve[epoch] for name, curve in result.curves.items()}
    return replace(result, curves={"epoch": epoch.astype(np.int64), **curves})


def measure(spec: EfficiencySpec, cell: RunCell, result: CellResult) -> dict[str, float]:
    """Return the last test accuracy (a diverged run has learned nothing), and the steps of an epoch."""
    learned = result.metrics["diverged_at"] is None
    return {
        "accuracy": float(result.curves["test_accuracy"][-1]) if learned else 0.0,
        "steps": math.ceil(result.metrics["train_rows"] / BATCH_SIZE),
    }


def means(results: Results) -> dict[float, float]:
    """Return the mean last test accuracy by train fraction; fractions without a finished run are left out."""
    fractions = sorted(results.groups("train_fraction").items())
    return {fraction: float(np.mean(own.metric("accuracy").values)) for fraction, own in fractions}


def fraction_needed(accuracies: Mapping[float, float]) -> float | None:
    """Return the smallest fraction with an accuracy of 0.9 or more, None if there is none.

    >>> fraction_needed({0.2: 0.85, 0.4: 0.95, 0.6: 1.0})
    0.4
    """
    return next((fraction for fraction, accuracy in accuracies.items() if accuracy >= REACHED), None)


def _by_task(needed: Mapping[str, Sequence[float | None]]) -> str:
    def words(fraction: float | None) -> str:
        return "none" if fraction is None else f"{fraction:g}"

    return ", ".join(f"{TITLES[task].lower()} {words(one)} against {words(two)}" for task, (one, two) in needed.items())


def _judge_fraction(results: Results) -> Finding:
    """Judge task by task: a larger fraction breaks the claim, a smaller one in at least one task is needed.

    Three seeds have no interval worth the name. A difference of the means counts as clear where every seed taken alone
    shows it; a verdict that depends on a difference that is not clear is not decided.
    """

    def need(own: Results) -> list[float | None]:
        return [fraction_needed(means(own.where(head=head))) for head in ("harmonic", "linear")]

    def sign(needed: list[float | None]) -> int:
        harmonic, standard = (np.inf if one is None else one for one in needed)  # no fraction at all is the most
        return int(harmonic > standard) - int(harmonic < standard)

    tasks = results.groups("task")
    needed = {task: need(own) for task, own in tasks.items()}
    worse, better = ({task for task in tasks if sign(needed[task]) == wanted} for wanted in (1, -1))
    clear = {task for task, own in tasks.items() if len({sign(need(one)) for one in own.groups("seed").values()}) == 1}
    refuted, supported = not better or clear & worse, not worse and clear & better
    return Finding(
        False if refuted else True if supported else None,
        f"Fraction needed, harmonic against standard: {_by_task(needed)}. Smaller in {len(better)}, larger in "
        f"{len(worse)} of {len(needed)} tasks; on every seed alike in {len(clear & better)} and {len(clear & worse)} "
        "of these.",
        {f"needed_{task}": {"harmonic": one, "standard": two} for task, (one, two) in needed.items()},
    )


def _judge_area(results: Results) -> Finding:
    by_task: dict[str, list[float]] = {}
    for (task, _), own in results.groups("task", "seed").items():
        harmonic, standard = (float(np.mean(own.where(head=head).metric("accuracy").values)) for head in HEADS[::-1])
        by_task.setdefault(task, []).append(harmonic - standard)
    differences = [one for task in by_task.values() for one in task]
    found = bootstrap_interval(differences, statistic="mean")
    every = {task: float(np.mean(one)) for task, one in by_task.items()}
    words = ", ".join(f"{TITLES[task].lower()} {mean:+.3f}" for task, mean in every.items())
    return Finding(
        found.above(0),
        f"Harmonic minus standard, mean and 95 % interval over {len(differences)} pairs of task and seed: {found}. By "
        f"task: {words}.",
        {"difference": found._asdict(), **{f"difference_{task}": mean for task, mean in every.items()}},
    )


def _judge_authors(results: Results) -> Finding:
    if not (set(AUTHORS_FRACTIONS) <= set(results.spec.fractions) and set(TASKS) <= set(results.spec.tasks)):
        return Finding(None, "The authors' points need all their fractions and tasks.", {})
    off = {}
    for (task, arm), known in AUTHORS.items():
        own = results.where(task=task, arm=arm).groups("train_fraction")
        for fraction, value in known.items():
            ours, words = own[fraction].metric("accuracy"), f"{MODEL_STYLES[arm].label} on {TITLES[task].lower()}"
            off[f"{words} at {fraction:g}"] = max(min(ours) - value, value - max(ours), 0.0)
    near = sum(distance <= TOLERANCE for distance in off.values())
    far = sorted((words for words in off if off[words] > TOLERANCE), key=lambda words: -off[words])
    examples = "; ".join(f"{words}, {off[words]:.2f} away" for words in far[:4])
    return Finding(
        near >= SHARE_WITHIN * len(off),
        f"{near} of {len(off)} do.{' Farthest: ' + examples + '.' if far else ''}",
        {"points": len(off), "near": near, "farthest": max(off.values())},
    )


def _enough(results: Results) -> str:
    spec, models = results.spec, {cell.model for cell in results.wanted}
    least = min(getattr(spec, f"{model}_epochs") for model in models)
    if least < anchors.EPOCHS:
        return f"Only {least} of the authors' {anchors.EPOCHS} epochs were run."
    missing = ", ".join(str(fraction) for fraction in AUTHORS_FRACTIONS if fraction not in spec.fractions)
    return at_least(seeds=LEAST_SEEDS)(results) or (f"Fractions {missing} were not run." if missing else "")


def _claims_of(model: str, protocol: str) -> tuple[Claim, Claim]:
    known, needs = "Fig. 3 b: the harmonic models need less data.", where(protocol=protocol, model=model)
    if model == "mlp":
        arms = (HARMONIC_MLP, STANDARD_MLP)
        needed = _by_task({task: [fraction_needed(AUTHORS[task, arm]) for arm in arms] for task in TASKS})
        known += f" Fraction needed in the authors' figures, harmonic against standard MLP: {needed}."
    return (
        Claim(
            f"fraction_{model}_{protocol}",
            f"For a test accuracy of {REACHED} the harmonic {BODIES[model]} needs a larger train fraction than the "
            f"standard one in no task, and a smaller one in some ({protocol} protocol).",
            known,
            control=protocol == "matched",
            needs=needs,
            judge=_judge_fraction,
            enough=_enough,
        ),
        Claim(
            f"area_{model}_{protocol}",
            f"Averaged over train fractions the harmonic {BODIES[model]} has the higher test accuracy ({protocol} "
            "protocol).",
            "Not reported as a number.",
            control=True,
            needs=needs,
            judge=_judge_area,
            enough=_enough,
        ),
    )


CLAIMS = (
    *(claim for protocol in PROTOCOLS for model in BODIES for claim in _claims_of(model, protocol)),
    Claim(
        "authors_points",
        f"The authors' 80 accuracies come back: nine in ten lie within {TOLERANCE} of the range of our seeds (authors "
        "protocol).",
        "MLPs, five tasks, eight fractions, one seed.",
        needs=where(protocol="authors", model="mlp"),
        judge=_judge_authors,
        enough=_enough,
    ),
)


def tables(results: Results) -> list[Table]:
    """Tabulate accuracies, the authors' below ours."""
    rows: list[dict[str, Any]] = []

    def add(at: Any, label: str, accuracies: Mapping[float, float], *counts: float | None) -> None:
        row = {"protocol": at.protocol, "task": TITLES[at.task], "model": label}
        row |= {f"{fraction:g}": accuracies.get(fraction) for fraction in results.spec.fractions}
        row[f"reaches {REACHED} at"] = fraction_needed(accuracies)
        rows.append(row | dict(zip(("runs", "diverged", "steps waited, %"), counts, strict=True)))

    for at in runs.places(results, arm=results.spec.arms):
        label, steps = MODEL_STYLES[at.arm].label, at.own.metric("steps").values
        # A run waits for those with more rows, of the same model and with questions of the same length.
        alike = tuple(task for task in TASKS if INPUTS[task] == INPUTS[at.task])
        most = max(results.where(protocol=at.protocol, arm=at.arm, task=alike).metric("steps"), default=0)
        waited = 100 * float(np.mean([1 - count / most for count in steps])) if steps else None
        add(at, label, means(at.own), len(at.own), len(at.own.metric("diverged_at").present), waited)
        if at.protocol == "authors" and (at.task, at.arm) in AUTHORS:
            add(at, f"{label}, the authors' own", AUTHORS[at.task, at.arm], 1, None, None)
    return [Table("Test accuracy at the last epoch against the train fraction: mean over seeds", tuple(rows))]


def figures(results: Results) -> dict[str, Picture]:
    """Draw accuracy against the fraction: a row per protocol and body, since four bands would hide one another."""
    if not results:
        return {}
    spec, cross = results.spec, drawing.mark_handle("authors' figures", "x", "#555555")
    rows = {(p, model): f"{BODIES[model]}s, {p}" for p in spec.protocols for model in spec.models}
    figure, panels = drawing.facets(
        rows,
        {task: TITLES[task] for task in spec.tasks},
        size=(10, 2.05 * len(rows) + 0.6),
        xlabel="train fraction",
        ylabel="test accuracy",
        handles=[*(drawing.model_handle(*arm) for arm in spec.arms), *[cross] * (("authors", "mlp") in rows)],
        sharex=True,
        sharey=True,
    )
    for ((protocol, model), task), axes in panels.items():
        axes.axhline(REACHED, color="#999999", linewidth=0.8, linestyle=":")
        for arm in ((model, head) for head in HEADS):
            style, own = MODEL_STYLES[arm], results.where(protocol=protocol, task=task, arm=arm)
            if own:
                middle, groups = means(own), own.groups("train_fraction")
                look: Any = {"marker": style.marker, "markersize": 4, "markeredgewidth": 0, "linewidth": 1.4}
                axes.plot(*zip(*middle.items(), strict=True), color=style.color, linestyle=style.line, **look)
                low, high = ([end(groups[one].metric("accuracy")) for one in middle] for end in (min, max))
                axes.fill_between(list(middle), low, high, color=style.color, alpha=0.15, linewidth=0)
            if protocol == "authors" and (task, arm) in AUTHORS:
                axes.plot(*zip(*AUTHORS[task, arm].items(), strict=True), "x", c=style.color, markersize=5, zorder=4)
        axes.set(xlim=(0.03, 0.97), ylim=(-0.04, 1.06), xticks=(0.1, 0.3, 0.5, 0.7, 0.9), yticks=(0, 0.5, 1))
    seeds = len(spec.seeds)
    line = f"the mean of {seeds} seeds, a band their range" if seeds > 1 else "one seed"
    caption = (
        f"Test accuracy at the last epoch against the train fraction. A line is {line}. Crosses: the authors' "
        f"figures, one seed, in the colors of the models. Dotted: {REACHED}."
    )
    return {"data_efficiency": Picture(figure, caption)}


FULL = EfficiencySpec(seeds=(66, 67, 68, 69, 70))
MLPS = replace(FULL, seeds=(66,), models=("mlp",))
EXPERIMENT = Experiment(
    name="data_efficiency",
    title="How much data it takes to generalize",
    figure="Fig. 3 b",
    claims=CLAIMS,
    profiles={
        "smoke": replace(MLPS, tasks=("modular_addition", "permutation"), fractions=(0.3, 0.8), mlp_epochs=3),
        "quick": replace(MLPS, fractions=(0.2, 0.4, 0.8), mlp_epochs=150),
        "full": FULL,
    },
    work=Work(cells, run_cells, group=lambda cell: cell.protocol, accelerated=True),
    measure=measure,
    tables=tables,
    figures=figures,
)
