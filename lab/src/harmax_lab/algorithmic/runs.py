"""The runs behind the algorithmic section: five tasks, four models, both protocols, all seeds.

    harmax run algorithmic --smoke     does it work: seconds
    harmax run algorithmic             3 seeds, cut short: some minutes on two CPU cores
    harmax run algorithmic --full      the authors' 20 seeds and epochs; meant for a GPU

Explained variance, grokking, representations and cosets are views of these runs. This file has the learning curves, and
what a reader must know about the data before any of the views.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harmax.errors import unknown
from harmax.figures import TRAIN_COLOR, Picture
from harmax_lab.algorithmic import anchors
from harmax_lab.algorithmic.protocols import Settings, settings
from harmax_lab.algorithmic.training import RunCell, train
from harmax_lab.kit import drawing, experiment
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.experiment import Context, Experiment, Spec, Work
from harmax_lab.kit.judges import Judge
from harmax_lab.kit.results import Results, Test, where
from harmax_lab.kit.rules import LEAST_RUNS
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table, combinations
from harmax_lab.kit.tables import places as every_place
from harmax_lab.kit.variants import added
from harmax_lab.tasks import PROTOCOLS, TASKS, find_task

TITLES = {name: find_task(name).title for name in TASKS}
ARMS = tuple(MODEL_STYLES)
LEAK_TOLERANCE = 0.03
EXPONENT = 2.0
TICKS = [style.label.replace(" ", "\n") for style in MODEL_STYLES.values()]
BODIES = {"mlp": "MLPs", "transformer": "transformers"}
CURVES = ("train_accuracy", "test_accuracy")


@dataclass(frozen=True, kw_only=True)
class AlgorithmicSpec(Spec):
    """Settings of the runs; what a protocol fixes is in protocols.py."""

    protocols: tuple[str, ...] = PROTOCOLS
    tasks: tuple[str, ...] = tuple(TASKS)
    train_fraction: float = 0.8
    mlp_epochs: int = anchors.EPOCHS
    transformer_epochs: int = anchors.LONG_EPOCHS
    snapshots: int = 48
    """How often the embedding is kept over the training, denser early."""
    exponent: float = added(EXPONENT)
    """Of the distance, in the harmonic models."""

    def __post_init__(self) -> None:
        for name, values, known in (("protocols", self.protocols, PROTOCOLS), ("tasks", self.tasks, TASKS)):
            for value in values:
                if value not in known:
                    raise ValueError(unknown(name, value, known))

    def epochs(self, task: str, model: str) -> int:
        """Return how long a model is trained on a task."""
        return self.mlp_epochs if model == "mlp" else self.transformer_epochs

    def short_of(self, cells: Sequence[RunCell]) -> str:
        """Name the models among these cells that are trained for fewer epochs than in the paper."""
        short = [
            f"{epochs} of the paper's {wanted} epochs of {BODIES[model]}"
            for model, epochs, wanted in (
                ("mlp", self.mlp_epochs, anchors.EPOCHS),
                ("transformer", self.transformer_epochs, anchors.LONG_EPOCHS),
            )
            if epochs < wanted and any(cell.model == model for cell in cells)
        ]
        return f"Only {' and '.join(short)} were run." if short else ""


def cells(spec: AlgorithmicSpec) -> list[RunCell]:
    """List every protocol, task, model and seed."""
    every = combinations(protocol=spec.protocols, task=spec.tasks, arm=ARMS, seed=spec.seeds)
    return [RunCell(at.protocol, at.task, at.arm[0], at.arm[1], spec.train_fraction, at.seed) for at in every]


def run_cells(spec: Any, group: Sequence[RunCell], context: Context) -> Iterator[tuple[RunCell, CellResult]]:
    """Train the runs of one protocol, as many together as share a shape."""

    def how(cell: RunCell) -> Settings:
        usual = settings(cell.protocol, cell.model, cell.head, epochs=spec.epochs(cell.task, cell.model))
        return usual if spec.exponent == usual.exponent else replace(usual, exponent=spec.exponent)

    return train(group, how, context, snapshots=spec.snapshots)


def measure(spec: AlgorithmicSpec, cell: RunCell, result: CellResult) -> dict[str, float]:
    """Return the accuracies at the last epoch."""
    return {name: round(float(result.curves[name][-1]), 6) for name in CURVES}  # float32 has no 0.9


def places(found: Results, **fields: Iterable[Any]) -> list[Any]:
    """List every protocol, task and value of a further field, each with its own results as `own`."""
    return every_place(found, **{"protocol": found.spec.protocols, "task": found.spec.tasks, **fields})


def place(at: Any) -> dict[str, str]:
    """Return the first entries of a row: protocol and task, and its model or body where it has one."""
    row = {"protocol": at.protocol, "task": TITLES[at.task]}
    if "arm" in vars(at):
        return {**row, "model": MODEL_STYLES[at.arm].label}
    return {**row, "models": BODIES[at.model]} if "model" in vars(at) else row


def claim(name: str, statement: str, paper: str, needs: Test, judge: Judge) -> Claim:
    """Return a control on these runs."""
    return Claim(name, statement, paper, needs=needs, judge=judge, seeds=LEAST_RUNS)


def seeds_of(found: Results) -> str:
    """Say how many seeds there are, and that some are missing where not all of these cells are finished."""
    return f"{len(found.spec.seeds)} seeds{', of which not all are finished' * (not found.complete)}"


def budget(found: Results) -> str:
    """Say how many seeds there are, and for how long models are trained."""
    return (
        f"{seeds_of(found)}; MLPs were trained for {found.spec.mlp_epochs} epochs, transformers for "
        f"{found.spec.transformer_epochs}"
    )


def task_panels(results: Results, size: tuple[float, float], **options: Any) -> tuple[Any, dict[str, Any]]:
    """Return a figure with a panel per task, by task, and its legend in the panel that is left."""
    titles = {task: TITLES[task] for task in results.spec.tasks}
    return drawing.wrapped(titles, 3, size=size, sharey=True, **options)[:2]


def draw_strip(
    axes: Any,
    place: float,
    values: Any,
    color: str,
    *,
    hollow: Sequence[bool] = (),
    reach: float = 0.24,
    middle: Callable[[Any], Any] = np.median,
) -> None:
    """Draw one dot per run beside one another, in the order of seeds, and a short line at their middle."""
    if not len(values):
        return
    faces = ["white" if one else color for one in hollow] or [color] * len(values)
    look: Any = {"markersize": 4, "markeredgewidth": 0.8, "linestyle": "none", "alpha": 0.85}
    for x, value, face in zip(drawing.beside(place, len(values), reach), values, faces, strict=True):
        axes.plot(x, value, "o", color=color, markerfacecolor=face, **look)
    axes.plot([place - reach, place + reach], [middle(values)] * 2, color=color, linewidth=2.2, zorder=4)


def _judge_authors_leak(results: Results) -> Finding:
    leaks = {task: float(np.mean(own.metric("leak").values)) for task, own in results.groups("task").items()}
    worst = max(abs(leak - anchors.LEAK[task]) for task, leak in leaks.items())
    words = ", ".join(f"{TITLES[task].lower()} {100 * leak:.1f} %" for task, leak in leaks.items())
    return Finding(
        worst <= LEAK_TOLERANCE,
        f"Mean share over seeds: {words}; at most {100 * worst:.1f} points from the authors'.",
        {**{f"leak_{task}": leak for task, leak in leaks.items()}, "largest_difference": worst},
    )


def _judge_matched_leak(results: Results) -> Finding:
    worst = max(results.metric("leak"))
    sentence = f"The largest share of {len(results)} splits is {100 * worst:.1f} %."
    return Finding(worst == 0, sentence, {"largest_leak": worst, "splits": len(results)})


def _judge_finite(results: Results) -> Finding:
    diverged = [cell for cell, result in results.items() if result.metrics["diverged_at"] is not None]
    names = ", ".join(sorted({f"{MODEL_STYLES[cell.arm].label} on {TITLES[cell.task].lower()}" for cell in diverged}))
    return Finding(
        not diverged,
        f"{len(diverged)} of {len(results)} runs diverged{': ' + names if names else ''}.",
        {"diverged": len(diverged), "runs": len(results)},
    )


CLAIMS = (
    Claim(
        "authors_leak",
        "The authors' code draws rows with replacement before the split, so test rows are also training rows. Their "
        "share per task lies within 3 points of the share measured on the authors' data.",
        "Not reported. Measured on the authors' data: "
        + ", ".join(f"{TITLES[task].lower()} {100 * share:.0f} %" for task, share in anchors.LEAK.items())
        + ".",
        needs=where(protocol="authors"),
        judge=_judge_authors_leak,
        seeds=LEAST_RUNS,
    ),
    Claim(
        "matched_leak",
        "Under the matched protocol no test row is a training row.",
        "Not reported.",
        needs=where(protocol="matched"),
        judge=_judge_matched_leak,
        seeds=1,
    ),
    Claim("all_finite", "No run diverges.", "Not reported.", judge=_judge_finite),
)


def _data_row(at: Any) -> dict[str, Any]:
    metrics = ("train_rows", "train_facts", "test_rows", "leak", "contradictions")
    rows, facts, tests, leak, twice = (float(np.mean(at.own.metric(m).values)) if at.own else None for m in metrics)
    return {
        **place(at),
        "training rows": rows,
        "of them distinct": facts,
        "test rows": tests,
        "in the training set, %": None if leak is None else 100 * leak,
        "authors', %": 100 * anchors.LEAK[at.task] if at.protocol == "authors" else None,
        "questions with two answers": twice,
    }


def _end_row(at: Any) -> dict[str, Any]:
    # Curves are stored in single precision, and so is their median.
    train_end, test_end = (np.float32(at.own.metric(name).values) for name in CURVES)
    return {
        **place(at),
        "epochs": at.own.spec.epochs(at.task, at.arm[0]),
        "runs": len(at.own),
        "diverged": len(at.own.metric("diverged_at").present),
        "training accuracy": float(np.median(train_end)) if at.own else None,
        "test accuracy": float(np.median(test_end)) if at.own else None,
    }


def tables(results: Results) -> list[Table]:
    """Tabulate the splits, and where each model ends."""
    return [
        Table("Data: means over seeds", tuple(map(_data_row, places(results)))),
        Table("Runs: medians over seeds at the last epoch", tuple(map(_end_row, places(results, arm=ARMS)))),
    ]


def figures(results: Results) -> dict[str, Picture]:
    """Draw the learning curves, one figure per protocol."""
    return {f"learning_curves_{protocol}": _draw(own, protocol) for protocol, own in results.groups("protocol").items()}


def _draw(results: Results, protocol: str) -> Picture:
    tasks, (standard, harmonic) = results.spec.tasks, ARMS[:2]
    figure, panels = drawing.facets(
        {task: TITLES[task] for task in tasks},
        {arm: style.label for arm, style in MODEL_STYLES.items()},
        size=(10, 2.0 * len(tasks) + 0.9),
        xlabel="epoch",
        ylabel="accuracy",
        handles=[
            drawing.line_handle("training", TRAIN_COLOR, "--"),
            drawing.line_handle("test, standard", MODEL_STYLES[standard].color),
            drawing.line_handle("test, harmonic", MODEL_STYLES[harmonic].color),
        ],
        title=f"How accuracy grows in training and in test, {protocol} protocol",
        sharey=True,
        sharex="col",
    )
    for (task, arm), axes in panels.items():
        for name, color, line in zip(CURVES, (TRAIN_COLOR, MODEL_STYLES[arm].color), ("--", "-"), strict=True):
            if curves := results.where(task=task, arm=arm).curve(name).values:
                epoch = drawing.spaced(len(curves[0]), 100)
                drawing.draw_band(axes, epoch + 1, [curve[epoch] for curve in curves], color=color, line=line)
        axes.set(xscale="log", ylim=(-0.03, 1.03), yticks=(0, 0.5, 1))
    dropout = "on for transformers" if protocol == "authors" else "off"
    return Picture(
        figure,
        f"Accuracy over training, {protocol} protocol (dropout in tests: {dropout}); {seeds_of(results)}. Lines are "
        "medians over seeds, bands their range: training in gray and dashed, test in the model's color. Where the "
        "colored line rises long after the gray one, runs grok. Epochs count from 1 here.",
    )


FULL = AlgorithmicSpec(seeds=anchors.SEEDS)
EXPERIMENT = Experiment(
    name="algorithmic",
    title="The runs of the algorithmic section",
    figure="Fig. 2, 3",
    claims=CLAIMS,
    profiles={
        "smoke": replace(FULL, seeds=(0, 1), mlp_epochs=2, transformer_epochs=2),
        "quick": replace(FULL, seeds=anchors.SEEDS[:3], mlp_epochs=600, transformer_epochs=12),
        "full": FULL,
    },
    work=Work(cells, run_cells, group=lambda cell: cell.protocol, accelerated=True, seeds_apart=True),
    measure=measure,
    tables=tables,
    figures=figures,
)


def view(
    name: str, title: str, figure: str, claims: tuple[Claim, ...], measure: Any, tables: Any, figures: Any
) -> Experiment[AlgorithmicSpec, RunCell]:
    """Return a view of these runs; the arguments are fields of `Experiment`."""
    return experiment.view(EXPERIMENT, name, title, figure, claims, measure=measure, tables=tables, figures=figures)
