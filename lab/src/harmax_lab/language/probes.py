"""What a probe reads in either arm's residual stream (SST-2 and CoLA): a view of the runs of `gpt2`.

There is one model an arm and seed, so intervals are over probes of these models, not over models. The paper's are too,
as far as can be told. They do not know that the dev sentences are themselves a draw, and with a thousand of them that
is the larger part of the noise; so a control draws the sentences anew as well.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from harmax.analysis.statistics import Interval
from harmax_lab.kit.claims import Claim, Finding, Verdict
from harmax_lab.kit.experiment import Summary, conclude
from harmax_lab.kit.tables import Table
from harmax_lab.language.arms import HARMONIC, STANDARD
from harmax_lab.language.gpt2 import ArmCell, LanguageSpec, measured_view
from harmax_lab.language.probe_results import (
    PAPER,
    READOUT_WORDS,
    TITLES,
    Results,
    Spot,
    compare,
    compare_on_sentences,
    majority_of,
    mean_of,
    probes_of,
    spots_of,
    tasks_of,
    title,
)
from harmax_lab.language.probe_training import SCORES
from harmax_lab.language.probes_figures import figures
from harmax_lab.language.probing import READOUTS

__all__ = ["CLAIMS", "figures", "summarize"]

AS_WELL = 1.0  # points of F1: the least deviation among the paper's probes

_REPORTED = "; ".join(
    f"{TITLES[task]}, layer {layer}: {PAPER[task, layer, HARMONIC][0]} against {PAPER[task, layer, STANDARD][0]}"
    for task in TITLES
    for layer in (0, 6)
)
CLAIMS = (
    *(
        Claim(
            f"reads_as_well_{readout}",
            "A probe reads the harmonic model at least as well as the standard one, in every data set and layer: its "
            f"F1 is at most {AS_WELL:g} point lower ({READOUT_WORDS[readout]}).",
            f"F1, harmonic against standard: {_REPORTED}. It is not said which vector stands for a sentence.",
        )
        for readout in READOUTS
    ),
    Claim(
        "as_well_on_other_sentences",
        "That would hold on other sentences of the same kind: it still does when the dev sentences are drawn anew with "
        "the probes, for both read-outs.",
        "Not reported.",
        control=True,
    ),
    Claim(
        "above_the_majority",
        "Every arm's probes beat always giving the more frequent label, by F1, in every data set, layer and read-out.",
        "Not reported. On CoLA's dev side always saying yes has an F1 of 81.6, above all that the paper reports there.",
        control=True,
    ),
)


def judge_as_well(results: Results, *, spec: LanguageSpec, readout: str) -> Finding:
    """Judge one read-out by intervals over probes, whose level is shared out among data sets and layers."""
    spots = spots_of(spec, results, (readout,))
    found = {spot: compare(results, spot, level=1 - 0.05 / len(spots)) for spot in spots}
    intervals = {spot: one.difference if one else None for spot, one in found.items()}
    return _finding(intervals, f"{_models(results)} Intervals are over probes of these, not over models.")


def judge_other_sentences(results: Results, *, spec: LanguageSpec) -> Finding:
    """Judge both read-outs by intervals over probes and sentences."""
    spots = spots_of(spec, results)
    intervals = {spot: compare_on_sentences(results, spot, level=1 - 0.05 / len(spots)) for spot in spots}
    return _finding(intervals, f"{_models(results)} Intervals are over probes and dev sentences, not over models.")


def _finding(intervals: Mapping[Spot, Interval | None], about: str) -> Finding:
    answers = [one.above(-AS_WELL) if one else None for one in intervals.values()]
    words = "; ".join(f"{spot.words} {in_points(one)}" for spot, one in intervals.items())
    numbers = {f"{'_'.join(map(str, spot))}": one._asdict() for spot, one in intervals.items() if one}
    return Finding(all_of(answers), f"F1, harmonic minus standard, in points: {words}. {about}", numbers)


def judge_majority(results: Results, *, spec: LanguageSpec) -> Finding:
    """Judge by each arm's interval over probes against the constant answer's F1."""
    spots = [(arm, spot) for arm in (STANDARD, HARMONIC) for spot in spots_of(spec, results)]
    answers: dict[tuple[str, Spot], bool | None] = {}
    for arm, spot in spots:
        interval, limit = mean_of(results, arm, spot, level=1 - 0.05 / len(spots)), majority_of(results, spot.task)
        answers[arm, spot] = interval.above(limit) if interval and limit is not None else None
    below = [f"{arm}, {spot.words}" for (arm, spot), answer in answers.items() if answer is not True]
    constant = ", ".join(f"{title(task)} {_rounded(majority_of(results, task))}" for task in tasks_of(results))
    return Finding(
        all_of(answers.values()),
        f"{len(spots) - len(below)} of {len(spots)} do. The more frequent label has an F1 of {constant}."
        + (f" Not above it: {'; '.join(below)}." if below else ""),
        {"above": len(spots) - len(below), "of": len(spots)},
    )


def all_of(answers: Iterable[bool | None]) -> bool | None:
    """Whether all hold: no where one does not, None where one is undecided.

    >>> all_of([True, None]), all_of([None, False]), all_of([True, True])
    (None, False, True)
    """
    kinds = set(answers)
    return False if False in kinds else None if None in kinds else True


JUDGES: dict[str, Callable[..., Finding]] = {
    **{f"reads_as_well_{readout}": partial(judge_as_well, readout=readout) for readout in READOUTS},
    "as_well_on_other_sentences": judge_other_sentences,
    "above_the_majority": judge_majority,
}


def summarize(spec: LanguageSpec, results: Results) -> Summary:
    """Judge every claim, and tabulate scores and differences beside the paper's."""
    spots = spots_of(spec, results)
    f1 = Table(
        "Probes on the dev side, points, mean over probes; the paper does not name its read-out",
        tuple(_score_row(results, arm, spot) for spot in spots for arm in spec.arms),
    )
    differences = Table(
        "F1, harmonic minus standard, points, paired over probes",
        tuple(_difference_row(results, spot) for spot in spots),
    )
    return Summary(tuple(_judge(claim.id, spec, results) for claim in CLAIMS), (f1, differences))


def _judge(claim: str, spec: LanguageSpec, results: Results) -> Verdict:
    has_both = {STANDARD, HARMONIC} <= set(spec.arms)
    wanted = [ArmCell(arm, seed) for arm in (STANDARD, HARMONIC) for seed in spec.seeds] if has_both else []
    too_short = "Made-up sentences stand in for SST-2 and CoLA." if spec.embedded else ""
    return conclude(claim, partial(JUDGES[claim], spec=spec), wanted, results, too_short=too_short)


def _score_row(results: Results, arm: str, spot: Spot) -> dict[str, Any]:
    f1, macro, accuracy = (mean_of(results, arm, spot, score) for score in SCORES)
    values, theirs = probes_of(results, arm, spot, "f1"), PAPER.get((spot.task, spot.layer, arm))
    return {
        "sentences": title(spot.task),
        "layer": spot.layer,
        "read from": READOUT_WORDS[spot.readout],
        "model": arm,
        "probes": 0 if values is None else len(values),
        "F1 [95 %]": in_points(f1) if f1 else None,
        "deviation": round(100 * float(np.std(values)), 1) if values is not None else None,
        "paper's F1": f"{theirs[0]} ± {theirs[1]}" if theirs else "",
        "ours - paper's": round(f1.estimate - theirs[0], 1) + 0.0 if f1 and theirs else "",
        "always the majority": _rounded(majority_of(results, spot.task)),
        "mean F1 of both classes [95 %]": in_points(macro) if macro else None,
        "accuracy [95 %]": in_points(accuracy) if accuracy else None,
    }


def _difference_row(results: Results, spot: Spot) -> dict[str, Any]:
    found, macro = compare(results, spot), compare(results, spot, score="macro_f1")
    drawn = compare_on_sentences(results, spot)
    harmonic, standard = (PAPER.get((spot.task, spot.layer, arm)) for arm in (HARMONIC, STANDARD))
    return {
        "sentences": title(spot.task),
        "layer": spot.layer,
        "read from": READOUT_WORDS[spot.readout],
        "pairs of probes": found.greater + found.less + found.ties if found else 0,
        "difference [95 % over probes]": in_points(found.difference) if found else None,
        "[95 % over probes and sentences]": in_points(drawn) if drawn else None,
        "paper's": round(harmonic[0] - standard[0], 1) if harmonic and standard else "",
        "higher on": found.greater if found else None,
        "lower on": found.less if found else None,
        "p, sign test": found.sign_p if found else None,
        "p, signed ranks": found.rank_p if found else None,
        "mean F1 of both classes, difference [95 %]": in_points(macro.difference) if macro else None,
    }


def in_points(interval: Interval | None) -> str:
    """Write an interval to a tenth of a point.

    >>> in_points(Interval(1.23, -0.04, 2.0))
    '1.2 [0.0, 2.0]'
    """
    if interval is None:
        return "not there"
    estimate, low, high = (round(one, 1) + 0.0 for one in interval)
    return f"{estimate:.1f} [{low:.1f}, {high:.1f}]"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _models(results: Results) -> str:
    each = len({cell.seed for cell in results})
    return "One model an arm." if each == 1 else f"{each} models an arm."


EXPERIMENT = measured_view(
    name="probes",
    title="What a small probe reads in the residual stream",
    figure="GPT-2: probes",
    claims=CLAIMS,
    summarize=summarize,
    figures=figures,
)
