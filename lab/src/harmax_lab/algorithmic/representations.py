"""What the embeddings look like: tokens in the plane of two principal components, and how much structure they show.

A view of the runs of `algorithmic`: Fig. 2 of the paper, and every seed behind it. A diverged run shows no structure.
"""

from typing import Any, NamedTuple

import numpy as np

from harmax.analysis import explained_variance
from harmax.figures import Picture
from harmax_lab.algorithmic import measures, planes, runs
from harmax_lab.algorithmic.measures import MAIN, NUMBERS, last_embedding
from harmax_lab.algorithmic.representation_claims import CLAIMS, SHOWS
from harmax_lab.algorithmic.runs import ARMS, BODIES, TITLES, AlgorithmicSpec
from harmax_lab.algorithmic.sentences import passes
from harmax_lab.algorithmic.shapes import NOTHING, shapes
from harmax_lab.algorithmic.training import RunCell, task_of
from harmax_lab.kit import drawing
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.results import Results
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table, entries, paired_columns
from harmax_lab.paper.readings import CLEAR, NEAT, PASSED, PERFECT
from harmax_lab.tasks import find_task


class Judged(NamedTuple):
    """What the figure of all runs shows of a structure: a metric, its words, and the least that a claim asks for."""

    metric: str
    words: str
    least: float | None = None


JUDGED: dict[str, Judged] = {
    "lattice": Judged("structure", "variance that a lattice explains", PERFECT),
    "circle": Judged("circle", "variance that a circle explains", PERFECT),
    "classes": Judged("structure", "variance between classes"),
    "tree": Judged("tower", "order of the generations, plane", CLEAR),
    "group": Judged("coset silhouette (plane)", "silhouette of the best cosets, plane", NEAT),
}
CLOSER = {
    **{kind: main.words for kind, main in MAIN.items()},
    "lattice": "share of the variance that a lattice explains",
    "circle": "share of the variance that the best frequency explains",
}
"""By kind of structure, the measure by which one embedding is closer to its task's shape than another."""


def measure(spec: AlgorithmicSpec, cell: RunCell, result: CellResult) -> dict[str, Any]:
    """Return the test accuracy, and how much structure the last embedding shows."""
    embedding, structure = last_embedding(result), task_of(cell).structure
    accuracy = {"test_accuracy": runs.measure(spec, cell, result)["test_accuracy"]}
    if embedding is None:
        unknown = dict.fromkeys(["clean", *NUMBERS[structure.kind]])
        return {**accuracy, "explained variance": 0.0, "structure": 0.0, **unknown, **NOTHING[structure.kind]}
    numbers, main = measures.measure(structure, embedding), MAIN[structure.kind]
    found = float(numbers[main.key])
    return {
        **accuracy,
        "explained variance": explained_variance(embedding),
        "structure": 1 - found if main.low_is_good else found,
        **numbers,
        **shapes(structure, embedding),
    }


def tables(results: Results) -> list[Table]:
    """Tabulate which head is closer to each task's shape, and the medians of all measures, one table per task."""
    rows, bodies = runs.places(results, arm=ARMS), runs.places(results, model=BODIES)
    title = "{}: medians over the runs that did not diverge, and numbers of runs"
    return [
        Table("Is the harmonic embedding closer to the task's shape? Pairs with the same seed", _closer_rows(bodies)),
        *(
            Table(title.format(TITLES[task]), tuple(_row(at) for at in rows if at.task == task))
            for task in results.spec.tasks
        ),
    ]


def _closer_rows(bodies: list[Any]) -> tuple[dict[str, Any], ...]:
    rows = []
    for at in bodies:
        found = at.own.paired("structure", "head", "harmonic", "linear")
        columns = paired_columns(lambda found: found, "harmonic minus standard, mean [95 %]", "closer on", "farther on")
        measured = {"measure": CLOSER[find_task(at.task).structure.kind]}
        rows.append({**runs.place(at), **measured, **entries(found, columns)})
    return tuple(rows)


def _row(at: Any) -> dict[str, Any]:
    kind = find_task(at.task).structure.kind
    numbers = [name for name, path in NUMBERS[kind].items() if not path.endswith(("name", "side", "frequency"))]
    whole = at.own.having(lambda result: result.metrics["diverged_at"] is None)
    row = {"protocol": at.protocol, "model": MODEL_STYLES[at.arm].label, "runs": len(at.own)}
    row |= {"diverged": len(at.own) - len(whole), "pass the test": sum(map(passes, at.own.values()))}
    row |= {words: sum(map(shows, at.own.values())) for words, shows in SHOWS[kind].items()}
    for name in dict.fromkeys(("explained variance", *NOTHING[kind], *numbers)):
        row[name] = float(np.median(whole.metric(name).values)) if len(whole) else None
    if kind == "circle":
        row["runs with a clean circle"] = float(sum(whole.metric("clean"))) if len(whole) else None
    return row


def figures(results: Results) -> dict[str, Picture]:
    """Draw the planes of one seed per model, how much structure all runs show, then the planes of every seed."""
    drawn: dict[str, Picture] = {}
    for protocol, own in results.groups("protocol").items():
        drawn[f"planes_{protocol}"] = _draw_planes(own, protocol)
        drawn[f"structure_{protocol}"] = _draw_structure(own, protocol)
    for (protocol, task), own in results.groups("protocol", "task").items():
        drawn[f"planes_{task}_{protocol}"] = _draw_seeds(own, protocol, task)
    return drawn


def _draw_planes(results: Results, protocol: str) -> Picture:
    tasks = results.spec.tasks
    rows, size = {task: TITLES[task] for task in tasks}, (8.6, 2.24 * len(tasks) + 0.8)
    figure, panels = drawing.facets(rows, dict.fromkeys(ARMS, ""), size=size)
    figure.suptitle(f"What the embeddings look like: median runs, {protocol} protocol")
    for (task, arm), axes in panels.items():
        found = {cell.seed: result for cell, result in results.where(task=task, arm=arm).items()}
        share = planes.draw_middle(axes, find_task(task, protocol=protocol).structure, found)
        first = f"{MODEL_STYLES[arm].label}\n{share}{' of the variance' * bool(share)}"
        axes.set_title(first if task == tasks[0] else share)
    return Picture(
        figure,
        f"Tokens in the plane of their first two principal components, {protocol} protocol ({runs.budget(results)}). "
        "Above each panel is the share of the variance that lies in this plane. Each panel is the seed whose share is "
        "the median (the lower of two; diverged runs count as 0). Look for a square grid, a circle, five dots, rows of "
        "generations and separate clusters. Lattice: neighbors are joined. Modular addition: joined and colored in the "
        "order of the frequency that fits the plane best. Equivalence: one color per class. Genealogy: colored by "
        "depth, dark at the root, children joined to parents. Permutation: one color and hull per coset, of the best "
        "cosets in the plane, which need not be better than chance.",
    )


def _draw_structure(results: Results, protocol: str) -> Picture:
    """Draw one dot per run: how much of its task's shape it shows, with the least that the paper's claim asks for."""
    gray = "#666666"
    figure, panels = runs.task_panels(
        results,
        (10, 6.6),
        handles=[
            drawing.mark_handle("a run", "o", gray),
            drawing.mark_handle(f"a run with a test accuracy below {PASSED}", "o", gray, face="white"),
            drawing.mark_handle("median", "_", gray, size=11),
            drawing.line_handle("what the claim asks for", "black", ":"),
        ],
    )
    figure.suptitle(f"How much of its task's shape each run shows, {protocol} protocol")
    for task, axes in panels.items():
        judged = JUDGED[find_task(task).structure.kind]
        for place, (arm, style) in enumerate(MODEL_STYLES.items()):
            own = results.where(task=task, arm=arm)
            runs.draw_strip(axes, place, own.metric(judged.metric).values, style.color, hollow=_fail(own))
        if judged.least is not None:
            axes.axhline(judged.least, color="black", linestyle=":", linewidth=1, zorder=1)
        axes.set(title=f"{TITLES[task]}:\n{judged.words}", ylim=(-0.12, 1.04), xlim=(-0.5, len(ARMS) - 0.5))
        axes.set_xticks(range(len(ARMS)), labels=runs.TICKS, fontsize=8)
        axes.grid(False, axis="x")
    return Picture(
        figure,
        f"One dot per run, {protocol} protocol ({runs.budget(results)}). Higher is closer to the shape, and 1 is all "
        "of it. Dotted lines: what the claims about perfect lattices, perfect circles, clear towers and neat clusters "
        "ask for. Hollow dots did not learn the task, and runs that diverged have 0.",
    )


def _fail(own: Results) -> list[bool]:
    return [not passes(result) for result in own.values()]


def _draw_seeds(results: Results, protocol: str, task: str) -> Picture:
    """Draw every seed of every model on one task; with few seeds the models stand side by side."""
    seeds, structure = results.spec.seeds, find_task(task, protocol=protocol).structure
    beside = 4 if len(seeds) <= 3 else 2 if len(seeds) <= 5 else 1
    rows, columns = -(-len(seeds) // planes.SHEET_COLUMNS), min(len(seeds), planes.SHEET_COLUMNS)
    size = (10, len(ARMS) // beside * (9.3 / (beside * columns) * rows + 0.36) + 0.3)
    labels = {arm: style.label for arm, style in MODEL_STYLES.items()}
    figure, panels, _ = drawing.wrapped(labels, beside, size=size)
    figure.suptitle(f"{TITLES[task]}: embeddings of all runs, {protocol} protocol")
    for arm, axes in panels.items():
        found = {cell.seed: result for cell, result in results.where(arm=arm).items()}
        drawn: list[Any] = []
        words = []
        for seed in seeds:
            result = found.get(seed)
            end = None if result is None else last_embedding(result)
            drawn.append(None if end is None else planes.plane_of(structure, end, coarse=True))
            words.append(_words(result, end))
        planes.draw_sheet(axes, drawn, words)
    return Picture(
        figure,
        f"{TITLES[task]}, {protocol} protocol ({runs.budget(results)}): the plane of two principal components for "
        f"every seed, row by row {', '.join(map(str, seeds))}. Each cell says how much of the variance it shows, and "
        f"the test accuracy where that is below {PASSED}.",
    )


def _words(result: CellResult | None, end: np.ndarray | None) -> str:
    if result is None or end is None:
        return "not finished" if result is None else "diverged"
    share = planes.percent(explained_variance(end))
    return share if passes(result) else f"{share}, test {result.metrics['test_accuracy']:.2f}"


EXPERIMENT = runs.view(
    "representations", "What the embeddings look like", "Fig. 2, 7", CLAIMS, measure, tables, figures
)
