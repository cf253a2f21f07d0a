"""What the embeddings look like: tokens in the plane of two principal components, and how much structure they show.

A view of the runs of `algorithmic`: Fig. 2 of the paper, and every seed behind it.
"""

# K shown tokens, D features

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.analysis import PairedDifference, bootstrap_interval, explained_variance
from harmax.figures import Picture
from harmax_lab.algorithmic import anchors, planes, runs
from harmax_lab.algorithmic.measures import (
    CLEAN,
    MAIN,
    compare,
    decided,
    last_embedding,
    measure,
    shared_level,
)
from harmax_lab.algorithmic.runs import (
    ARMS,
    TITLES,
    AlgorithmicSpec,
    Results,
    by_seed,
    seeds_in_words,
    too_short,
)
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding, Verdict
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.experiment import Summary, conclude, view
from harmax_lab.kit.tables import Table
from harmax_lab.tasks import PROTOCOLS, TASKS, Structure, find_task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Arm = tuple[str, str]
Measured = Mapping[RunCell, dict[str, Any] | None]

STATEMENTS = {
    "lattice": "The harmonic MLP's tokens lie closer to a lattice than the standard MLP's",
    "modular_addition": "The harmonic MLP's residues lie closer to one circle than the standard MLP's",
    "equivalence": "The harmonic MLP's numbers gather more tightly by class than the standard MLP's",
    "genealogy": "The harmonic MLP's nodes stand more as in the family tree than the standard MLP's",
    "permutation": "The harmonic MLP's permutations cluster more clearly by cosets than the standard MLP's",
}
TRANSFORMERS = "transformers"


def _claim(task: str, protocol: str) -> Claim:
    if task == TRANSFORMERS:
        statement = "In all five tasks the same holds of the harmonic transformer against the standard one"
        shares = "; ".join(f"{TITLES[name].lower()} {_shares(name, 'transformer')}" for name in TASKS)
    else:
        statement, shares = STATEMENTS[task], _shares(task, "mlp")
    return Claim(
        f"{task}_{protocol}",
        f"{statement} ({protocol} protocol).",
        "Fig. 2 shows it for one seed; no measure of it is reported. Variance in two components, mean of the authors' "
        f"20 seeds: {shares}.",
        control=protocol == "matched",
    )


def _shares(task: str, model: str) -> str:
    found = anchors.EXPLAINED_VARIANCE[task]
    return f"standard {100 * found[model, 'linear']:.1f} %, harmonic {100 * found[model, 'harmonic']:.1f} %"


CLAIMS = tuple(_claim(task, protocol) for protocol in PROTOCOLS for task in (*TASKS, TRANSFORMERS))


def structure_of(task: str, protocol: str) -> Structure:
    """Return what the shown tokens of a task mean."""
    return find_task(task, protocol=protocol).structure


def measured(results: Results) -> Measured:
    """Measure every run's last embedding, None where it diverged."""
    found: dict[RunCell, dict[str, Any] | None] = {}
    for cell, result in results.items():
        embedding = last_embedding(result)
        found[cell] = None
        if embedding is not None:
            structure = structure_of(cell.task, cell.protocol)
            found[cell] = {"explained variance": explained_variance(embedding), **measure(structure, embedding)}
    return found


def of_arm(found: Measured, protocol: str, task: str, arm: Arm) -> dict[int, dict[str, Any] | None]:
    """Return the measures of one model on one task, by seed."""
    return {
        cell.seed: one for cell, one in found.items() if (cell.protocol, cell.task, cell.arm) == (protocol, task, arm)
    }


def comparison(
    found: Measured, protocol: str, task: str, model: str, *, level: float = 0.95
) -> tuple[PairedDifference, str]:
    """Compare a model's two heads on a task, seed by seed; return how much better harmonic is, and the words."""
    main = MAIN[structure_of(task, protocol).kind]
    standard, harmonic = (of_arm(found, protocol, task, (model, head)) for head in ("linear", "harmonic"))
    seeds = sorted(standard.keys() & harmonic.keys())
    values = {
        name: [None if (one := arm[seed]) is None else one[main.key] for seed in seeds]
        for name, arm in (("standard", standard), ("harmonic", harmonic))
    }
    difference = compare(main, values["harmonic"], values["standard"], level=level)
    medians = {name: bootstrap_interval([main.worst if v is None else v for v in arm]) for name, arm in values.items()}
    lost = sum(value is None for arm in values.values() for value in arm)
    words = (
        f"{main.words}: harmonic {medians['harmonic']}, standard {medians['standard']}; harmonic is better on "
        f"{difference.greater} of {len(seeds)} seeds (sign test p = {difference.sign_p:.2g})"
    )
    return difference, words + (f"; diverged, counted as the worst: {lost}" if lost else "")


def judge_task(results: Results, *, found: Measured, protocol: str, task: str) -> Finding:
    """Judge by the paired difference of the task's main measure: its interval against 0."""
    difference, words = comparison(found, protocol, task, "mlp")
    clean = ""
    numbers: dict[str, Any] = {"better_by": difference.difference._asdict(), "sign_p": difference.sign_p}
    if task == "modular_addition":
        counts = {head: _clean_runs(found, protocol, ("mlp", head)) for head in ("harmonic", "linear")}
        clean = (
            f" One frequency leaves at most {CLEAN:.0%} of the variance in {counts['harmonic']} harmonic and "
            f"{counts['linear']} standard runs."
        )
        numbers |= {f"clean_{head}": count for head, count in counts.items()}
    return Finding(decided(difference), f"Medians and 95 % intervals of the {words}.{clean}", numbers)


def judge_transformers(results: Results, *, found: Measured, protocol: str) -> Finding:
    """Judge each task as for MLPs: all must hold, and one that does not is enough.

    The one is a choice among the tasks, so the level of the interval that tells it is shared out among them.
    """
    tasks = list(dict.fromkeys(cell.task for cell in results))
    compared = {task: comparison(found, protocol, task, "transformer") for task in tasks}
    holds = {task: decided(difference) for task, (difference, _) in compared.items()}
    level = shared_level(len(tasks))
    strict = {decided(comparison(found, protocol, task, "transformer", level=level)[0]) for task in tasks}
    verdict = False if False in strict else True if set(holds.values()) == {True} else None
    named = {True: "better", False: "worse", None: "no clear difference"}
    return Finding(
        verdict,
        " ".join(f"{TITLES[task]}: {named[holds[task]]}, {words}." for task, (_, words) in compared.items()),
        {f"better_by_{task}": difference.difference._asdict() for task, (difference, _) in compared.items()},
    )


def _clean_runs(found: Measured, protocol: str, arm: Arm) -> int:
    return sum(one is not None and one["clean"] for one in of_arm(found, protocol, "modular_addition", arm).values())


def summarize(spec: AlgorithmicSpec, results: Results) -> Summary:
    """Judge every task under every protocol, and tabulate all measures."""
    found = measured(results)
    verdicts = tuple(
        _judge(spec, results, found, task, protocol) for protocol in PROTOCOLS for task in (*TASKS, TRANSFORMERS)
    )
    return Summary(verdicts, tuple(_table(spec, found, task) for task in spec.tasks))


def _judge(spec: AlgorithmicSpec, results: Results, found: Measured, task: str, protocol: str) -> Verdict:
    judge: Callable[[Results], Finding]
    if task == TRANSFORMERS:
        model, tasks = "transformer", tuple(TASKS)
        judge = partial(judge_transformers, found=found, protocol=protocol)
    else:
        model, tasks = "mlp", (task,)
        judge = partial(judge_task, found=found, protocol=protocol, task=task)
    own = [cell for cell in runs.cells(spec) if (cell.protocol, cell.model) == (protocol, model)]
    wanted = [cell for cell in own if cell.task in tasks]
    missing = [name for name in tasks if name not in spec.tasks]
    short = f"Without {', '.join(missing)} it cannot be told." if missing else too_short(spec, model)
    return conclude(f"{task}_{protocol}", judge, wanted, results, too_short=short)


def _table(spec: AlgorithmicSpec, found: Measured, task: str) -> Table:
    rows = []
    keys = _keys(task, spec.protocols[0])
    for protocol in spec.protocols:
        for arm in ARMS:
            every = list(of_arm(found, protocol, task, arm).values())
            whole = [one for one in every if one is not None]
            medians = {key: float(np.median([one[key] for one in whole])) if whole else None for key in keys}
            if "clean" in medians:
                medians["clean"] = float(sum(one["clean"] for one in whole)) if whole else None
            counts = {"runs": len(every), "diverged": len(every) - len(whole)}
            rows.append({"protocol": protocol, "model": MODEL_STYLES[arm].label, **counts, **_retitled(medians)})
    return Table(f"{TITLES[task]}: medians over the runs that did not diverge", tuple(rows))


def _keys(task: str, protocol: str) -> list[str]:
    """Name the measures of a task that are numbers with a sensible median."""
    structure = structure_of(task, protocol)
    example = measure(structure, np.random.default_rng(0).normal(size=(len(structure.values), 16)))
    return ["explained variance", *(k for k, v in example.items() if not isinstance(v, str) and k != "frequency")]


def _retitled(medians: dict[str, float | None]) -> dict[str, float | None]:
    return {"runs with a clean circle" if key == "clean" else key: value for key, value in medians.items()}


def figures(spec: AlgorithmicSpec, results: Results) -> dict[str, Picture]:
    """Draw the planes of one seed a model, then those of every seed."""
    drawn = {}
    for protocol in spec.protocols:
        if any(cell.protocol == protocol for cell in results):
            drawn[f"planes_{protocol}"] = Picture(
                draw_planes(spec.tasks, protocol, results),
                f"Tokens in the plane of their first two principal components, {protocol} protocol; above each panel "
                "the share of the variance that lies in this plane. Each panel is the seed whose share is the median "
                f"of the {seeds_in_words(spec, results, protocol=protocol)} (the lower of two; diverged runs count as "
                "0). Lattice: neighbors are joined. Modular addition: joined and colored in the order of "
                "the frequency that fits the plane best. Equivalence: a color a class. Genealogy: colored by depth, "
                "dark at the "
                "root, children joined to parents. Permutation: a color and a hull a coset, of the cosets with the "
                "best silhouette in the plane, which need not be better than chance.",
            )
    for protocol in spec.protocols:
        for task in spec.tasks:
            if any((cell.protocol, cell.task) == (protocol, task) for cell in results):
                drawn[f"planes_{task}_{protocol}"] = Picture(
                    draw_seeds(spec, protocol, task, results),
                    f"{TITLES[task]}, {protocol} protocol: the same planes for every seed, row by row "
                    f"{', '.join(map(str, spec.seeds))}; in each cell the share of the variance that it shows.",
                )
    return drawn


def draw_planes(tasks: Sequence[str], protocol: str, results: Results) -> "Figure":
    """Draw a row a task, a column a model: the seed of median explained variance."""
    figure = drawing.new_figure(8.6, 2.24 * len(tasks) + 0.5)
    grid = figure.subplots(len(tasks), len(ARMS), squeeze=False)
    for row, task in zip(grid, tasks, strict=True):
        structure = structure_of(task, protocol)
        for axes, arm in zip(row, ARMS, strict=True):
            axes.set_title(planes.draw_middle(axes, structure, by_seed(results, protocol, task, arm)))
        row[0].set_ylabel(TITLES[task])
    for axes, arm in zip(grid[0], ARMS, strict=True):
        axes.set_title(f"{MODEL_STYLES[arm].label}\n{axes.get_title(loc='left')}")
    return figure


def draw_seeds(spec: AlgorithmicSpec, protocol: str, task: str, results: Results) -> "Figure":
    """Draw every seed of every model on one task; with few seeds the models stand side by side."""
    seeds = len(spec.seeds)
    beside = 4 if seeds <= 3 else 2 if seeds <= 5 else 1
    rows, columns = -(-seeds // planes.SHEET_COLUMNS), min(seeds, planes.SHEET_COLUMNS)
    cell = 9.3 / (beside * columns)
    figure = drawing.new_figure(10, len(ARMS) // beside * (cell * rows + 0.36))
    structure = structure_of(task, protocol)
    for axes, arm in zip(figure.subplots(len(ARMS) // beside, beside, squeeze=False).flat, ARMS, strict=True):
        found = by_seed(results, protocol, task, arm)
        panels: list[tuple[np.ndarray, planes.Look] | None] = []
        words = []
        for seed in spec.seeds:
            embedding = last_embedding(found[seed]) if seed in found else None
            panels.append(None if embedding is None else planes.plane_of(structure, embedding, coarse=True))
            missing = "diverged" if seed in found else "not finished"
            words.append(missing if embedding is None else planes.percent(explained_variance(embedding)))
        planes.draw_sheet(axes, panels, words)
        axes.set_title(MODEL_STYLES[arm].label)
    return figure


EXPERIMENT = view(
    runs.EXPERIMENT,
    name="representations",
    title="What the embeddings look like",
    figure="Fig. 2",
    claims=CLAIMS,
    old_summarize=summarize,
    old_figures=figures,
)
