"""How much data it takes to generalize: test accuracy against the share of the rows that is trained on (Fig. 3 b).

    harmax run data_efficiency            MLPs, few fractions, cut short: about a minute on two CPU cores
    harmax run data_efficiency --full     all models, 9 fractions, 5 seeds; meant for a GPU

The paper says that it shows the mean of three seeds; the authors' figures hold one, 66, which is one of our five. What
a model needs on a seed is the smallest fraction at which it ends with a test accuracy of 0.9 or more; all the data, 1,
if there is none. Runs of all fractions are trained as one ensemble: those with fewer rows wait for the others at the
end of each epoch.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from harmax.analysis import Interval
from harmax.figures import Picture
from harmax_lab.algorithmic import anchors, runs
from harmax_lab.algorithmic.anchors import HARMONIC_MLP, HARMONIC_TRANSFORMER, STANDARD_MLP, STANDARD_TRANSFORMER
from harmax_lab.algorithmic.protocols import HEADS
from harmax_lab.algorithmic.runs import ARMS, EXPONENT, TITLES
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.experiment import Context, Experiment, Spec, Work
from harmax_lab.kit.judges import Judge, both, listed, shared_level, signed
from harmax_lab.kit.results import Results, compare, interval, where
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table, combinations
from harmax_lab.kit.variants import added
from harmax_lab.paper.readings import AT_ONCE_FRACTION, MUCH_LESS, PASSED
from harmax_lab.tasks import PROTOCOLS, TASKS, find_task

ALL_THE_DATA = 1.0
AUTHORS_FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9)
TOLERANCE, SHARE_WITHIN = 0.1, 0.9
BATCH_SIZE = 32
KEPT_EVERY = 50  # epochs: the curves are looked at, but only their ends are judged
INPUTS = {task: find_task(task).inputs for task in TASKS}
BODIES = {"mlp": "MLP", "transformer": "transformer"}
AUTHORS: dict[tuple[str, tuple[str, str]], dict[float, float]] = {
    key: dict(zip(AUTHORS_FRACTIONS, values, strict=True))
    for key, values in {
        ("lattice", STANDARD_MLP): (0.096, 0.245, 0.436, 1, 1, 1, 1, 1),
        ("lattice", HARMONIC_MLP): (0.957, 1, 1, 1, 1, 1, 1, 1),
        ("lattice", STANDARD_TRANSFORMER): (0.083, 0.115, 0.181, 0.297, 0.845, 0.947, 0.895, 0.97),
        ("lattice", HARMONIC_TRANSFORMER): (0.062, 0.204, 0.961, 0.953, 0.92, 0.933, 0.97, 0.94),
        ("modular_addition", STANDARD_MLP): (0.083, 0.161, 0.246, 0.315, 0.603, 1, 1, 1),
        ("modular_addition", HARMONIC_MLP): (0.092, 0.184, 0.263, 1, 1, 1, 1, 1),
        ("modular_addition", STANDARD_TRANSFORMER): (0.096, 0.165, 0.244, 0.317, 0.978, 0.93, 0.955, 0.96),
        ("modular_addition", HARMONIC_TRANSFORMER): (0.088, 0.165, 0.194, 0.253, 0.86, 0.897, 0.955, 0.81),
        ("equivalence", STANDARD_MLP): (0.634, 0.688, 0.824, 0.942, 1, 1, 1, 1),
        ("equivalence", HARMONIC_MLP): (0.672, 0.761, 0.864, 0.963, 1, 1, 1, 1),
        ("equivalence", STANDARD_TRANSFORMER): (0.731, 0.84, 0.867, 0.98, 1, 0.993, 1, 1),
        ("equivalence", HARMONIC_TRANSFORMER): (0.698, 0.8, 0.83, 0.98, 1, 1, 1, 1),
        ("genealogy", STANDARD_MLP): (0.279, 0.456, 0.59, 0.673, 0.815, 0.873, 0.895, 0.89),
        ("genealogy", HARMONIC_MLP): (0.292, 0.535, 0.763, 0.853, 0.958, 1, 0.995, 0.99),
        ("genealogy", STANDARD_TRANSFORMER): (0.29, 0.461, 0.616, 0.697, 0.853, 0.933, 0.935, 0.96),
        ("genealogy", HARMONIC_TRANSFORMER): (0.27, 0.493, 0.634, 0.72, 0.848, 0.907, 0.875, 0.89),
        ("permutation", STANDARD_MLP): (0.006, 0.006, 0.007, 0.003, 0.03, 0.15, 1, 1),
        ("permutation", HARMONIC_MLP): (0.015, 0.015, 0.042, 0.032, 0.074, 1, 1, 1),
        ("permutation", STANDARD_TRANSFORMER): (0.017, 0.009, 0.017, 0.035, 0.784, 0.931, 0.983, 0.966),
        ("permutation", HARMONIC_TRANSFORMER): (0.002, 0.017, 0.005, 0.012, 0.121, 0.699, 0.879, 0.897),
    }.items()
}
"""One seed, last epoch, by train fraction. The panels of the authors' figure have axes of their own, without ticks;
lab/results/unexplained.md says how the numbers were read."""


@dataclass(frozen=True, kw_only=True)
class EfficiencySpec(Spec):
    """Settings of the runs; what a protocol fixes is in protocols.py."""

    protocols: tuple[str, ...] = PROTOCOLS
    tasks: tuple[str, ...] = tuple(TASKS)
    models: tuple[str, ...] = tuple(BODIES)
    fractions: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    mlp_epochs: int = anchors.EPOCHS
    transformer_epochs: int = anchors.LONG_EPOCHS
    exponent: float = added(EXPONENT)
    """Of the distance, in the harmonic models."""
    snapshots: ClassVar[int] = 3

    @property
    def arms(self) -> tuple[tuple[str, str], ...]:
        """The models with either head, in the order of legends."""
        return tuple(arm for arm in ARMS if arm[0] in self.models)

    def epochs(self, task: str, model: str) -> int:
        """Return how long a model is trained on a task."""
        return self.mlp_epochs if model == "mlp" else self.transformer_epochs

    def short_of(self, cells: Sequence[Any]) -> str:
        """Say that the runs are shorter than the paper's, or that fractions of the authors are missing."""
        paper = {"mlp": anchors.EPOCHS, "transformer": anchors.LONG_EPOCHS}
        for model, epochs in paper.items():
            short = min((self.epochs(cell.task, model) for cell in cells if cell.model == model), default=epochs)
            if short < epochs:
                return f"Only {short} of the paper's {epochs} epochs were run."
        missing = ", ".join(str(fraction) for fraction in AUTHORS_FRACTIONS if fraction not in self.fractions)
        return f"Fractions {missing} were not run." if missing else ""


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
        "accuracy": round(float(result.curves["test_accuracy"][-1]), 6) if learned else 0.0,
        "steps": math.ceil(result.metrics["train_rows"] / BATCH_SIZE),
    }


def means(results: Results) -> dict[float, float]:
    """Return the mean last test accuracy by train fraction; fractions without a finished run are left out."""
    fractions = sorted(results.groups("train_fraction").items())
    return {fraction: float(np.mean(own.metric("accuracy").values)) for fraction, own in fractions}


def fraction_needed(accuracies: Mapping[float, float]) -> float:
    """Return the smallest fraction with an accuracy of 0.9 or more, 1 if there is none.

    >>> fraction_needed({0.2: 0.85, 0.4: 0.95, 0.6: 1.0}), fraction_needed({0.2: 0.85})
    (0.4, 1.0)
    """
    return next((fraction for fraction, found in accuracies.items() if found >= PASSED), ALL_THE_DATA)


def needed(results: Results) -> dict[int, float]:
    """Return the fraction that one model needs on one task, by seed."""
    by_seed = sorted(results.groups("seed").items())
    return {
        seed: fraction_needed(dict(sorted(own.metric("accuracy").by("train_fraction").items())))
        for seed, own in by_seed
    }


class Needed(NamedTuple):
    """The fractions that both heads need on one task, seed by seed."""

    harmonic: list[float]
    standard: list[float]

    def less(self, share: float, level: float) -> Interval:
        """Return by how much the harmonic model needs less than a share of what the standard one needs."""
        return compare([share * one for one in self.standard], self.harmonic, level=level).difference

    def __str__(self) -> str:
        return f"{np.mean(self.harmonic):.2g} against {np.mean(self.standard):.2g}"


def both_needed(results: Results) -> dict[tuple[str, str], Needed]:
    """Return the fractions that both heads need, by task and model."""
    found = {}
    for key, own in results.groups("task", "model").items():
        harmonic, standard = (needed(own.where(head=head)) for head in ("harmonic", "linear"))
        seeds = [seed for seed in harmonic if seed in standard]
        if seeds:
            found[key] = Needed([harmonic[seed] for seed in seeds], [standard[seed] for seed in seeds])
    return found


def _place(key: tuple[str, str]) -> str:
    return f"{BODIES[key[1]]} on {TITLES[key[0]].lower()}"


def _judge_needed(results: Results) -> Finding:
    """Broken if some task needs clearly more, or none can need at most half; both are picked among several tasks."""
    found = both_needed(results)
    level = shared_level(len(found))
    more, maybe_more = ([key for key, one in found.items() if one.less(1, lv).high < 0] for lv in (level, 0.95))
    half = [key for key, one in found.items() if one.less(MUCH_LESS, level).low >= 0]
    never_half = all(one.less(MUCH_LESS, 0.95).high < 0 for one in found.values())
    words = listed({_place(key): one for key, one in found.items()})
    return Finding(
        False if more or never_half else True if half and not maybe_more else None,
        f"Fraction needed, harmonic against standard, mean over seeds: {words}. Clearly more: "
        f"{', '.join(map(_place, more)) or 'none'}. At most half: {', '.join(map(_place, half)) or 'none'}.",
        {
            f"needed_{'_'.join(key)}": {name: float(np.mean(own)) for name, own in one._asdict().items()}
            for key, one in found.items()
        },
    )


def _judge_lattice_most(results: Results) -> Finding:
    found = {key: np.log2(one.standard) - np.log2(one.harmonic) for key, one in both_needed(results).items()}
    lattice, others = (
        [own for key, own in found.items() if (key[0] == "lattice") == wanted] for wanted in (True, False)
    )
    if not (lattice and others):
        return Finding(None, "This needs the lattice and other tasks.", {})
    more = compare(np.mean(lattice, axis=0).tolist(), np.mean(others, axis=0).tolist()).difference
    factors = {_place(key): f"{2 ** np.mean(own):.2g}" for key, own in found.items()}
    times = "{:.2g} [{:.2g}, {:.2g}]".format(*(2**one for one in more))
    return Finding(
        more.above(0),
        f"Times as much data the standard model needs: {listed(factors)}. The lattice's factor is {times} times that "
        "of the other tasks.",
        {"doublings_more": more._asdict()},
    )


def _judge_lattice_at_once(results: Results) -> Finding:
    found = {model: interval(own.metric("accuracy").values) for model, own in results.groups("model").items()}
    words = {f"harmonic {BODIES[model]}": one for model, one in found.items()}
    return Finding(
        both(*(one.above(PASSED) for one in found.values())),
        f"Test accuracy at a fraction of {AT_ONCE_FRACTION:g}, mean and 95 % interval: {listed(words)}.",
        {f"accuracy_{model}": one._asdict() for model, one in found.items()},
    )


def _judge_area(results: Results) -> Finding:
    found = results.pairs("accuracy", "head", "harmonic", "linear", on=("seed", "task", "train_fraction", "model"))
    by: dict[str, dict[Any, list[float]]] = {"seed": {}, "task": {}}
    for (seed, task, *_), (harmonic, standard) in found.items():
        for name, key in (("seed", seed), ("task", task)):
            by[name].setdefault(key, []).append(harmonic - standard)
    more = interval([float(np.mean(own)) for own in by["seed"].values()])
    words = {TITLES[task].lower(): f"{np.mean(own):+.3f}" for task, own in by["task"].items()}
    return Finding(
        more.above(0),
        f"Harmonic minus standard, mean over tasks and fractions, with its 95 % interval over {len(by['seed'])} seeds: "
        f"{signed(more, 3)}. By task: {listed(words)}.",
        {"difference": more._asdict()},
    )


def _judge_authors(results: Results) -> Finding:
    if not (set(AUTHORS_FRACTIONS) <= set(results.spec.fractions) and set(TASKS) <= set(results.spec.tasks)):
        return Finding(None, "The authors' points need all their fractions and tasks.", {})
    off = {}
    for (task, arm), known in AUTHORS.items():
        if arm[0] != "mlp":
            continue
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


class Entry(NamedTuple):
    """What one claim says, under either protocol and of any models."""

    said: str
    rule: str
    judge: Judge
    sentences: tuple[str, ...] = ()
    paper: str = ""
    only: Mapping[str, Any] = {}
    """Fields of the cells that it needs, besides protocol and models."""


KNOWN = listed(
    {
        _place((task, arm[0])): f"{fraction_needed(AUTHORS[task, arm]):g} against "
        f"{fraction_needed(AUTHORS[task, (arm[0], 'linear')]):g}"
        for arm in (HARMONIC_MLP, HARMONIC_TRANSFORMER)
        for task in TASKS
    }
)
ENTRIES: dict[str, Entry] = {
    "needs_less": Entry(
        "harmonic {models} require comparable or much less data to generalize",
        f"Holds where, for a test accuracy of {PASSED}, they need a clearly larger train fraction than the standard "
        "ones on no task, and at most half of it on some task (intervals over seeds, paired)",
        _judge_needed,
        ("3.3/2",),
        f"Fraction needed in the authors' figure, harmonic against standard, one seed: {KNOWN}.",
    ),
    "lattice_most": Entry(
        "the improvement of harmonic {models} is especially notable for in-context learning",
        "Holds where the factor by which they need less data is larger on the lattice than on the other tasks on "
        "average (geometric means, 95 % interval over seeds)",
        _judge_lattice_most,
        ("3.3/3",),
    ),
    "lattice_at_once": Entry(
        "on in-context learning harmonic {models} generalize nearly immediately",
        f"Holds where the mean test accuracy at a train fraction of {AT_ONCE_FRACTION:g} is {PASSED} or more, with its "
        "95 % interval over seeds, of each model",
        _judge_lattice_at_once,
        ("3.3/3",),
        "At 0.1 in the authors' figure, one seed: harmonic MLP 0.957, harmonic transformer 0.062.",
        {"task": "lattice", "head": "harmonic", "train_fraction": AT_ONCE_FRACTION},
    ),
    "area": Entry(
        "averaged over tasks and train fractions, harmonic {models} have the higher test accuracy",
        "Holds where the mean difference is above 0 with its 95 % interval over seeds",
        _judge_area,
    ),
}


def _claim(name: str, protocol: str, model: str | None) -> Claim:
    """Return a claim on the four models, or a control on two of them."""
    entry = ENTRIES[name]
    sentences = entry.sentences if (protocol, model) == ("authors", None) else ()
    said = entry.said.format(models="models" if model is None else f"{BODIES[model]}s")
    return Claim(
        f"{name}_{model or 'overall'}_{protocol}",
        f"{said[0].upper()}{said[1:]}. {entry.rule} ({protocol} protocol).",
        entry.paper * bool(sentences),
        sentences=sentences,
        needs=where(protocol=protocol, model=tuple(BODIES) if model is None else model, **entry.only),
        judge=entry.judge,
    )


CLAIMS = (
    *(_claim(name, protocol, model) for protocol in PROTOCOLS for name in ENTRIES for model in (None, *BODIES)),
    Claim(
        "authors_points",
        f"The authors' 80 accuracies of MLPs come back: nine in ten lie within {TOLERANCE} of the range of our seeds "
        "(authors protocol).",
        "MLPs, five tasks, eight fractions, one seed.",
        needs=where(protocol="authors", model="mlp"),
        judge=_judge_authors,
    ),
)


COUNTS = ("fraction needed, mean over seeds", "runs", "diverged", "steps waited, %")


def tables(results: Results) -> list[Table]:
    """Tabulate accuracies, the authors' below ours."""
    rows: list[dict[str, Any]] = []

    def add(at: Any, label: str, accuracies: Mapping[float, float], *counts: float | None) -> None:
        row = {"protocol": at.protocol, "task": TITLES[at.task], "model": label}
        row |= {f"{fraction:g}": accuracies.get(fraction) for fraction in results.spec.fractions}
        rows.append(row | dict(zip(COUNTS, counts, strict=True)))

    for at in runs.places(results, arm=results.spec.arms):
        label, steps = MODEL_STYLES[at.arm].label, at.own.metric("steps").values
        # A run waits for those with more rows, of the same model and with questions of the same length.
        alike = tuple(task for task in TASKS if INPUTS[task] == INPUTS[at.task])
        most = max(results.where(protocol=at.protocol, arm=at.arm, task=alike).metric("steps"), default=0)
        waited = 100 * float(np.mean([1 - count / most for count in steps])) if steps else None
        fraction = float(np.mean(list(needed(at.own).values()))) if at.own else None
        add(at, label, means(at.own), fraction, len(at.own), len(at.own.metric("diverged_at").present), waited)
        if at.protocol == "authors" and (at.task, at.arm) in AUTHORS:
            known = AUTHORS[at.task, at.arm]
            add(at, f"{label}, the authors' own", known, fraction_needed(known), 1, None, None)
    return [Table("Test accuracy at the last epoch against the train fraction: mean over seeds", tuple(rows))]


def figures(results: Results) -> dict[str, Picture]:
    """Draw accuracy against the fraction: a row per protocol and body, since four bands would hide one another."""
    if not results:
        return {}
    spec, cross = results.spec, drawing.mark_handle("authors' figure", "x", "#555555")
    rows = {(p, model): f"{BODIES[model]}s, {p}" for p in spec.protocols for model in spec.models}
    figure, panels = drawing.facets(
        rows,
        {task: TITLES[task] for task in spec.tasks},
        size=(10, 2.05 * len(rows) + 1.2),
        xlabel="train fraction",
        ylabel="test accuracy",
        sharex=True,
        sharey=True,
    )
    figure.suptitle("How much data it takes to generalize")
    handles = [*(drawing.model_handle(*arm) for arm in spec.arms), *[cross] * ("authors" in spec.protocols)]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    for ((protocol, model), task), axes in panels.items():
        axes.axhline(PASSED, color="#999999", linewidth=0.8, linestyle=":")
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
    epochs = ", ".join(f"{BODIES[model]}s {spec.epochs(spec.tasks[0], model)}" for model in spec.models)
    caption = (
        f"Test accuracy at the last epoch against the train fraction. A line is {line}. Epochs: {epochs}. Crosses: the "
        "authors' figure, one seed, in the colors of the models; their transformers were trained for 7000 epochs, on "
        f"permutations for 10,000. Where a curve crosses the dotted line, {PASSED}, the model counts as generalizing."
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
    work=Work(cells, run_cells, group=lambda cell: cell.protocol, accelerated=True, seeds_apart=True),
    measure=measure,
    tables=tables,
    figures=figures,
)
