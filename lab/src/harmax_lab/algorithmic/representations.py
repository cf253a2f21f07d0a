"""What the embeddings look like: tokens in the plane of two principal components, and how much structure they show.

A view of the runs of `algorithmic`: Fig. 2 of the paper, and every seed behind it.
"""

import math
from typing import Any

import numpy as np

from harmax.analysis import PairedDifference, bootstrap_interval, explained_variance, paired_difference
from harmax.figures import Picture
from harmax_lab.algorithmic import anchors, measures, planes, runs
from harmax_lab.algorithmic.measures import CLEAN, MAIN, NUMBERS, last_embedding
from harmax_lab.algorithmic.protocols import HEADS
from harmax_lab.algorithmic.runs import ARMS, TITLES, AlgorithmicSpec
from harmax_lab.algorithmic.training import RunCell, task_of
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.judges import Judge, everywhere
from harmax_lab.kit.results import Results, Test, where
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table
from harmax_lab.tasks import PROTOCOLS, TASKS, find_task

STATEMENTS = {
    "lattice": "The harmonic MLP's tokens lie closer to a lattice than the standard MLP's",
    "modular_addition": "The harmonic MLP's residues lie closer to one circle than the standard MLP's",
    "equivalence": "The harmonic MLP's numbers gather more tightly by class than the standard MLP's",
    "genealogy": "The harmonic MLP's nodes follow the family tree more closely than the standard MLP's",
    "permutation": "The harmonic MLP's permutations cluster more clearly by cosets than the standard MLP's",
}


def measure(spec: AlgorithmicSpec, cell: RunCell, result: CellResult) -> dict[str, Any]:
    """Return how much structure the last embedding shows; None for every measure where the run diverged."""
    embedding, structure = last_embedding(result), task_of(cell).structure
    if embedding is None:
        return dict.fromkeys(["explained variance", "clean", *NUMBERS[structure.kind]])
    return {"explained variance": explained_variance(embedding), **measures.measure(structure, embedding)}


def _compare(results: Results, level: float = 0.95) -> tuple[PairedDifference, str]:
    """Compare two heads on a task, seed by seed: how much better is harmonic? A diverged run counts as the worst."""
    main = MAIN[find_task(results.distinct("task")[0]).structure.kind]
    worst = math.inf if main.low_is_good else -math.inf
    harmonic, standard = (
        [worst if one is None else one for one in results.where(head=head).metric(main.key)] for head in HEADS[::-1]
    )
    better, worse = (standard, harmonic) if main.low_is_good else (harmonic, standard)
    found, lost = paired_difference(better, worse, level=level), len(results) - len(results.metric(main.key).present)
    counted = f"; diverged, counted as the worst: {lost}" * bool(lost)
    return found, (
        f"{main.words}: harmonic {bootstrap_interval(harmonic)}, standard {bootstrap_interval(standard)}; harmonic is "
        f"better on {found.greater} of {len(harmonic)} seeds (sign test p = {found.sign_p:.2g}){counted}"
    )


def _judge_task(results: Results) -> Finding:
    found, words = _compare(results)
    sentence = f"Medians and 95 % intervals of the {words}."
    numbers: dict[str, Any] = {"better_by": found.difference._asdict(), "sign_p": found.sign_p}
    if results.distinct("task") == ["modular_addition"]:
        clean = {head: sum(map(bool, results.where(head=head).metric("clean"))) for head in HEADS}
        sentence += (
            f" One frequency leaves at most {CLEAN:.0%} of the variance in {clean['harmonic']} harmonic and "
            f"{clean['linear']} standard runs."
        )
        numbers |= {f"clean_{head}": count for head, count in clean.items()}
    return Finding(found.difference.above(0), sentence, numbers)


def _judge_transformers(results: Results) -> Finding:
    tasks = results.groups("task")
    answer = everywhere(tasks, lambda task, level: _compare(tasks[task], level)[0])
    named = {1: "better", -1: "worse", 0: "no clear difference"}
    return Finding(
        answer.holds,
        " ".join(f"{TITLES[task]}: {named[answer.sides[task]]}, {_compare(own)[1]}." for task, own in tasks.items()),
        {f"better_by_{task}": found.difference._asdict() for task, found in answer.found.items() if found},
    )


def _all_tasks(results: Results) -> str:
    missing = [name for name in TASKS if name not in results.spec.tasks]
    return f"Without {', '.join(missing)} it cannot be decided." if missing else runs.trained_as_long(results)


def _shares(task: str, model: str) -> str:
    standard, harmonic = (100 * anchors.EXPLAINED_VARIANCE[task][model, head] for head in ("linear", "harmonic"))
    return f"standard {standard:.1f} %, harmonic {harmonic:.1f} %"


def _claim(protocol: str, task: str, statement: str, shares: str, needs: Test, judge: Judge) -> Claim:
    return Claim(
        f"{task}_{protocol}",
        f"{statement} ({protocol} protocol).",
        "Fig. 2 shows it for one seed; no measure of it is reported. Variance in two components, mean of the authors' "
        f"20 seeds: {shares}.",
        control=protocol == "matched",
        needs=needs,
        judge=judge,
        enough=runs.trained_as_long if task in TASKS else _all_tasks,
    )


def _claims_of(protocol: str) -> list[Claim]:
    mlps, transformers = (where(protocol=protocol, model=model) for model in ("mlp", "transformer"))
    all_five = "In all five tasks the same holds of the harmonic transformer against the standard one"
    shares = "; ".join(f"{TITLES[task].lower()} {_shares(task, 'transformer')}" for task in TASKS)
    return [
        *(
            _claim(protocol, task, words, _shares(task, "mlp"), where(mlps, task=task), _judge_task)
            for task, words in STATEMENTS.items()
        ),
        _claim(protocol, "transformers", all_five, shares, transformers, _judge_transformers),
    ]


CLAIMS = tuple(claim for protocol in PROTOCOLS for claim in _claims_of(protocol))


def tables(results: Results) -> list[Table]:
    """Tabulate the medians of all measures, one table per task."""
    title, rows = "{}: medians over the runs that did not diverge", runs.places(results, arm=ARMS)
    return [
        Table(title.format(TITLES[task]), tuple(_row(at) for at in rows if at.task == task))
        for task in results.spec.tasks
    ]


def _row(at: Any) -> dict[str, Any]:
    kind = find_task(at.task).structure.kind
    numbers = [name for name, path in NUMBERS[kind].items() if not path.endswith(("name", "side", "frequency"))]
    whole = at.own.metric("explained variance").present
    row = {"protocol": at.protocol, "model": MODEL_STYLES[at.arm].label, "runs": len(at.own)}
    row["diverged"] = len(at.own) - len(whole)
    for name in ("explained variance", *numbers):
        row[name] = float(np.median(at.own.metric(name).present.values)) if len(whole) else None
    if kind == "circle":
        row["runs with a clean circle"] = float(sum(at.own.metric("clean").present)) if len(whole) else None
    return row


def figures(results: Results) -> dict[str, Picture]:
    """Draw the planes of one seed per model, then those of every seed."""
    drawn = {f"planes_{protocol}": _draw_planes(own, protocol) for protocol, own in results.groups("protocol").items()}
    for (protocol, task), own in results.groups("protocol", "task").items():
        drawn[f"planes_{task}_{protocol}"] = _draw_seeds(own, protocol, task)
    return drawn


def _draw_planes(results: Results, protocol: str) -> Picture:
    tasks = results.spec.tasks
    rows, size = {task: TITLES[task] for task in tasks}, (8.6, 2.24 * len(tasks) + 0.5)
    figure, panels = drawing.facets(rows, dict.fromkeys(ARMS, ""), size=size)
    for (task, arm), axes in panels.items():
        found = {cell.seed: result for cell, result in results.where(task=task, arm=arm).items()}
        share = planes.draw_middle(axes, find_task(task, protocol=protocol).structure, found)
        axes.set_title(f"{MODEL_STYLES[arm].label}\n{share}" if task == tasks[0] else share)
    return Picture(
        figure,
        f"Tokens in the plane of their first two principal components, {protocol} protocol; each title is the share "
        "of the variance that lies in this plane. Each panel is the seed whose share is the median of the "
        f"{runs.seeds_of(results)} (the lower of two; diverged runs count as 0). Lattice: neighbors are joined. "
        "Modular addition: joined and colored in the order of the frequency that fits the plane best. Equivalence: one "
        "color per class. Genealogy: colored by depth, dark at the root, children joined to parents. Permutation: one "
        "color and hull per coset, of the best cosets in the plane, which need not be better than chance.",
    )


def _draw_seeds(results: Results, protocol: str, task: str) -> Picture:
    """Draw every seed of every model on one task; with few seeds the models stand side by side."""
    seeds, structure = results.spec.seeds, find_task(task, protocol=protocol).structure
    beside = 4 if len(seeds) <= 3 else 2 if len(seeds) <= 5 else 1
    rows, columns = -(-len(seeds) // planes.SHEET_COLUMNS), min(len(seeds), planes.SHEET_COLUMNS)
    size = (10, len(ARMS) // beside * (9.3 / (beside * columns) * rows + 0.36))
    labels = {arm: style.label for arm, style in MODEL_STYLES.items()}
    figure, panels, _ = drawing.wrapped(labels, beside, size=size)
    for arm, axes in panels.items():
        ends = results.where(arm=arm).take(lambda cell, result: last_embedding(result)).by("seed")
        drawn: list[Any] = []
        words = []
        for seed in seeds:
            end, lost = ends.get(seed), "diverged" if seed in ends else "not finished"
            drawn.append(None if end is None else planes.plane_of(structure, end, coarse=True))
            words.append(lost if end is None else planes.percent(explained_variance(end)))
        planes.draw_sheet(axes, drawn, words)
    return Picture(
        figure,
        f"{TITLES[task]}, {protocol} protocol: the same planes for every seed, row by row "
        f"{', '.join(map(str, seeds))}; in each cell the share of the variance that it shows.",
    )


EXPERIMENT = runs.view("representations", "What the embeddings look like", "Fig. 2", CLAIMS, measure, tables, figures)
