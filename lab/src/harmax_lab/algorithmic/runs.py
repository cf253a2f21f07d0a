"""The runs behind the algorithmic section: five tasks, four models, both protocols, all seeds.

    harmax run algorithmic --smoke     does it work: seconds
    harmax run algorithmic             3 seeds, cut short: some minutes on two CPU cores
    harmax run algorithmic --full      the authors' 20 seeds and epochs; meant for a GPU

Explained variance, grokking, representations and cosets are views of these runs. Here stand the learning curves, and
what is to be known about the data before any of them is read.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harmax.figures import TRAIN_COLOR, Picture
from harmax_lab.algorithmic import anchors
from harmax_lab.algorithmic.protocols import settings
from harmax_lab.algorithmic.training import RunCell, train
from harmax_lab.kit import drawing, results
from harmax_lab.kit.claims import Claim, Finding, Verdict
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.experiment import Context, Experiment, Spec, Summary, conclude
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Column, Table, combinations
from harmax_lab.tasks import PROTOCOLS, TASKS, find_task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {name: find_task(name).title for name in TASKS}
ARMS = tuple(MODEL_STYLES)
LEAST_SEEDS = 10  # with fewer, an interval over seeds says little
LEAK_TOLERANCE = 0.03
BODIES = {"mlp": "MLPs", "transformer": "transformers"}
PLACE: dict[str, Column] = {"protocol": lambda at: at.protocol, "task": lambda at: TITLES[at.task]}
"""The first columns of a table with a row per protocol and task."""

Results = Mapping[RunCell, CellResult]
Rows = results.Results[Any, RunCell]


@dataclass(frozen=True, kw_only=True)
class AlgorithmicSpec(Spec):
    """Settings of the runs; what a protocol fixes is in protocols.py."""

    protocols: tuple[str, ...] = PROTOCOLS
    tasks: tuple[str, ...] = tuple(TASKS)
    train_fraction: float = 0.8
    mlp_epochs: int = anchors.EPOCHS
    transformer_epochs: int = anchors.EPOCHS
    permutation_epochs: int = anchors.LONG_EPOCHS
    """Of the transformers on permutation composition, which the authors' code trains for longer."""
    snapshots: int = 48
    """How often the embedding is kept over the training, denser early."""

    def epochs(self, task: str, model: str) -> int:
        """Return how long a model is trained on a task."""
        if model == "mlp":
            return self.mlp_epochs
        return self.permutation_epochs if task == "permutation" else self.transformer_epochs


def cells(spec: AlgorithmicSpec) -> list[RunCell]:
    """List every protocol, task, model and seed."""
    return [
        RunCell(protocol, task, model, head, spec.train_fraction, seed)
        for protocol in spec.protocols
        for task in spec.tasks
        for model, head in ARMS
        for seed in spec.seeds
    ]


def run_cells(
    spec: AlgorithmicSpec, group: Sequence[RunCell], context: Context
) -> Iterator[tuple[RunCell, CellResult]]:
    """Train the runs of one protocol, as many together as share a shape."""
    return train(
        group,
        lambda cell: settings(cell.protocol, cell.model, cell.head, epochs=spec.epochs(cell.task, cell.model)),
        context,
        snapshots=spec.snapshots,
    )


def by_seed(results: Results, protocol: str, task: str, arm: tuple[str, str]) -> dict[int, CellResult]:
    """Return the finished runs of one model on one task, by seed."""
    wanted = (protocol, task, arm)
    return {cell.seed: result for cell, result in results.items() if (cell.protocol, cell.task, cell.arm) == wanted}


def places(found: Rows, **fields: Iterable[Any]) -> list[Any]:
    """List every protocol, task and value of a further field, each with its own results as `own`."""
    spec = found.spec
    listed = combinations(protocol=spec.protocols, task=spec.tasks, **fields)
    for at in listed:
        at.own = found.where(**vars(at))
    return listed


def trained_as_long(*models: str) -> Callable[[Rows], str]:
    """Return a test for `enough`: as many epochs as the authors' for these models, and enough seeds."""
    return lambda results: too_short(results.spec, *models)


def seeds_of(found: Rows) -> str:
    """Say how many seeds there are, and that some are missing where not all of these cells are finished."""
    return f"{len(found.spec.seeds)} seeds{', of which not all are finished' * (not found.complete)}"


def seeds_in_words(spec: AlgorithmicSpec, results: Results, **wanted: str) -> str:
    """Say how many seeds there are, and that some are missing where a picture of these cells lacks them.

    >>> spec = AlgorithmicSpec(seeds=(0, 1))
    >>> seeds_in_words(spec, {})
    '2 seeds, of which not all are finished'
    """
    own = [cell for cell in cells(spec) if all(getattr(cell, name) == value for name, value in wanted.items())]
    missing = any(cell not in results for cell in own)
    return f"{len(spec.seeds)} seeds{', of which not all are finished' * missing}"


def too_short(spec: AlgorithmicSpec, *models: str) -> str:
    """Say why a spec cannot decide claims about these models; empty where it can."""
    wanted = {("mlp", anchors.EPOCHS): spec.mlp_epochs, ("transformer", anchors.EPOCHS): spec.transformer_epochs}
    if "permutation" in spec.tasks:
        wanted["transformer", anchors.LONG_EPOCHS] = spec.permutation_epochs
    short = {epochs: authors for (model, authors), epochs in wanted.items() if model in models and epochs < authors}
    if short:
        least = min(short)
        return f"Only {least} of the authors' {short[least]} epochs were run."
    return too_few_seeds(spec)


def too_few_seeds(spec: AlgorithmicSpec) -> str:
    """Say that a spec has too few seeds to decide anything about means and medians; empty where it has enough."""
    return f"Only {len(spec.seeds)} of at least {LEAST_SEEDS} seeds were run." * (len(spec.seeds) < LEAST_SEEDS)


class Basis(NamedTuple):
    """The runs that a view's claim rests on, and who judges them."""

    protocol: str
    arms: tuple[tuple[str, str], ...]
    tasks: tuple[str, ...]
    judge: Callable[[Results], Finding]


def conclude_on(basis: Basis, claim: str, spec: AlgorithmicSpec, results: Results) -> Verdict:
    """Judge a view's claim on its runs, undecided where the spec is too short for its models."""
    own = [cell for cell in cells(spec) if cell.protocol == basis.protocol and cell.arm in basis.arms]
    wanted = [cell for cell in own if cell.task in basis.tasks]
    short = too_short(spec, *(model for model, _ in basis.arms))
    return conclude(claim, basis.judge, wanted, results, too_short=short)


CLAIMS = (
    Claim(
        "authors_leak",
        "Drawn with replacement before the split, as in the authors' code, the test rows are training rows too, in "
        "shares within 3 points of what was measured on the authors' data.",
        "Not reported. Measured on the authors' data: "
        + ", ".join(f"{TITLES[task].lower()} {share:.0%}" for task, share in anchors.LEAK.items())
        + ".",
        control=True,
    ),
    Claim("matched_leak", "Under the matched protocol no test row is a training row.", "Not reported.", control=True),
    Claim("all_finite", "No run diverges.", "Not reported.", control=True),
)


def judge_authors_leak(results: Results) -> Finding:
    """Judge every task by its mean share over seeds."""
    means = {task: _mean(results, "authors", task, "leak") for task in _tasks(results)}
    leaks = {task: mean for task, mean in means.items() if mean is not None}
    worst = max(abs(leak - anchors.LEAK[task]) for task, leak in leaks.items())
    return Finding(
        worst <= LEAK_TOLERANCE,
        "Mean share over seeds: "
        + ", ".join(f"{TITLES[task].lower()} {leak:.1%}" for task, leak in leaks.items())
        + f"; at most {100 * worst:.1f} points from the authors'.",
        {**{f"leak_{task}": leak for task, leak in leaks.items()}, "largest_difference": worst},
    )


def judge_matched_leak(results: Results) -> Finding:
    """Judge by the largest share of all runs, which must be 0 exactly."""
    worst = max(result.metrics["leak"] for result in results.values())
    return Finding(
        worst == 0,
        f"The largest share of {len(results)} splits is {worst:.1%}.",
        {"largest_leak": worst, "splits": len(results)},
    )


def judge_finite(results: Results) -> Finding:
    """Judge by whether any run met a number that is not finite."""
    diverged = [cell for cell, result in results.items() if result.metrics["diverged_at"] is not None]
    where = ", ".join(sorted({f"{MODEL_STYLES[cell.arm].label} on {TITLES[cell.task].lower()}" for cell in diverged}))
    return Finding(
        not diverged,
        f"{len(diverged)} of {len(results)} runs diverged{': ' + where if where else ''}.",
        {"diverged": len(diverged), "runs": len(results)},
    )


JUDGES = {
    "authors_leak": (("authors",), judge_authors_leak),
    "matched_leak": (("matched",), judge_matched_leak),
    "all_finite": (PROTOCOLS, judge_finite),
}


def summarize(spec: AlgorithmicSpec, results: Results) -> Summary:
    """Judge the data, and tabulate the splits and where each model ends."""
    verdicts = []
    for claim in CLAIMS:
        protocols, judge = JUDGES[claim.id]
        wanted = [cell for cell in cells(spec) if cell.protocol in protocols]
        short = too_few_seeds(spec) if claim.id == "authors_leak" else ""
        verdicts.append(conclude(claim.id, judge, wanted, results, too_short=short))
    splits = Table(
        "Data: means over seeds",
        tuple(
            {
                "protocol": protocol,
                "task": TITLES[task],
                "training rows": _mean(results, protocol, task, "train_rows"),
                "of them distinct": _mean(results, protocol, task, "train_facts"),
                "test rows": _mean(results, protocol, task, "test_rows"),
                "in the training set, %": _percent(_mean(results, protocol, task, "leak")),
                "authors', %": 100 * anchors.LEAK[task] if protocol == "authors" else None,
                "questions with two answers": _mean(results, protocol, task, "contradictions"),
            }
            for protocol in spec.protocols
            for task in spec.tasks
        ),
    )
    ends = Table(
        "Runs: medians over seeds at the last epoch",
        tuple(
            _end(spec, results, protocol, task, arm)
            for protocol in spec.protocols
            for task in spec.tasks
            for arm in ARMS
        ),
    )
    return Summary(tuple(verdicts), (splits, ends))


def _end(
    spec: AlgorithmicSpec, results: Results, protocol: str, task: str, arm: tuple[str, str]
) -> dict[str, str | float | int | None]:
    found = list(by_seed(results, protocol, task, arm).values())
    return {
        "protocol": protocol,
        "task": TITLES[task],
        "model": MODEL_STYLES[arm].label,
        "epochs": spec.epochs(task, arm[0]),
        "runs": len(found),
        "diverged": sum(result.metrics["diverged_at"] is not None for result in found),
        "training accuracy": _last_median(found, "train_accuracy"),
        "test accuracy": _last_median(found, "test_accuracy"),
    }


def _last_median(found: Sequence[CellResult], curve: str) -> float | None:
    return float(np.median([result.curves[curve][-1] for result in found])) if found else None


def _mean(results: Results, protocol: str, task: str, metric: str) -> float | None:
    found = [r.metrics[metric] for cell, r in results.items() if (cell.protocol, cell.task) == (protocol, task)]
    return float(np.mean(found)) if found else None


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _tasks(results: Results) -> list[str]:
    return list(dict.fromkeys(cell.task for cell in results))


def figures(spec: AlgorithmicSpec, results: Results) -> dict[str, Picture]:
    """Draw the learning curves, one figure a protocol."""
    drawn = {}
    for protocol in spec.protocols:
        found = {cell: result for cell, result in results.items() if cell.protocol == protocol}
        if found:
            tests = "tests with dropout on for transformers" if protocol == "authors" else "tests without dropout"
            drawn[f"learning_curves_{protocol}"] = Picture(
                draw_learning_curves(spec, protocol, found),
                f"Accuracy over training, protocol {protocol} ({tests}); "
                f"{seeds_in_words(spec, results, protocol=protocol)}. A line is the median over "
                "seeds, a band their range: training in gray and dashed, test in the model's color. Epochs count "
                "from 1 here.",
            )
    return drawn


def draw_learning_curves(spec: AlgorithmicSpec, protocol: str, results: Results) -> "Figure":
    """Draw a row a task, a column a model."""
    figure = drawing.new_figure(10, 2.0 * len(spec.tasks) + 0.9)
    grid = figure.subplots(len(spec.tasks), len(ARMS), sharey=True, sharex="col", squeeze=False)
    for row, task in zip(grid, spec.tasks, strict=True):
        for axes, arm in zip(row, ARMS, strict=True):
            found = list(by_seed(results, protocol, task, arm).values())
            if found:
                epoch = drawing.spaced(len(found[0].curves["test_accuracy"]), 100)
                train, test = ([r.curves[name][epoch] for r in found] for name in ("train_accuracy", "test_accuracy"))
                drawing.draw_band(axes, epoch + 1, train, color=TRAIN_COLOR, line="--")
                drawing.draw_band(axes, epoch + 1, test, color=MODEL_STYLES[arm].color)
            axes.set(xscale="log", ylim=(-0.03, 1.03), yticks=(0, 0.5, 1))
        row[0].set_ylabel(f"{TITLES[task]}\naccuracy")
    for axes, arm in zip(grid[0], ARMS, strict=True):
        axes.set_title(MODEL_STYLES[arm].label)
    for axes in grid[-1]:
        axes.set_xlabel("epoch")
    handles = [drawing.line_handle("training", TRAIN_COLOR, "--")]
    for arm in ARMS[:2]:  # a transformer has the color of the MLP with its head
        style = MODEL_STYLES[arm]
        handles.append(drawing.line_handle(f"test, {style.label.split()[0]}", style.color))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


EXPERIMENT = Experiment(
    name="algorithmic",
    title="The runs of the algorithmic section",
    figure="Fig. 2, 3",
    claims=CLAIMS,
    profiles={
        "smoke": AlgorithmicSpec(seeds=(0, 1), mlp_epochs=2, transformer_epochs=2, permutation_epochs=2),
        "quick": AlgorithmicSpec(seeds=anchors.SEEDS[:3], mlp_epochs=600, transformer_epochs=12, permutation_epochs=12),
        "full": AlgorithmicSpec(seeds=anchors.SEEDS),
    },
    cells=cells,
    run_cells=run_cells,
    old_summarize=summarize,
    old_figures=figures,
    group=lambda cell: cell.protocol,
    accelerated=True,
)
