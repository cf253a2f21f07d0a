"""One problem in detail: modular addition with and without weight decay, against the harmonic loss (Fig. 4, left).

    harmax run modular_case            3 seeds, cut short: about a minute on two CPU cores
    harmax run modular_case --full     20 seeds, 2000 epochs

Three MLPs at learning rate 1e-3: standard without weight decay, standard with a strong one, harmonic without. The
authors show seed 50, which is one of ours. But a seed draws other numbers here, so their run is one draw among ours.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from harmax.analysis import Interval, bootstrap_interval, explained_variance
from harmax.figures import TRAIN_COLOR, Picture
from harmax_lab.algorithmic import measures, planes
from harmax_lab.algorithmic.protocols import Settings, settings
from harmax_lab.algorithmic.training import RunCell, task_of, train
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding, at_least
from harmax_lab.kit.experiment import Context, Experiment, Spec, Work
from harmax_lab.kit.judges import LEAST_SEEDS, Judge, below, both, listed
from harmax_lab.kit.results import Results, where
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table, combinations, places
from harmax_lab.tasks import PROTOCOLS, find_task

TASK, TRAIN_FRACTION = "modular_addition", 0.8
AUTHORS_EPOCHS, REACHED, ALMOST_ALL = 2000, 0.9, 0.99
# The range of 20 seeds misses a 21st of the same kind 2 times of 21. So of eight numbers some one lies outside every
# other time, and three or more do in 3 % (all independent) to 7 % (training and test epochs together) of the cases.
CHANCE_OUTSIDE = 2


class Case(NamedTuple):
    """One of the three models: how it is trained and drawn."""

    head: str
    weight_decay: float
    label: str
    color: str


CASES: dict[str, Case] = {
    "standard": Case("linear", 0.0, "standard, no decay", "#D55E00"),
    "standard_decay": Case("linear", 0.5, "standard, decay 0.5", "#E69F00"),
    "harmonic": Case("harmonic", 0.0, "harmonic, no decay", "#0072B2"),
}
STANDARD = ("standard", "standard_decay")
# Of the authors' one seed. Epochs: the first that starts 20 in a row above 0.9.
AUTHORS: dict[tuple[str, str], float] = {
    ("standard", "test_accuracy"): 0.515,
    ("standard", "explained_variance"): 0.26,
    ("standard_decay", "train_epoch"): 1018,
    ("standard_decay", "test_epoch"): 1050,
    ("standard_decay", "explained_variance"): 0.58,
    ("harmonic", "train_epoch"): 449,
    ("harmonic", "test_epoch"): 448,
    ("harmonic", "explained_variance"): 1.0,
}

# What a run is judged by, and its heading.
COLUMNS = {
    "test_accuracy": "last test accuracy",
    "train_epoch": f"train above {REACHED} from epoch",
    "test_epoch": f"test above {REACHED} from epoch",
    "explained_variance": "variance in two components",
    "circle_residual": "circle residual",
}


@dataclass(frozen=True, kw_only=True)
class CaseSpec(Spec):
    """Settings of the case study; the defaults are the authors'."""

    protocols: tuple[str, ...] = PROTOCOLS
    epochs: int = AUTHORS_EPOCHS
    learning_rate: float = 1e-3
    snapshots: int = 24


@dataclass(frozen=True)
class CaseCell(RunCell):
    """One model trained on one seed's split, with a weight decay of its own."""

    weight_decay: float

    @property
    def case(self) -> str:
        """The key of `CASES`."""
        return next(name for name, case in CASES.items() if case[:2] == (self.head, self.weight_decay))


def cells(spec: CaseSpec) -> list[CaseCell]:
    """List every protocol, case and seed."""
    return [
        CaseCell(at.protocol, TASK, "mlp", at.case.head, TRAIN_FRACTION, at.seed, at.case.weight_decay)
        for at in combinations(protocol=spec.protocols, case=CASES.values(), seed=spec.seeds)
    ]


def run_cells(spec: CaseSpec, group: Sequence[CaseCell], context: Context) -> Iterator[tuple[CaseCell, CellResult]]:
    """Train the runs of one protocol."""

    def how(cell: CaseCell) -> Settings:
        usual = settings(cell.protocol, cell.model, cell.head, epochs=spec.epochs)
        return replace(usual, learning_rate=spec.learning_rate, weight_decay=cell.weight_decay)

    return train(group, how, context, snapshots=spec.snapshots)


def measure(spec: CaseSpec, cell: CaseCell, result: CellResult) -> dict[str, float]:
    """Return what a run is judged by; a diverged one never learns (epoch infinity) and explains nothing."""
    embedding = measures.last_embedding(result)
    if embedding is None:
        return dict(zip(COLUMNS, (0.0, np.inf, np.inf, 0.0, 1.0), strict=True))
    return {
        "test_accuracy": float(result.curves["test_accuracy"][-1]),
        **measures.grokking(result),
        "explained_variance": explained_variance(embedding),
        "circle_residual": measures.fit(task_of(cell).structure, embedding, None).residual,
    }


def in_epochs(interval: Interval) -> str:
    """Write an interval of epochs, some of which may never come.

    >>> in_epochs(Interval(1018.0, 996.5, float("inf")))
    '1018 [996, never]'
    """
    middle, low, high = ("never" if np.isinf(one) else f"{one:.0f}" for one in interval)
    return f"{middle} [{low}, {high}]"


def _median(results: Results, case: str, metric: str) -> Interval:
    return bootstrap_interval(results.where(case=case).metric(metric).values)


def _judge_memorizes(results: Results) -> Finding:
    found = _median(results, "standard", "test_accuracy")
    sentence = f"Last test accuracy, median and 95 % interval: {found}."
    return Finding(below(found, REACHED), sentence, {"test_accuracy": found._asdict()})


def _judge_generalizes(results: Results) -> Finding:
    train_epoch, test = (_median(results, "standard_decay", name) for name in ("train_epoch", "test_epoch"))
    reached, runs = _reached(results), len(results)
    words = f"train {in_epochs(train_epoch)}, test {in_epochs(test)}"
    return Finding(
        True if np.isfinite(test.high) else False if np.isinf(test.low) else None,
        f"{reached} of {runs} runs do. Median epoch and 95 % interval: {words}.",
        {"train_epoch": train_epoch._asdict(), "test_epoch": test._asdict(), "reached": reached, "runs": runs},
    )


def _reached(results: Results) -> int:
    return int(np.isfinite(results.metric("test_epoch").values).sum())


def _judge_sooner(results: Results) -> Finding:
    found = results.paired("test_epoch", "case", "standard_decay", "harmonic", statistic="median")
    assert found is not None
    fits, test = (in_epochs(_median(results, "harmonic", name)) for name in ("train_epoch", "test_epoch"))
    standard, seeds = in_epochs(_median(results, "standard_decay", "test_epoch")), len(results.distinct("seed"))
    return Finding(
        found.difference.above(0),
        f"Median epoch and 95 % interval: harmonic {test} (training set {fits}), standard with decay {standard}; "
        f"sooner by {in_epochs(found.difference)} epochs, on {found.greater} of {seeds} seeds.",
        {"sooner_by": found.difference._asdict(), "seeds_sooner": found.greater, "seeds": seeds},
    )


def _judge_plane(results: Results) -> Finding:
    medians = {case: _median(results, case, "explained_variance") for case in CASES}
    pairs = [results.paired("explained_variance", "case", "harmonic", case, statistic="median") for case in STANDARD]
    ours, shares = medians["harmonic"], results.where(case="harmonic").metric("explained_variance").values
    full = sum(share >= ALMOST_ALL for share in shares)
    in_plane = True if ours.low >= ALMOST_ALL else False if ours.high < ALMOST_ALL else None
    return Finding(
        both(in_plane, *(pair.difference.above(0) for pair in pairs if pair)),
        f"Median and 95 % interval: {listed({CASES[case].label: found for case, found in medians.items()})}. {full} "
        f"of {len(shares)} harmonic runs have {ALMOST_ALL:.0%} or more.",
        {**{f"share_{case}": found._asdict() for case, found in medians.items()}, "harmonic_in_plane": full},
    )


def _judge_authors(results: Results) -> Finding:
    words, inside = [], 0
    for (case, metric), theirs in AUTHORS.items():
        found = results.where(case=case).metric(metric).values
        slack = 0.005 if metric == "explained_variance" else 0  # the authors' shares are known to a hundredth
        near = min(found) - slack <= theirs <= max(found) + slack
        inside += near
        span = f"{min(found):.4g} to {max(found):.4g}{'' if near else ' (outside)'}"
        words.append(f"{CASES[case].label}, {metric.replace('_', ' ')} {span}")
    outside = len(AUTHORS) - inside
    return Finding(
        True if outside == 0 else False if outside > CHANCE_OUTSIDE else None,
        f"{inside} of {len(AUTHORS)} do. Ranges: {'; '.join(words)}.",
        {"inside": inside, "numbers": len(AUTHORS)},
    )


ENOUGH = at_least(epochs=AUTHORS_EPOCHS, seeds=LEAST_SEEDS)
TEXTS: dict[str, tuple[str, str, Judge, tuple[str, ...]]] = {
    "standard_memorises": (
        f"Without weight decay the standard MLP does not generalize: its test accuracy stays below {REACHED}",
        "Test accuracy 0.515 after 2000 epochs, one seed.",
        _judge_memorizes,
        ("standard",),
    ),
    "decay_generalises": (
        f"With weight decay 0.5 the standard MLP generalizes: its test accuracy rises above {REACHED}",
        "Train and test accuracy above 0.9 from epochs 1018 and 1050 on, one seed.",
        _judge_generalizes,
        ("standard_decay",),
    ),
    "harmonic_sooner": (
        "The harmonic MLP without weight decay generalizes sooner than the standard MLP with it",
        "From epoch 448 on (train 449), against 1050, one seed.",
        _judge_sooner,
        ("standard_decay", "harmonic"),
    ),
    "harmonic_plane": (
        f"Two components explain {ALMOST_ALL:.0%} or more of the harmonic MLP's embedding, and more than of the others",
        "100 %, against 26 % without and 58 % with weight decay, one seed.",
        _judge_plane,
        tuple(CASES),
    ),
}
CLAIMS = (
    *(
        Claim(
            f"{name}_{protocol}",
            f"{statement} ({protocol} protocol).",
            paper,
            control=protocol == "matched",
            needs=where(protocol=protocol, case=cases),
            judge=judge,
            enough=ENOUGH,
        )
        for protocol in PROTOCOLS
        for name, (statement, paper, judge, cases) in TEXTS.items()
    ),
    Claim(
        "authors_numbers",
        "The authors' eight numbers lie within the range of our seeds; up to "
        f"{CHANCE_OUTSIDE} outside are likely by chance and decide nothing (authors protocol).",
        "; ".join(f"{CASES[case].label}, {metric.replace('_', ' ')} {one:g}" for (case, metric), one in AUTHORS.items())
        + " (one seed).",
        needs=where(protocol="authors"),
        judge=_judge_authors,
        enough=ENOUGH,
    ),
)


def tables(results: Results) -> list[Table]:
    """Tabulate the three models beside the authors' run."""
    title = "Medians over seeds and 95 % intervals; in brackets the authors' one seed"
    return [Table(title, tuple(map(_row, places(results, protocol=results.spec.protocols, case=CASES))))]


def _row(at: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"protocol": at.protocol, "model": CASES[at.case].label, "runs": len(at.own)}
    row["runs that generalize"] = _reached(at.own) if at.own else None
    for metric, title in COLUMNS.items():
        found = at.own.metric(metric).median()
        theirs = AUTHORS.get((at.case, metric)) if at.protocol == "authors" else None
        words = "" if found is None else in_epochs(found) if metric.endswith("epoch") else str(found)
        row[title] = words + (f" ({theirs:g})" if theirs is not None else "") if words else None
    return row


def figures(results: Results) -> dict[str, Picture]:
    """Draw curves and planes, one figure per protocol."""
    return {f"modular_case_{protocol}": _draw(own, protocol) for protocol, own in results.groups("protocol").items()}


def _draw(results: Results, protocol: str) -> Picture:
    authors = protocol == "authors"
    labels = {name: case.label for name, case in CASES.items()}
    figure, panels = drawing.facets({"curves": "accuracy", "plane": ""}, labels, size=(9.4, 6.4))
    for name, case in CASES.items():
        own, axes = results.where(case=name), panels["curves", name]
        axes.set(ylim=(-0.03, 1.03), yticks=(0, 0.5, 1), xlabel="epoch")
        for curve, color, line in (("train_accuracy", TRAIN_COLOR, "--"), ("test_accuracy", case.color, "-")):
            if curves := own.curve(curve).values:
                epoch = np.unique(np.linspace(0, len(curves[0]) - 1, 200).astype(int))
                drawing.draw_band(axes, epoch, [one[epoch] for one in curves], color=color, line=line)
        theirs = AUTHORS.get((name, "test_epoch"), np.inf)
        if authors and theirs < axes.get_xlim()[1]:
            axes.axvline(theirs, color="#444444", linewidth=0.9, linestyle=":")
        found = {cell.seed: result for cell, result in own.items()}
        if share := planes.draw_middle(panels["plane", name], find_task(TASK).structure, found, size=5):
            known = f" (authors' seed {100 * AUTHORS[name, 'explained_variance']:.0f} %)" * authors
            panels["plane", name].set_title(share + known)
    dotted = "; dotted: where the authors' seed passes 0.9 on the test set" * authors
    return Picture(
        figure,
        f"Modular addition, {protocol} protocol, {len(results.spec.seeds)} seeds. Above: accuracy over training, the "
        f"median over seeds as a line, their range as a band; training in gray and dashed, test in color{dotted}. "
        "Below: the residues in the plane of two components with its share of the variance, for the seed whose share "
        "is the median, joined and colored in the order of the frequency that fits best.",
    )


FULL = CaseSpec(seeds=tuple(range(50, 70)))
EXPERIMENT = Experiment(
    name="modular_case",
    title="Modular addition: weight decay, or the harmonic loss",
    figure="Fig. 4, left",
    claims=CLAIMS,
    profiles={
        "smoke": replace(FULL, seeds=(50, 51), epochs=3),
        "quick": replace(FULL, seeds=(50, 51, 52), epochs=700),
        "full": FULL,
    },
    work=Work(cells, run_cells, group=lambda cell: cell.protocol, accelerated=True),
    measure=measure,
    tables=tables,
    figures=figures,
)
