"""Whether a harmonic GPT-2's embedding holds better parallelograms than a standard one's: a view of the runs of `gpt2`.

Two arms are compared on the same quadruples, with intervals over word pairs: 10,000 quadruples of 300 pairs know no
more than 300 pairs do. The loss is in units of the vocabulary's spread along two components, which is another one in
each arm; what the relation itself does shows against the arm's own shuffled pairs, where that unit cancels.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import geometric_mean
from typing import Any, NamedTuple

import numpy as np

from harmax.analysis import SETTINGS, Interval, LossComparison
from harmax.inspect.embedding import CENTERS, MEASURE, RANKS, compare_models, comparison, from_text_array
from harmax_lab.kit.claims import Claim, Finding, Verdict
from harmax_lab.kit.experiment import Summary, conclude
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table
from harmax_lab.language.arms import HARMONIC, STANDARD
from harmax_lab.language.gpt2 import ArmCell, LanguageSpec, measured_view
from harmax_lab.language.measured import Results, by_seed, settings_ratio, tasks_of
from harmax_lab.language.parallelogram_figures import figures

__all__ = ["CLAIMS", "figures", "summarize"]

DRAWS = 500  # of the bootstrap of each comparison
CHANCE = 0.025  # of one interval of 95 % lying on the wrong side
LOWER, HIGHER, UNDECIDED = "lower", "higher", "undecided"


class Comparisons(NamedTuple):
    """The two arms on one set of quadruples: of each seed, the comparison, and both against their own null."""

    between: dict[int, LossComparison]
    """Seed to harmonic against standard."""
    nulls: dict[str, dict[int, LossComparison]]
    """Arm and seed to the quadruples against their shuffled pairs."""

    @property
    def side(self) -> str:
        """Where the harmonic loss lies: all seeds must say so."""
        return agreed(side(found.ratio) for found in self.between.values())

    @property
    def side_against_null(self) -> str:
        """Where the harmonic ratio to the null lies: a whole interval beside the other arm's, on all seeds."""
        harmonic, standard = self.nulls[HARMONIC], self.nulls[STANDARD]
        return agreed(side_by_side(harmonic[seed].ratio, standard[seed].ratio) for seed in self.between)


Tasks = Mapping[str, Comparisons]
Judge = Callable[[Tasks, Results], Finding]


def side(ratio: Interval) -> str:
    """Say on which side of 1 all of a ratio's interval lies."""
    return {True: HIGHER, False: LOWER, None: UNDECIDED}[ratio.above(1)]


def side_by_side(first: Interval, second: Interval) -> str:
    """Say where an interval lies from another one; they are undecided where they overlap, which is a strict reading."""
    return LOWER if first.high < second.low else HIGHER if first.low > second.high else UNDECIDED


def agreed(sides: Iterable[str]) -> str:
    """Return what all say, undecided where they do not."""
    found = set(sides)
    return found.pop() if len(found) == 1 else UNDECIDED


def compare(results: Results, place: str, pairs: str) -> Comparisons | None:
    """Compare the arms on one set of quadruples, over the seeds that both have; None without any.

    Args:
        results: by cell.
        place: where the losses are, for example "parallelograms/antonym".
        pairs: the key of the quadruples' pairs.
    """
    arms = {arm: by_seed(results, arm, f"{place}/losses") for arm in (STANDARD, HARMONIC)}
    between = {}
    for seed in sorted(arms[STANDARD].keys() & arms[HARMONIC].keys()):
        found = compare_models(arms[HARMONIC][seed], arms[STANDARD][seed], place, pairs, draws=DRAWS)
        if found is not None:
            between[seed] = found
    if not between:
        return None
    nulls = {arm: {seed: comparison(arms[arm][seed][f"{place}/against_null"]) for seed in between} for arm in arms}
    return Comparisons(between, nulls)


def compare_tasks(results: Results) -> dict[str, Comparisons]:
    """Compare the arms' embeddings in every task that both have, in the paper's setting."""
    found = {task: compare(results, f"{MEASURE}/{task}", f"{MEASURE}/{task}/pairs") for task in tasks_of(results)}
    return {task: both for task, both in found.items() if both is not None}


CLAIMS = (
    Claim(
        "lower_in_every_task",
        "In each of the twelve tasks the harmonic embedding's parallelogram loss is lower than the standard one's.",
        "Harmonic GPT-2 forms better parallelograms: the distributions of its losses lie lower.",
    ),
    Claim(
        "lower_in_most_tasks",
        "In more than half of the tasks it is lower.",
        "The weaker reading of the same figure.",
    ),
    Claim(
        "better_than_shuffled",
        "In both arms pairs of one relation make better parallelograms than shuffled pairs, in more than half of the "
        "tasks.",
        "Not reported: without it there is no structure to compare.",
        control=True,
    ),
    Claim(
        "gains_more_on_shuffled",
        "Against its own shuffled pairs the harmonic embedding gains more than the standard one, in more than half of "
        "the tasks.",
        "Not reported: a lower loss may be a matter of the unit, which cancels here.",
        control=True,
    ),
    Claim(
        "in_every_setting",
        "In each of the 32 settings that the authors swept, the harmonic median is lower in more than half of the "
        "tasks.",
        "One of the 32 is shown.",
        control=True,
    ),
)


def judge_every_task(tasks: Tasks, results: Results) -> Finding:
    """Judge by the interval of every task's ratio; more on the other side than chance would put there break it."""
    return find_all({task: found.side for task, found in tasks.items()}, _differences(tasks), results)


def judge_most_tasks(tasks: Tasks, results: Results) -> Finding:
    """Judge by the number of ratios whose interval lies below 1."""
    return find_most({task: found.side for task, found in tasks.items()}, _differences(tasks), results)


def judge_null(tasks: Tasks, results: Results) -> Finding:
    """Judge both arms by how many tasks lie below their null; the weaker arm decides."""
    sides = {
        arm: {task: agreed(side(one.ratio) for one in found.nulls[arm].values()) for task, found in tasks.items()}
        for arm in (STANDARD, HARMONIC)
    }
    verdicts = [most(arm.values()) for arm in sides.values()]
    words = "; ".join(f"{arm} {counted(found.values())}" for arm, found in sides.items())
    return Finding(
        False if False in verdicts else True if all(verdicts) else None,
        f"Against their shuffled pairs the losses are, by task: {words} ({models(results)}).",
        {f"{arm}_{what}": count for arm, found in sides.items() for what, count in counts(found.values()).items()},
    )


def judge_gain(tasks: Tasks, results: Results) -> Finding:
    """Judge by the ratio of median and null median in each arm: intervals that do not overlap are apart."""
    shown = {
        task: f"{found.nulls[HARMONIC][seed].ratio} against {found.nulls[STANDARD][seed].ratio}"
        for task, found in tasks.items()
        for seed in list(found.between)[:1]
    }
    return find_most(
        {task: found.side_against_null for task, found in tasks.items()},
        "Median by null median, harmonic against standard: "
        + "; ".join(f"{task} {words}" for task, words in shown.items()),
        results,
    )


def judge_settings(tasks: Tasks, results: Results) -> Finding:
    """Judge by the medians of every setting, which have no interval of their own."""
    ratios = settings_ratio(results)
    wins = np.array([ratio < 1 for ratio in ratios.values()])  # tasks, 2, settings
    held, against_null = (int((2 * wins[:, row].sum(0) > len(wins)).sum()) for row in (0, 1))
    shares = "; ".join(f"{task} {int((ratio[0] < 1).sum())}" for task, ratio in ratios.items())
    return Finding(
        held == len(SETTINGS),
        f"It is in {held} of {len(SETTINGS)} settings, and against the arms' own shuffled pairs in {against_null}. "
        f"Settings in which it is lower, by task: {shares} ({models(results)}).",
        {
            "settings": held,
            "settings_against_null": against_null,
            **{f"settings_{task}": int((ratio[0] < 1).sum()) for task, ratio in ratios.items()},
        },
    )


JUDGES: dict[str, Judge] = {
    "lower_in_every_task": judge_every_task,
    "lower_in_most_tasks": judge_most_tasks,
    "better_than_shuffled": judge_null,
    "gains_more_on_shuffled": judge_gain,
    "in_every_setting": judge_settings,
}


def find_all(sides: Mapping[str, str], words: str, results: Results) -> Finding:
    """Conclude whether all tasks are lower; as many on the other side as chance would not put there break that."""
    found = list(sides.values())
    against = found.count(HIGHER)
    holds = True if found and found.count(LOWER) == len(found) else False if against >= too_many(len(found)) else None
    return Finding(holds, f"{words}. In all: {counted(found)} ({models(results)}).", counts(found))


def find_most(sides: Mapping[str, str], words: str, results: Results) -> Finding:
    """Conclude whether more than half of the tasks are lower."""
    found = list(sides.values())
    return Finding(most(found), f"{words}. In all: {counted(found)} ({models(results)}).", counts(found))


def most(sides: Iterable[str]) -> bool | None:
    """Say whether more than half are lower; no once as many are higher that they cannot be."""
    found = list(sides)
    return (
        True
        if 2 * found.count(LOWER) > len(found)
        else False
        if 2 * found.count(HIGHER) >= max(len(found), 1)
        else None
    )


def too_many(tasks: int) -> int:
    """Return how many intervals of 95 % on one wrong side chance gives in less than one case of twenty.

    >>> too_many(1), too_many(12)
    (1, 2)
    """

    def chance(at_least: int) -> float:
        return sum(math.comb(tasks, k) * CHANCE**k * (1 - CHANCE) ** (tasks - k) for k in range(at_least, tasks + 1))

    return next((count for count in range(1, tasks + 1) if chance(count) < 0.05), max(tasks, 1))


def counts(sides: Iterable[str]) -> dict[str, int]:
    """Count tasks by side."""
    found = list(sides)
    return {name: found.count(name) for name in (LOWER, HIGHER, UNDECIDED)}


def counted(sides: Iterable[str]) -> str:
    """Return the counts in words."""
    return ", ".join(f"{count} {name}" for name, count in counts(sides).items())


def models(results: Results) -> str:
    """Say what the intervals are over."""
    seeds = len({cell.seed for cell in results})
    if seeds == 1:
        return "one model an arm: the intervals are over word pairs, not over trainings"
    return f"{seeds} models an arm, which must agree"


def conclude_all(
    spec: LanguageSpec, results: Results, tasks: Tasks, claims: Sequence[Claim], judges: Mapping[str, Judge]
) -> tuple[Verdict, ...]:
    """Judge every claim on both arms of every seed; nothing is decided on generated tokens."""
    both = {STANDARD, HARMONIC} <= set(spec.arms)
    wanted = [ArmCell(arm, seed) for arm in (STANDARD, HARMONIC) for seed in spec.seeds] if both else []
    short = "Generated tokens have no words in them." if spec.embedded else ""
    return tuple(
        conclude(claim.id, partial(judges[claim.id], tasks), wanted, results, too_short=short) for claim in claims
    )


def summarize(spec: LanguageSpec, results: Results) -> Summary:
    """Judge every claim, and tabulate tasks, settings, the cloud of tokens, and what lies next to what."""
    tasks = compare_tasks(results)
    tables = (
        Table(
            "Median parallelogram loss and 95 % interval over word pairs, the paper's setting",
            tuple(row for task, found in tasks.items() for row in task_rows(results, task, found)),
        ),
        Table("Settings: tasks in which the harmonic median is lower", tuple(_setting_rows(results))),
        Table("The cloud of all tokens", tuple(_center_row(cell, result) for cell, result in results.items())),
        Table("The quadruples that come closest to a parallelogram", tuple(_ranked_rows(results))),
        Table("Nearest tokens", tuple(_neighbor_rows(spec, results))),
    )
    return Summary(conclude_all(spec, results, tasks, CLAIMS, JUDGES), tables)


def task_rows(results: Results, task: str, found: Comparisons, measure: str = MEASURE) -> list[dict[str, Any]]:
    """Return a row a seed: both arms, their nulls, and the comparison."""
    rows = []
    for seed, between in found.between.items():
        quadruples, pairs, _ = results[ArmCell(STANDARD, seed)].arrays[f"{measure}/{task}/counts"].tolist()
        row: dict[str, Any] = {"task": task, "seed": seed, "word pairs": pairs, "quadruples": quadruples}
        for arm in (STANDARD, HARMONIC):
            null = found.nulls[arm][seed]
            row |= {arm: str(null.first), f"{arm}, shuffled": str(null.second), f"{arm} / shuffled": str(null.ratio)}
        rows.append(
            row
            | {
                "harmonic / standard": str(between.ratio),
                "share lower": str(between.share),
                "harmonic is": side(between.ratio),
                "against shuffled": side_by_side(found.nulls[HARMONIC][seed].ratio, found.nulls[STANDARD][seed].ratio),
            }
        )
    return rows


def _setting_rows(results: Results) -> list[dict[str, Any]]:
    ratios = settings_ratio(results)
    if not ratios:
        return []
    stacked = np.stack(list(ratios.values()))  # tasks, 2, settings
    return [
        {
            "scale": setting.scale.replace("_", " "),
            "components of": setting.fit,
            "components": setting.components,
            "lower in": f"{int((stacked[:, 0, place] < 1).sum())} of {len(ratios)}",
            "lower against shuffled in": f"{int((stacked[:, 1, place] < 1).sum())} of {len(ratios)}",
            "harmonic / standard": _mean_ratio(stacked[:, 0, place]),
            "the same, each by its shuffled": _mean_ratio(stacked[:, 1, place]),
        }
        for place, setting in enumerate(SETTINGS)
    ]


def _mean_ratio(ratios: np.ndarray) -> float | None:
    usable = np.isfinite(ratios).all() and (ratios > 0).all()
    return round(geometric_mean(ratios.tolist()), 3) if usable else None


def _center_row(cell: ArmCell, result: CellResult) -> dict[str, Any]:
    norms, explained, shape = (
        result.arrays[f"{CENTERS}/vocabulary/{what}"] for what in ("norms", "explained", "shape")
    )
    return {
        "arm": cell.arm,
        "seed": cell.seed,
        "median length": round(float(norms[50]), 3),
        "middle 90 %": f"{norms[5]:.3g} to {norms[95]:.3g}",
        **{
            f"explained by {count}, %": round(100 * float(explained[min(count, len(explained)) - 1]), 2)
            for count in (2, 10, 100)
        },
        "participation ratio": round(float(shape[0]), 1),
        "effective rank": round(float(shape[1]), 1),
        "common mean, % of squared length": round(100 * float(shape[2]), 2),
    }


def _ranked_rows(results: Results) -> list[dict[str, Any]]:
    best = list(RANKS).index("best")
    rows = []
    for task in tasks_of(results):
        for cell, result in results.items():
            words = from_text_array(result.arrays[f"{MEASURE}/{task}/ranked_words"])[best]
            losses = result.arrays[f"{MEASURE}/{task}/ranked_losses"][best]
            shown = (f"{a} : {b} = {c} : {d} ({loss:.1g})" for (a, b, c, d), loss in zip(words, losses, strict=True))
            rows.append({"task": task, "arm": cell.arm, "seed": cell.seed, "quadruples (loss)": "; ".join(shown)})
    return rows


def _neighbor_rows(spec: LanguageSpec, results: Results) -> list[dict[str, Any]]:
    """Return a row a word, with the first seed of each arm."""
    rows: dict[str, dict[str, Any]] = {}
    first = {cell.arm: result for cell, result in reversed(list(results.items()))}
    for arm in (arm for arm in spec.arms if arm in first):
        for word, *near in from_text_array(first[arm].arrays[f"{CENTERS}/neighbors/words"]):
            rows.setdefault(word, {"word": word})[arm] = "  ".join(map(repr, near))
    return list(rows.values())


def _differences(tasks: Tasks) -> str:
    shown = (
        f"{task} {' and '.join(str(one.ratio) for one in found.between.values())}" for task, found in tasks.items()
    )
    return "Harmonic median by standard median: " + "; ".join(shown)


EXPERIMENT = measured_view(
    name="parallelograms",
    title="Parallelograms of word pairs in the token embedding",
    figure="GPT-2: parallelograms",
    claims=CLAIMS,
    summarize=summarize,
    figures=figures,
)
