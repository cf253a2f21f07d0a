"""Tables and figures that the studies share: scores, effects, epochs, and what a mean over tasks or runs hides."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from harmax.analysis import PairedDifference, bootstrap_interval, holm
from harmax_lab.algorithmic.runs import BODIES, TITLES
from harmax_lab.kit import drawing
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.tables import Table, in_epochs
from harmax_lab.studies.compare_arms import Place, Weights, written
from harmax_lab.studies.score_runs import SCORES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPOCHS = (
    "Epochs from which runs have learned and generalize: above 0.9 for 20 in a row; never counts as infinity. Training "
    "accuracy is measured with dropout where there is some, so a run can generalize without having learned"
)
ELSEWHERE = (
    "Structure elsewhere: of the head's own weight where it is not tied, and of vectors at their own length where they "
    "are judged at length one; mean over seeds [95 %]"
)
PASSING = "Structure of runs that pass the test (late accuracy of 0.9 or more) and of those that fail it: means"
PASS = 0.9
WITHOUT_ONE = "without one task: what the means over tasks rest on; mean over seeds [95 %]"
WITHOUT = f"Structure {WITHOUT_ONE}"
ZERO, CLEAR, UNCLEAR = "#777777", "#0072B2", "#999999"
R = TypeVar("R")
K = TypeVar("K")


def score_table(title: str, places: Iterable[Place], arms: Mapping[str, str]) -> Table:
    """Tabulate scores, one column per arm; `arms` maps each arm to its label, here and below."""
    rows = [
        {**place.columns, "score": words, **{label: place.mean(arm, score) for arm, label in arms.items()}}
        for whole in places
        for place in whole.each()
        for score, words in SCORES.items()
    ]
    return Table(title, tuple(rows))


def effect_table(title: str, places: Iterable[Place], effects: Mapping[str, Weights]) -> Table:
    """Tabulate effects by task and score; p-values are corrected for all of one protocol and score."""
    rows: list[dict[str, Any]] = []
    families: dict[tuple[str, str], list[tuple[dict[str, Any], str, float]]] = {}
    everyone = {arm: 1.0 for weights in effects.values() for arm in weights}
    for place in [one for whole in places for one in whole.each()] if effects else []:
        for score, words in SCORES.items():
            found = {name: place.contrast(weights, score) for name, weights in effects.items()}
            row: dict[str, Any] = {
                **place.columns,
                "score": words,
                "seeds": len(place.per_seed(everyone, score)),
                **{name: written(one) for name, one in found.items()},
                **{f"p, Holm, {name}": None for name in found},
            }
            rows.append(row)
            family = families.setdefault((place.protocol, score), [])
            family += [(row, f"p, Holm, {name}", one.rank_p) for name, one in found.items() if one]
    for family in families.values():
        for (row, column, _), p in zip(family, holm([p for *_, p in family]), strict=True):
            row[column] = p
    return Table(title, tuple(rows))


def without_one(places: Iterable[Place], effects: Mapping[str, Weights], score: str = "structure") -> Table:
    """Tabulate effects with each task left out in turn, where there are more than two."""
    rows = [
        {
            "protocol": whole.protocol,
            "models": BODIES[whole.model],
            "of": name,
            "all tasks": written(whole.contrast(weights, score)),
            **{
                f"without {TITLES[task]}": written(
                    whole._replace(tasks=tuple(one for one in whole.tasks if one != task)).contrast(weights, score)
                )
                for task in whole.tasks
            },
        }
        for whole in places
        if len(whole.tasks) > 2
        for name, weights in effects.items()
    ]
    return Table(f"{SCORES[score].capitalize()} {WITHOUT_ONE}", tuple(rows))


def run_tables(places: Iterable[Place], arms: Mapping[str, str], column: str = "arm") -> tuple[Table, Table, Table]:
    """Tabulate, by task and arm: when runs learn, the structure of runs that pass the test, and structure elsewhere.

    The structure of runs that fail the test need not be that of runs that pass. Elsewhere is the head's own weight
    where it is not the embedding, and the rows at their own length where they are judged at length one. A diverged run
    counts as 0 there.

    Args:
        places: every task of each is looked at alone.
        arms: the label of each arm.
        column: heading of the arms in the first table.
    """
    epochs, passing, elsewhere = [], [], []
    for place in [one for whole in places for one in whole.alone()]:
        for arm, label in arms.items():
            if not (found := place.metrics(arm)):
                continue
            epochs.append({**place.columns, column: label, **_epochs_of(found)})
            row = {**place.columns, "arm": label, "runs": len(found)}
            passing.append({**row, **_by_passing(found)})
            untied = any(one.get("center_structure") is not None for one in found)
            scaled = any(one.get("structure_raw", one["structure"]) != one["structure"] for one in found)
            if untied or scaled:
                columns = {
                    "as judged": _mean_of(found, "structure"),
                    "at their own length": _mean_of(found, "structure_raw") if scaled else "",
                    "of the head's own weight": _mean_of(found, "center_structure") if untied else "",
                }
                elsewhere.append({**row, **columns})
    used = [name for name in (elsewhere[0] if elsewhere else ()) if any(row[name] != "" for row in elsewhere)]
    shown = tuple({name: row[name] for name in used} for row in elsewhere)
    return Table(EPOCHS, tuple(epochs)), Table(PASSING, tuple(passing)), Table(ELSEWHERE, shown)


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


def _by_passing(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    passed, failed = (
        [one["structure"] for one in found if (one["accuracy"] >= PASS) == side] for side in (True, False)
    )
    means = [float(np.mean(values)) if values else None for values in (passed, failed)]
    return {"pass": len(passed), "structure where they pass": means[0], "where they fail": means[1]}


def _mean_of(found: Sequence[Mapping[str, Any]], name: str) -> str:
    return str(bootstrap_interval([one.get(name) or 0.0 for one in found], statistic="mean"))


def draw_effects(
    models: Sequence[str],
    rows: Mapping[R, str],
    columns: Mapping[K, str],
    labels: Sequence[str],
    effects: Callable[[str, R, K], Sequence[PairedDifference | None]],
    *,
    size: tuple[float, float],
) -> "Figure":
    """Draw a panel per row and column: effects one under the other with their intervals, gray where these span 0.

    Args:
        models: each has a mark of its own.
        rows: by key, the words at the left of a row of panels.
        columns: by key, the title of a column of panels.
        labels: of the effects in a panel, from the top down.
        effects: returns those of a model in the panel of a row and column.
        size: of the figure, in inches.
    """
    marks = {model: MODEL_STYLES[model, "linear"].marker for model in models}
    handles = [drawing.mark_handle(BODIES[model], mark, "#444444") for model, mark in marks.items()]
    figure, panels = drawing.facets(rows, columns, size=size, handles=handles, sharex="row", sharey=True)
    step = 0.36 if len(models) > 1 else 0.0
    for (row, column), axes in panels.items():
        axes.axvline(0, color=ZERO, linewidth=0.9, zorder=1)
        for place, (model, mark) in enumerate(marks.items()):
            for line, one in enumerate(effects(model, row, column)):
                if one is None:
                    continue
                middle, *ends = one.difference
                height = line + step * (place - (len(models) - 1) / 2)
                color = UNCLEAR if one.difference.above(0) is None else CLEAR
                axes.plot(ends, [height, height], color=color, linewidth=1.4, zorder=2)
                axes.plot(middle, height, marker=mark, color=color, markersize=4.5, markeredgewidth=0, zorder=3)
        axes.set(yticks=range(len(labels)), yticklabels=labels, ylim=(len(labels) - 0.5, -0.5))
        axes.locator_params(axis="x", nbins=5 if len(columns) <= 3 else 3)
        axes.tick_params(axis="both", labelsize=8)
    return figure


def draw_switches(places: Mapping[str, Place], effects: Mapping[str, Weights]) -> "Figure":
    """Draw what two switches do, a row per score and a column per effect; `places` are by model."""
    labels = [place.words for place in next(iter(places.values())).each()]
    return draw_effects(
        list(places),
        SCORES,
        dict(zip(effects, effects, strict=True)),
        labels,
        lambda model, score, name: [one.contrast(effects[name], score) for one in places[model].each()],
        size=(10, len(SCORES) * (0.28 * len(labels) + 0.75) + 0.6),
    )
