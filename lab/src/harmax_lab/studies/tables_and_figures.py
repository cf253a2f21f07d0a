"""Tables and figures that the studies share: scores, effects, epochs, and what a mean over tasks or runs hides.

`arms` maps each arm to its label, `effects` a name to the weights of arms.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.analysis import bootstrap_interval, holm
from harmax_lab.algorithmic.runs import BODIES, TITLES
from harmax_lab.kit import drawing
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.results import interval
from harmax_lab.kit.tables import Table, in_epochs
from harmax_lab.paper.readings import PASSED
from harmax_lab.studies.compare_arms import Place, Weights, written
from harmax_lab.studies.score_runs import SCORES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCORES_TITLE = "Scores: mean over seeds [95 %]"
EPOCHS_TITLE = (
    "Epochs from which runs have learned and generalize: above 0.9 for 20 in a row; never counts as infinity. Training "
    "accuracy is measured with dropout where there is some, so a run can generalize without having learned"
)
ELSEWHERE = (
    "Structure elsewhere: of the head's own weight where it is not tied, and of vectors at their own length where they "
    "are judged at length one; mean over seeds [95 %]"
)
PASSING = "Structure of runs that pass the test (late accuracy of 0.9 or more) and of those that fail it: means"
WITHOUT_ONE = "without one task: what the means over tasks rest on; mean over seeds [95 %]"
WITHOUT = f"Structure {WITHOUT_ONE}"
ZERO, CLEAR, UNCLEAR = "#777777", "#0072B2", "#999999"


def each(places: Iterable[Place]) -> list[Place]:
    """List the tasks of all places apart and, where there are several, together."""
    return [one for place in places for one in place.each()]


def alone(places: Iterable[Place]) -> list[Place]:
    """List the tasks of all places apart."""
    return [one for place in places for one in place.alone()]


def score_table(title: str, places: Iterable[Place], arms: Mapping[str, str]) -> Table:
    """Tabulate scores, one column per arm."""
    rows = [
        {**place.columns, "score": words, **{label: place.mean(arm, score) for arm, label in arms.items()}}
        for place, (score, words) in product(each(places), SCORES.items())
    ]
    return Table(title, tuple(rows))


def effect_table(title: str, places: Iterable[Place], effects: Mapping[str, Weights]) -> Table:
    """Tabulate effects by task and score; p-values are corrected for all of one protocol and score."""
    rows: list[dict[str, Any]] = []
    families: dict[tuple[str, str], list[tuple[dict[str, Any], str]]] = {}
    everyone = {arm: 1.0 for weights in effects.values() for arm in weights}
    for place, score in product(each(places) if effects else [], SCORES):
        found = {name: place.contrast(weights, score) for name, weights in effects.items()}
        row: dict[str, Any] = {
            **place.columns,
            "score": SCORES[score],
            "seeds": len(place.per_seed(everyone, score)),
            **{name: written(one) for name, one in found.items()},
            **{f"p, Holm, {name}": one and one.rank_p for name, one in found.items()},
        }
        rows.append(row)
        family = families.setdefault((place.protocol, score), [])
        family += [(row, f"p, Holm, {name}") for name, one in found.items() if one]
    for family in families.values():
        for (row, column), p in zip(family, holm([row[column] for row, column in family]), strict=True):
            row[column] = p
    return Table(title, tuple(rows))


def without_one(places: Iterable[Place], effects: Mapping[str, Weights], score: str = "structure") -> Table:
    """Tabulate effects with each task left out in turn, where there are more than two."""
    rows = []
    for place in [one for one in places if len(one.tasks) > 2]:
        asked = {"all tasks": place}
        for task in place.tasks:
            rest = tuple(one for one in place.tasks if one != task)
            asked[f"without {TITLES[task]}"] = place._replace(tasks=rest)
        for name, weights in effects.items():
            row = {"protocol": place.protocol, "models": BODIES[place.model], "of": name}
            rows.append({**row, **{words: written(at.contrast(weights, score)) for words, at in asked.items()}})
    return Table(f"{SCORES[score].capitalize()} {WITHOUT_ONE}", tuple(rows))


def run_tables(places: Iterable[Place], arms: Mapping[str, str], column: str = "arm") -> tuple[Table, Table, Table]:
    """Tabulate, by task and arm: when runs learn, the structure of runs that pass the test, and structure elsewhere.

    The structure of runs that fail the test need not be that of runs that pass. Elsewhere is the head's own weight
    where it is not the embedding, and the rows at their own length where they are judged at length one; a diverged run
    counts as 0 there. `column` is the heading of the arms in the first table.
    """
    epochs, passing, elsewhere = [], [], []
    for place, (arm, label) in product(alone(places), arms.items()):
        if not (found := place.metrics(arm)):
            continue
        epochs.append({**place.columns, column: label, **_epochs_of(found)})
        row = {**place.columns, "arm": label, "runs": len(found)}
        passed, failed = (
            [one["structure"] for one in found if (one["accuracy"] >= PASSED) == side] for side in (True, False)
        )
        means = [float(np.mean(values)) if values else None for values in (passed, failed)]
        passing.append({**row, "pass": len(passed), "structure where they pass": means[0], "where they fail": means[1]})
        untied = any(one.get("center_structure") is not None for one in found)
        scaled = any(one.get("structure_raw", one["structure"]) != one["structure"] for one in found)
        if untied or scaled:
            row["as judged"] = _mean_of(found, "structure")
            row["at their own length"] = _mean_of(found, "structure_raw") if scaled else ""
            row["of the head's own weight"] = _mean_of(found, "center_structure") if untied else ""
            elsewhere.append(row)
    empty = {name for row in elsewhere for name in row if not any(one[name] for one in elsewhere)}
    shown = tuple({name: row[name] for name in row if name not in empty} for row in elsewhere)
    return Table(EPOCHS_TITLE, tuple(epochs)), Table(PASSING, tuple(passing)), Table(ELSEWHERE, shown)


def _epochs_of(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    training, test = ([one[f"{side}_epoch"] for one in found] for side in ("train", "test"))
    return {
        "runs": len(found),
        "diverged": sum(one["diverged_at"] is not None for one in found),
        "learn": sum(epoch is not None for epoch in training),
        "generalize": sum(epoch is not None for epoch in test),
        "training, median [95 %]": in_epochs(bootstrap_interval(training)),
        "test, median [95 %]": in_epochs(bootstrap_interval(test)),
    }


def _mean_of(found: Sequence[Mapping[str, Any]], name: str) -> str:
    return str(interval([one.get(name) or 0.0 for one in found]))


def draw_effects(places: Sequence[Place], effects: Mapping[str, Weights], score: str, title: str) -> "Figure":
    """Draw effects on a score under one protocol with their intervals, gray where these span 0: a panel per task."""
    models = {place.model: place.each() for place in places}
    tasks = {index: textwrap.fill(one.words, 13) for index, one in enumerate(next(iter(models.values())))}
    size = (1.6 * len(tasks) + 2.2, 0.28 * len(effects) + 1.9)
    marks = {model: MODEL_STYLES[model, "linear"].marker for model in models}
    handles = [drawing.mark_handle(BODIES[model], mark, "#444444") for model, mark in marks.items()]
    figure, panels = drawing.panels_in_a_row(
        tasks, size=size, handles=handles if len(models) > 1 else (), title=title, sharex=True, sharey=True
    )
    for task, axes in panels.items():
        axes.axvline(0, color=ZERO, linewidth=0.9, zorder=1)
        for (place, model), (line, weights) in product(enumerate(models), enumerate(effects.values())):
            if one := models[model][task].contrast(weights, score):
                height = line + 0.36 * (place - (len(models) - 1) / 2)
                color = UNCLEAR if one.difference.above(0) is None else CLEAR
                axes.plot(one.difference[1:], [height, height], color=color, linewidth=1.4, zorder=2)
                mark: dict[str, Any] = {"marker": marks[model], "markersize": 4.5, "markeredgewidth": 0}
                axes.plot(one.difference.estimate, height, color=color, zorder=3, **mark)
        axes.set(yticks=range(len(effects)), yticklabels=effects, ylim=(len(effects) - 0.5, -0.5))
        axes.locator_params(axis="x", nbins=4)
        axes.tick_params(axis="both", labelsize=8)
    figure.supxlabel("left of 0 a loss is behind harmonic loss, right of 0 it is ahead", fontsize=9)
    return figure
