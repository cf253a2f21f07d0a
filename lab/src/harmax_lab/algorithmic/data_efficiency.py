"""How much data it takes to generalize: test accuracy against the share of the rows that is trained on (Fig. 3 b).

    harmax run data_efficiency            MLPs, few fractions, cut short: about a minute on two CPU cores
    harmax run data_efficiency --full     all models, 9 fractions, 3 seeds; meant for a GPU

The paper says that it shows the mean of three seeds; the authors' figures hold one, 66, which is one of ours.
Runs of all fractions are trained as one ensemble: those with fewer rows wait for the others at the end of each epoch.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.analysis import bootstrap_interval
from harmax.figures import Picture
from harmax_lab.algorithmic import anchors
from harmax_lab.algorithmic.protocols import HEADS, settings
from harmax_lab.algorithmic.runs import ARMS, TITLES
from harmax_lab.algorithmic.training import RunCell, task_of, train
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding, Verdict
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.experiment import Context, Experiment, Spec, Summary, conclude
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table
from harmax_lab.tasks import PROTOCOLS, TASKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Arm = tuple[str, str]
Results = Mapping[RunCell, CellResult]

REACHED = 0.9
AUTHORS_SEED, LEAST_SEEDS = 66, 3
AUTHORS_FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9)
FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
TOLERANCE, SHARE_WITHIN = 0.1, 0.9
BATCH_SIZE = 32
KEPT_EVERY = 50  # epochs: the curves are looked at, but only their ends are judged
BODIES = {"mlp": "MLP", "transformer": "transformer"}
# One seed, last epoch, at AUTHORS_FRACTIONS.
AUTHORS: dict[tuple[str, Arm], tuple[float, ...]] = {
    ("lattice", anchors.STANDARD_MLP): (0.10, 0.25, 0.44, 1, 1, 1, 1, 1),
    ("lattice", anchors.HARMONIC_MLP): (0.96, 1, 1, 1, 1, 1, 1, 1),
    ("modular_addition", anchors.STANDARD_MLP): (0.08, 0.16, 0.25, 0.32, 0.60, 1, 1, 1),
    ("modular_addition", anchors.HARMONIC_MLP): (0.09, 0.18, 0.26, 1, 1, 1, 1, 1),
    ("equivalence", anchors.STANDARD_MLP): (0.27, 0.38, 0.65, 0.88, 1, 1, 1, 1),
    ("equivalence", anchors.HARMONIC_MLP): (0.34, 0.52, 0.73, 0.93, 1, 1, 1, 1),
    ("genealogy", anchors.STANDARD_MLP): (0.28, 0.46, 0.59, 0.67, 0.82, 0.87, 0.90, 0.89),
    ("genealogy", anchors.HARMONIC_MLP): (0.29, 0.54, 0.76, 0.85, 0.96, 1, 1, 0.99),
    ("permutation", anchors.STANDARD_MLP): (0.01, 0.01, 0.01, 0.00, 0.03, 0.15, 1, 1),
    ("permutation", anchors.HARMONIC_MLP): (0.02, 0.02, 0.04, 0.03, 0.07, 1, 1, 1),
}


@dataclass(frozen=True, kw_only=True)
class EfficiencySpec(Spec):
    """Settings of the runs; what a protocol fixes is in protocols.py."""

    protocols: tuple[str, ...] = PROTOCOLS
    tasks: tuple[str, ...] = tuple(TASKS)
    models: tuple[str, ...] = tuple(BODIES)
    fractions: tuple[float, ...] = FRACTIONS
    mlp_epochs: int = anchors.EPOCHS
    transformer_epochs: int = anchors.EPOCHS
    """Ten sevenths of it on permutation composition, as in the authors' code."""

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The models with either head, in the order of legends."""
        return tuple(arm for arm in ARMS if arm[0] in self.models)

    def epochs(self, task: str, model: str) -> int:
        """Return how long a model is trained on a task."""
        if model == "mlp":
            return self.mlp_epochs
        return self.transformer_epochs * 10 // 7 if task == "permutation" else self.transformer_epochs


def cells(spec: EfficiencySpec) -> list[RunCell]:
    """List every protocol, task, model, fraction and seed."""
    return [
        RunCell(protocol, task, model, head, fraction, seed)
        for protocol in spec.protocols
        for task in spec.tasks
        for model, head in spec.arms
        for fraction in spec.fractions
        for seed in spec.seeds
    ]


def run_cells(spec: EfficiencySpec, group: Sequence[RunCell], context: Context) -> Iterator[tuple[RunCell, CellResult]]:
    """Train the runs of one protocol, as many together as share a shape, and thin their curves."""
    found = train(
        group,
        lambda cell: settings(cell.protocol, cell.model, cell.head, epochs=spec.epochs(cell.task, cell.model)),
        context,
        snapshots=3,
    )
    for cell, result in found:
        # How long a run waits depends on its company, which is another one after an interruption: `waited` tells it.
        metrics = {name: value for name, value in result.metrics.items() if name != "waste"}
        yield cell, replace(thinned(result), metrics=metrics)


def thinned(result: CellResult) -> CellResult:
    """Keep every 50th epoch and the last, and which they are, as `epoch`."""
    last = len(result.curves["test_accuracy"]) - 1
    epoch = np.unique([*range(0, last + 1, KEPT_EVERY), last])
    curves = {name: curve[epoch] for name, curve in result.curves.items()}
    return CellResult({"epoch": epoch.astype(np.int64), **curves}, result.arrays, result.metrics)


def end_accuracy(result: CellResult) -> float:
    """Return the test accuracy at the last epoch; a diverged run has learned nothing."""
    return 0.0 if result.metrics["diverged_at"] is not None else float(result.curves["test_accuracy"][-1])


def ends(results: Results, protocol: str, task: str, arm: Arm) -> dict[float, dict[int, float]]:
    """Return one model's last test accuracies by fraction, then seed; fractions without a finished run are left out."""
    found: dict[float, dict[int, float]] = {}
    for cell, result in results.items():
        if (cell.protocol, cell.task, cell.arm) == (protocol, task, arm):
            found.setdefault(cell.train_fraction, {})[cell.seed] = end_accuracy(result)
    return dict(sorted(found.items()))


def waited(results: Results) -> dict[RunCell, float]:
    """Return the share of its steps that each run waits for those with more rows, were all trained together.

    Together are the runs of one protocol and model whose questions have one length.
    """

    def company(cell: RunCell) -> tuple[object, ...]:
        return cell.protocol, cell.arm, task_of(cell).inputs

    steps = {cell: math.ceil(result.metrics["train_rows"] / BATCH_SIZE) for cell, result in results.items()}
    most: dict[tuple[object, ...], int] = {}
    for cell, count in steps.items():
        most[company(cell)] = max(most.get(company(cell), 0), count)
    return {cell: 1 - count / most[company(cell)] for cell, count in steps.items()}


def fraction_needed(accuracies: Mapping[float, Mapping[int, float]]) -> float | None:
    """Return the smallest fraction at which the mean over seeds is 0.9 or more, None if there is none.

    >>> fraction_needed({0.2: {0: 0.8, 1: 0.9}, 0.4: {0: 0.9, 1: 1.0}})
    0.4
    """
    return next((f for f, by_seed in accuracies.items() if np.mean(list(by_seed.values())) >= REACHED), None)


def _claims_of(model: str, protocol: str) -> tuple[Claim, Claim]:
    body, known = BODIES[model], "Fig. 3 b: the harmonic models need less data."
    if model == "mlp":
        needed = [f"{TITLES[task].lower()} {_authors_need(task, 0)} against {_authors_need(task, 1)}" for task in TASKS]
        known += f" Fraction needed in the authors' figures, harmonic against standard MLP: {', '.join(needed)}."
    return (
        Claim(
            f"fraction_{model}_{protocol}",
            f"For a test accuracy of {REACHED} the harmonic {body} needs a larger train fraction than the standard one "
            f"in no task, and a smaller one in some ({protocol} protocol).",
            known,
            control=protocol == "matched",
        ),
        Claim(
            f"area_{model}_{protocol}",
            f"On average over train fractions the harmonic {body} has the higher test accuracy ({protocol} protocol).",
            "Not reported as a number.",
            control=True,
        ),
    )


def _authors_need(task: str, which: int) -> str:
    arm = (anchors.HARMONIC_MLP, anchors.STANDARD_MLP)[which]
    reached = [f for f, value in zip(AUTHORS_FRACTIONS, AUTHORS[task, arm], strict=True) if value >= REACHED]
    return f"{reached[0]}" if reached else "none"


CLAIMS = (
    *(claim for protocol in PROTOCOLS for model in BODIES for claim in _claims_of(model, protocol)),
    Claim(
        "authors_points",
        f"The authors' 80 accuracies come back: nine in ten lie within {TOLERANCE} of the range of our seeds (authors "
        "protocol).",
        "MLPs, five tasks, eight fractions, one seed.",
    ),
)


def judge_fraction(results: Results, *, protocol: str, model: str) -> Finding:
    """Judge task by task: a larger fraction breaks the claim, a smaller one in at least one task is needed.

    Three seeds have no interval worth the name. A difference of the means counts as clear where every seed taken alone
    shows it; what hangs on one that is not clear is not decided.
    """
    needed: dict[str, tuple[float | None, float | None]] = {}
    clear = set()
    for task in dict.fromkeys(cell.task for cell in results):
        standard, harmonic = (ends(results, protocol, task, (model, head)) for head in HEADS)
        needed[task] = fraction_needed(harmonic), fraction_needed(standard)
        alone = [[fraction_of_seed(arm, seed) for seed in _seeds(harmonic)] for arm in (harmonic, standard)]
        if len(set(map(_sign, *alone))) == 1:
            clear.add(task)
    signs = {task: _sign(*both) for task, both in needed.items()}
    worse = [task for task, sign in signs.items() if sign > 0]
    better = [task for task, sign in signs.items() if sign < 0]
    refuted, supported = not better or clear & set(worse), not worse and clear & set(better)
    return Finding(
        False if refuted else True if supported else None,
        "Fraction needed, harmonic against standard: "
        + ", ".join(f"{TITLES[t].lower()} {_named(h)} against {_named(s)}" for t, (h, s) in needed.items())
        + f". Smaller in {len(better)}, larger in {len(worse)} of {len(needed)} tasks; on every seed alike in "
        f"{len(clear & set(better))} and {len(clear & set(worse))} of these.",
        {f"needed_{task}": {"harmonic": h, "standard": s} for task, (h, s) in needed.items()},
    )


def fraction_of_seed(accuracies: Mapping[float, Mapping[int, float]], seed: int) -> float | None:
    """Return the fraction that one seed alone needs."""
    return fraction_needed({f: {seed: by_seed[seed]} for f, by_seed in accuracies.items()})


def _seeds(accuracies: Mapping[float, Mapping[int, float]]) -> list[int]:
    return list(next(iter(accuracies.values())))


def _sign(harmonic: float | None, standard: float | None) -> int:
    """Return 1 where harmonic needs more, -1 where it needs less; None, which no fraction is enough for, is most."""
    one, two = (np.inf if fraction is None else fraction for fraction in (harmonic, standard))
    return int(one > two) - int(one < two)


def _named(fraction: float | None) -> str:
    return "none" if fraction is None else f"{fraction:g}"


def judge_area(results: Results, *, protocol: str, model: str) -> Finding:
    """Judge by the paired difference of mean accuracies over fractions: its interval over tasks and seeds."""
    by_task = {}
    for task in dict.fromkeys(cell.task for cell in results):
        standard, harmonic = (_areas(ends(results, protocol, task, (model, head))) for head in HEADS)
        by_task[task] = [harmonic[seed] - standard[seed] for seed in harmonic]
    pairs = [difference for differences in by_task.values() for difference in differences]
    found = bootstrap_interval(pairs, statistic="mean")
    return Finding(
        found.above(0),
        f"Harmonic minus standard, mean and 95 % interval over {len(pairs)} pairs of task and seed: {found}. By task: "
        + ", ".join(f"{TITLES[task].lower()} {np.mean(found):+.3f}" for task, found in by_task.items())
        + ".",
        {"difference": found._asdict(), **{f"difference_{t}": float(np.mean(d)) for t, d in by_task.items()}},
    )


def _areas(accuracies: Mapping[float, Mapping[int, float]]) -> dict[int, float]:
    return {s: float(np.mean([by_seed[s] for by_seed in accuracies.values()])) for s in _seeds(accuracies)}


def judge_authors(results: Results) -> Finding:
    """Judge by the share of the authors' points that lie near the range of our seeds."""
    off = {}
    for (task, arm), theirs in AUTHORS.items():
        ours = ends(results, "authors", task, arm)
        for fraction, value in zip(AUTHORS_FRACTIONS, theirs, strict=True):
            accuracies = list(ours[fraction].values())
            off[task, arm, fraction] = max(min(accuracies) - value, value - max(accuracies), 0.0)
    near = sum(distance <= TOLERANCE for distance in off.values())
    far = sorted((key for key in off if off[key] > TOLERANCE), key=lambda key: -off[key])
    examples = "; ".join(
        f"{MODEL_STYLES[arm].label} on {TITLES[task].lower()} at {fraction:g}, {off[task, arm, fraction]:.2f} away"
        for task, arm, fraction in far[:4]
    )
    return Finding(
        near >= SHARE_WITHIN * len(off),
        f"{near} of {len(off)} do.{' Farthest: ' + examples + '.' if far else ''}",
        {"points": len(off), "near": near, "farthest": max(off.values())},
    )


def too_short(spec: EfficiencySpec, *models: str) -> str:
    """Say why a spec cannot decide claims about these models; empty where it can."""
    lengths = {"mlp": spec.mlp_epochs, "transformer": spec.transformer_epochs}
    least = min(lengths[model] for model in models)
    if least < anchors.EPOCHS:
        return f"Only {least} of the authors' {anchors.EPOCHS} epochs were run."
    if len(spec.seeds) < LEAST_SEEDS:
        return f"Only {len(spec.seeds)} of at least {LEAST_SEEDS} seeds were run."
    missing = sorted(set(AUTHORS_FRACTIONS) - set(spec.fractions))
    return f"Fractions {', '.join(map(str, missing))} were not run." if missing else ""


def _judge(claim: str, spec: EfficiencySpec, results: Results) -> Verdict:
    if claim == "authors_points":
        own = [cell for cell in cells(spec) if (cell.protocol, cell.model) == ("authors", "mlp")]
        # Without every fraction there is nothing to hold their points against.
        wanted = own if set(AUTHORS_FRACTIONS) <= set(spec.fractions) and set(TASKS) <= set(spec.tasks) else []
        return conclude(claim, judge_authors, wanted, results, too_short=too_short(spec, "mlp"))
    what, model, protocol = claim.split("_")
    judges: dict[str, Callable[..., Finding]] = {"fraction": judge_fraction, "area": judge_area}
    wanted = [cell for cell in cells(spec) if (cell.protocol, cell.model) == (protocol, model)]
    judge = partial(judges[what], protocol=protocol, model=model)
    return conclude(claim, judge, wanted, results, too_short=too_short(spec, model))


def summarize(spec: EfficiencySpec, results: Results) -> Summary:
    """Judge every claim, and tabulate accuracies beside the authors'."""
    rows, waits = [], waited(results)
    for protocol in spec.protocols:
        for task in spec.tasks:
            for arm in spec.arms:
                rows.append(_row(spec, results, waits, protocol, task, arm))
                if protocol == "authors" and (task, arm) in AUTHORS:
                    rows.append(_authors_row(spec, task, arm))
    table = Table("Test accuracy at the last epoch against the train fraction: mean over seeds", tuple(rows))
    return Summary(tuple(_judge(claim.id, spec, results) for claim in CLAIMS), (table,))


def _row(
    spec: EfficiencySpec, results: Results, waits: Mapping[RunCell, float], protocol: str, task: str, arm: Arm
) -> dict[str, Any]:
    found = ends(results, protocol, task, arm)
    own = {cell: r for cell, r in results.items() if (cell.protocol, cell.task, cell.arm) == (protocol, task, arm)}
    means = {f: float(np.mean(list(found[f].values()))) if f in found else None for f in spec.fractions}
    return {
        "protocol": protocol,
        "task": TITLES[task],
        "model": MODEL_STYLES[arm].label,
        **{f"{fraction:g}": mean for fraction, mean in means.items()},
        f"reaches {REACHED} at": fraction_needed(found),
        "runs": len(own),
        "diverged": sum(result.metrics["diverged_at"] is not None for result in own.values()),
        "steps waited, %": 100 * float(np.mean([waits[cell] for cell in own])) if own else None,
    }


def _authors_row(spec: EfficiencySpec, task: str, arm: Arm) -> dict[str, Any]:
    theirs = dict(zip(AUTHORS_FRACTIONS, AUTHORS[task, arm], strict=True))
    return {
        "protocol": "authors",
        "task": TITLES[task],
        "model": f"{MODEL_STYLES[arm].label}, the authors' own",
        **{f"{fraction:g}": theirs.get(fraction) for fraction in spec.fractions},
        f"reaches {REACHED} at": fraction_needed({f: {AUTHORS_SEED: value} for f, value in theirs.items()}),
        "runs": 1,
        "diverged": None,
        "steps waited, %": None,
    }


def figures(spec: EfficiencySpec, results: Results) -> dict[str, Picture]:
    """Draw accuracy against the fraction, a panel a task, protocol and kind of model."""
    if not results:
        return {}
    seeds = len(spec.seeds)
    middle = f"the mean of {seeds} seeds, a band their range" if seeds > 1 else "one seed"
    caption = (
        f"Test accuracy at the last epoch against the train fraction. A line is {middle}. Crosses: the authors' "
        f"figures, one seed, in the colors of the models. Dotted: {REACHED}."
    )
    return {"data_efficiency": Picture(draw(spec, results), caption)}


def draw(spec: EfficiencySpec, results: Results) -> "Figure":
    """Draw a row a protocol and kind of model, a column a task: four bands in one panel would hide one another."""
    rows = [(protocol, model) for protocol in spec.protocols for model in spec.models]
    figure = drawing.new_figure(10, 2.05 * len(rows) + 0.6)
    grid = figure.subplots(len(rows), len(spec.tasks), sharex=True, sharey=True, squeeze=False)
    for row, (protocol, model) in zip(grid, rows, strict=True):
        for axes, task in zip(row, spec.tasks, strict=True):
            axes.axhline(REACHED, color="#999999", linewidth=0.8, linestyle=":")
            for arm in ((model, head) for head in HEADS):
                _draw_model(axes, arm, ends(results, protocol, task, arm))
                if protocol == "authors" and (task, arm) in AUTHORS:
                    color = MODEL_STYLES[arm].color
                    axes.plot(AUTHORS_FRACTIONS, AUTHORS[task, arm], "x", color=color, markersize=5, zorder=4)
            axes.set(xlim=(0.03, 0.97), ylim=(-0.04, 1.06), xticks=(0.1, 0.3, 0.5, 0.7, 0.9), yticks=(0, 0.5, 1))
        row[0].set_ylabel(f"{BODIES[model]}s, {protocol}\ntest accuracy")
    for axes, task in zip(grid[0], spec.tasks, strict=True):
        axes.set_title(TITLES[task], fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("train fraction")
    handles = [drawing.model_handle(*arm) for arm in spec.arms]
    if "authors" in spec.protocols and "mlp" in spec.models:
        handles.append(drawing.mark_handle("authors' figures", "x", "#555555"))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def _draw_model(axes: "Axes", arm: Arm, found: Mapping[float, Mapping[int, float]]) -> None:
    if not found:
        return
    style, fraction = MODEL_STYLES[arm], list(found)
    values = [list(by_seed.values()) for by_seed in found.values()]
    marks: dict[str, Any] = {"marker": style.marker, "markersize": 4, "markeredgewidth": 0, "linewidth": 1.4}
    axes.plot(fraction, [np.mean(one) for one in values], color=style.color, linestyle=style.line, **marks)
    low, high = [min(one) for one in values], [max(one) for one in values]
    axes.fill_between(fraction, low, high, color=style.color, alpha=0.15, linewidth=0)


EXPERIMENT = Experiment(
    name="data_efficiency",
    title="How much data it takes to generalize",
    figure="Fig. 3 b",
    claims=CLAIMS,
    profiles={
        "smoke": EfficiencySpec(
            seeds=(66,),
            tasks=("modular_addition", "permutation"),
            models=("mlp",),
            fractions=(0.3, 0.8),
            mlp_epochs=3,
        ),
        "quick": EfficiencySpec(seeds=(66,), models=("mlp",), fractions=(0.2, 0.4, 0.8), mlp_epochs=150),
        "full": EfficiencySpec(seeds=(66, 67, 68)),
    },
    cells=cells,
    run_cells=run_cells,
    old_summarize=summarize,
    old_figures=figures,
    group=lambda cell: cell.protocol,
    accelerated=True,
)
