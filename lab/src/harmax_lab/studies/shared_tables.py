"""Tables that the studies share: when runs learn, what their structure is and whose, and what a mean of it rests on."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from harmax.analysis import bootstrap_interval
from harmax_lab.algorithmic.runs import TITLES
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table, in_epochs
from harmax_lab.studies.outcomes import BODIES, SCORES, Outcomes, Place, contrast, written

EPOCHS_TITLE = (
    "Epochs from which runs have learned and generalize: above 0.9 for 20 in a row, in training with dropout where "
    "there is some, so that a run can generalize and not have learned; never counts as infinity"
)
ELSEWHERE = (
    "Structure elsewhere: of the head's own weight where it is not tied, of vectors at their own length where they are "
    "judged at length one; mean over seeds [95 %]"
)
PASSING = "Structure of runs that pass the test, late accuracy of 0.9 or more, and of those that fail it: means"
PASS = 0.9
WITHOUT_ONE = "without one task: what the means over tasks rest on; mean over seeds [95 %]"
WITHOUT = f"Structure {WITHOUT_ONE}"


def epoch_table(outcomes: Outcomes, places: Iterable[Place], arms: Mapping[str, str], column: str = "arm") -> Table:
    """Tabulate when every arm learns and generalizes, task by task.

    Args:
        outcomes: by arm.
        places: every task of each is looked at alone.
        arms: the label of each arm.
        column: what arms are.
    """
    rows = [
        {**place.columns, column: label, **_epochs_of(outcomes[key])}
        for whole in places
        for place in whole.alone()
        for arm, label in arms.items()
        if (key := (place.protocol, place.model, place.tasks[0], arm)) in outcomes
    ]
    return Table(EPOCHS_TITLE, tuple(rows))


def _epochs_of(runs: Mapping[int, CellResult]) -> dict[str, Any]:
    found = [result.metrics for result in runs.values()]
    training, test = ([one[f"{side}_epoch"] for one in found] for side in ("train", "test"))
    return {
        "runs": len(found),
        "diverged": sum(one["diverged_at"] is not None for one in found),
        "learn": sum(epoch is not None for epoch in training),
        "generalize": sum(epoch is not None for epoch in test),
        "training, median [95 %]": in_epochs(bootstrap_interval(training)),
        "test, median [95 %]": in_epochs(bootstrap_interval(test)),
    }


def without_one(
    outcomes: Outcomes, places: Iterable[Place], effects: Mapping[str, Mapping[str, float]], score: str = "structure"
) -> Table:
    """Tabulate effects once more with each task left out: what a mean over the tasks rests on.

    Args:
        outcomes: by arm.
        places: those with a mean over more than two tasks are shown.
        effects: by name, the weights of arms.
        score: a key of `SCORES`.
    """

    def mean_without(whole: Place, left_out: str, weights: Mapping[str, float]) -> str | None:
        rest = whole._replace(tasks=tuple(task for task in whole.tasks if task != left_out))
        return written(contrast(outcomes, rest, weights, score))

    rows = [
        {
            "protocol": whole.protocol,
            "models": BODIES[whole.model],
            "of": name,
            "all tasks": written(contrast(outcomes, whole, weights, score)),
            **{f"without {TITLES[task]}": mean_without(whole, task, weights) for task in whole.tasks},
        }
        for whole in places
        if len(whole.tasks) > 2
        for name, weights in effects.items()
    ]
    return Table(f"{SCORES[score].capitalize()} {WITHOUT_ONE}", tuple(rows))


def structure_tables(outcomes: Outcomes, places: Iterable[Place], arms: Mapping[str, str]) -> tuple[Table, ...]:
    """Tabulate what a mean structure does not tell: whose it is, and what there is elsewhere than in the rows judged.

    Runs that pass the test and runs that fail it are told apart, since the ones' structure need not be the others'.
    Elsewhere is the head's own weight where it is not the embedding, and the rows as they are where they are judged at
    length one; nothing where no run has any. A diverged run counts as 0.

    Args:
        outcomes: by arm.
        places: every task of each is looked at alone.
        arms: the label of each arm.
    """
    passing, elsewhere = [], []
    for place in [one for whole in places for one in whole.alone()]:
        for arm, label in arms.items():
            there = outcomes.get((place.protocol, place.model, place.tasks[0], arm), {})
            found = [one.metrics for one in there.values()]
            row = {**place.columns, "arm": label, "runs": len(found)}
            if found:
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
    tables = (
        Table(PASSING, tuple(passing)),
        Table(ELSEWHERE, tuple({name: row[name] for name in used} for row in elsewhere)),
    )
    return tuple(table for table in tables if table.rows)


def _by_passing(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    passed, failed = (
        [one["structure"] for one in found if (one["accuracy"] >= PASS) == side] for side in (True, False)
    )
    means = [float(np.mean(values)) if values else None for values in (passed, failed)]
    return {"pass": len(passed), "structure where they pass": means[0], "where they fail": means[1]}


def _mean_of(found: Sequence[Mapping[str, Any]], name: str) -> str:
    return str(bootstrap_interval([one.get(name) or 0.0 for one in found], statistic="mean"))
