"""What is claimed of harmonic loss among its rivals, and how each claim is judged."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from harmax_lab.kit.claims import Claim, Finding, Verdict
from harmax_lab.kit.experiment import conclude
from harmax_lab.kit.store import CellResult
from harmax_lab.studies.arms import APPENDIX, ARMS, LOSSES, RivalCell
from harmax_lab.studies.comparisons import (
    ABOVE,
    ALIKE,
    RULE,
    AllBelow,
    all_below,
    judge_contrast,
    reference_of,
    switches,
)
from harmax_lab.studies.outcomes import BODIES, MARGIN, SCORES, Place, alike, collect, written
from harmax_lab.studies.search import SearchSpec, ends_of

Results = Mapping[RivalCell, CellResult]
RIVALS = tuple(name for name in LOSSES if name != "harmonic")
TIED_RIVALS = tuple(name for name in RIVALS if ARMS[name].tied)
OURS = ("harmonic", "harmonic_untied")
"""What rivals are held against, tied or untied as they are."""
SQUARE = switches("spherical")
"""The tuned ablation: p ~ (w . x)^2 stands for the inner product under HarMax."""
CORNERS = tuple(SQUARE["interaction"])
EFFECTS = {
    "distance": "Main effect of the distance",
    "HarMax": "Main effect of HarMax",
    "interaction": "Interaction of the two",
}


BREAKING = "breaking"
"""In a finding's numbers: the arms that break a claim about all, each with what it is held against."""


def _loss(cell: RivalCell) -> str:
    return cell.loss


def _held(
    results: Results, place: Place, rivals: Sequence[str], ours: str, score: str, limit: float
) -> tuple[AllBelow, dict[str, str], dict[str, Any]]:
    """Hold rivals that were run against an arm of harmonic loss, tied or untied as the rival is."""
    there = {cell.loss for cell in results}
    pairs = {loss: reference_of(loss, ours, place.protocol) for loss in rivals if loss in there}
    answer = all_below(collect(results, _loss), place, pairs, score, limit=limit)
    return answer, pairs, {**answer.numbers, BREAKING: {loss: pairs[loss] for loss in answer.breaking}}


def judge_first(results: Results, place: Place, rivals: Sequence[str] = RIVALS, ours: str = "harmonic") -> Finding:
    """Judge by every rival against harmonic: all must be behind, and one clearly ahead breaks it."""
    answer, pairs, numbers = _held(results, place, rivals, ours, "structure", 0.0)
    behind = [loss for loss, one in answer.found.items() if one.difference.above(0) is False]
    return Finding(
        answer.holds,
        f"Clearly behind are {len(behind)} of {len(pairs)}. The strongest rival is {ARMS[answer.best].label}: "
        f"its structure minus that of {ARMS[pairs[answer.best]].label} is {written(answer.found[answer.best])}, "
        f"mean of {len(place.tasks)} tasks.{answer.in_doubt}",
        numbers,
    )


def judge_unbeaten(results: Results, place: Place, rivals: Sequence[str] = RIVALS, ours: str = "harmonic") -> Finding:
    """Judge by whether any rival has a higher test accuracy by more than the margin."""
    answer, pairs, numbers = _held(results, place, rivals, ours, "accuracy", MARGIN)
    return Finding(
        answer.holds,
        f"The most accurate rival is {ARMS[answer.best].label}: its {SCORES['accuracy']} minus that of "
        f"{ARMS[pairs[answer.best]].label} is {written(answer.found[answer.best])}, mean of {len(place.tasks)} "
        f"tasks.{answer.in_doubt}",
        numbers,
    )


def judge_two(
    results: Results, place: Place, ours: str, theirs: str, score: str = "structure", **rule: Callable[..., bool | None]
) -> Finding:
    """Judge by the interval of one difference."""
    words = f"{SCORES[score].capitalize()}, {ARMS[ours].label} minus {ARMS[theirs].label}"
    return judge_contrast(collect(results, _loss), place, {ours: 1.0, theirs: -1.0}, score, words, **rule)


def judge_effect(results: Results, place: Place, name: str) -> Finding:
    """Judge by the interval of one effect of the two switches."""
    words = f"{EFFECTS[name]} in structure"
    return judge_contrast(collect(results, _loss), place, SQUARE[name], "structure", words)


def judge_inside(results: Results, spec: SearchSpec) -> Finding:
    """Judge by the choices at an end of the grid."""
    ends = {cell.loss: ends_of(spec, result.metrics["choice"]) for cell, result in results.items()}
    at_end = [f"{ARMS[loss].label} ({' and '.join(names)})" for loss, names in ends.items() if names]
    return Finding(
        not at_end,
        f"{len(at_end)} of {len(ends)} choices lie at an end{': ' + ', '.join(at_end) if at_end else ''}.",
        {"at_end": len(at_end), "choices": len(ends)},
    )


class Question(NamedTuple):
    """What is asked of tuned arms: the words, who answers, and all arms that it needs."""

    text: str
    judge: Callable[..., Finding]
    arms: tuple[str, ...]


def _two(text: str, ours: str, theirs: str, **options: Any) -> Question:
    return Question(text, partial(judge_two, ours=ours, theirs=theirs, **options), (ours, theirs))


UNTIED = "those that read classes off features against untied harmonic, all others against tied"
SQUARE_WORDS = (
    "with inner product or distance, softmax or HarMax, each of the four tuned and tied, and spherical softmax, "
    "p ~ (w . x)^2, for the inner product under HarMax"
)
RULE_OF_PAPER = f"With the paper's rule for the exponent ({ARMS['harmonic_root'].label})"
BEHIND = f"Holds where every rival's difference lies below 0 with its 95 % interval; {RULE}"
WITHIN = f"Holds where every rival's difference lies below {MARGIN} with its 95 % interval; {RULE}"
JUDGES: dict[str, Question] = {
    "structure_first": Question(
        f"Harmonic loss gives more structure than every rival, each tuned, on average over the tasks ({UNTIED}). "
        f"{BEHIND}",
        judge_first,
        (*OURS, *RIVALS),
    ),
    "accuracy_unbeaten": Question(
        f"No rival, each tuned, is more accurate in test by more than {MARGIN} on average over the tasks ({UNTIED}). "
        f"{WITHIN}",
        judge_unbeaten,
        (*OURS, *RIVALS),
    ),
    "structure_over_linear": _two(
        f"Harmonic loss gives more structure than cross-entropy, both tuned, tied and without bias. {ABOVE}",
        "harmonic",
        "linear",
    ),
    "accuracy_over_linear": _two(
        f"Harmonic loss is more accurate in test than cross-entropy, both tuned, tied and without bias. {ABOVE}",
        "harmonic",
        "linear",
        score="accuracy",
    ),
    "untied_over_linear": _two(
        "Harmonic loss gives more structure in the input embedding than cross-entropy, both tuned, untied and without "
        f"bias. {ABOVE}",
        "harmonic_untied",
        "linear_untied",
    ),
    "root_over_two": _two(
        f"{RULE_OF_PAPER} harmonic loss gives more structure than with 2, both tuned and tied. {ABOVE}",
        "harmonic_root",
        "harmonic",
    ),
    "root_first": Question(
        f"{RULE_OF_PAPER} harmonic loss gives more structure than every tied rival, each tuned, on average over the "
        f"tasks. {BEHIND}",
        partial(judge_first, rivals=TIED_RIVALS, ours="harmonic_root"),
        ("harmonic_root", *TIED_RIVALS),
    ),
    "root_unbeaten": Question(
        f"{RULE_OF_PAPER} no tied rival, each tuned, is more accurate in test by more than {MARGIN} on average over "
        f"the tasks. {WITHIN}",
        partial(judge_unbeaten, rivals=TIED_RIVALS, ours="harmonic_root"),
        ("harmonic_root", *TIED_RIVALS),
    ),
    "tying_is_nothing": _two(
        "Untying, and the other initial weights that come with it, change the structure under harmonic loss by less "
        f"than {MARGIN}. {ALIKE}",
        "harmonic_untied",
        "harmonic",
        rule=alike,
    ),
    "bias_is_nothing": _two(
        f"A bias changes the structure under cross-entropy by less than {MARGIN}. {ALIKE}",
        "linear_bias",
        "linear",
        rule=alike,
    ),
    "tuned_distance": Question(
        f"The distance gives structure: its main effect lies above 0, {SQUARE_WORDS}. {ABOVE}",
        partial(judge_effect, name="distance"),
        CORNERS,
    ),
    "tuned_harmax": Question(
        f"HarMax gives structure: its main effect lies above 0, {SQUARE_WORDS}. {ABOVE}",
        partial(judge_effect, name="HarMax"),
        CORNERS,
    ),
    "tuned_interaction": Question(
        f"The distance and HarMax reinforce one another in structure: the interaction lies above 0, {SQUARE_WORDS}. "
        f"{ABOVE}",
        partial(judge_effect, name="interaction"),
        CORNERS,
    ),
}
DOUBT = "Not decided where an arm that the answer rests on was tuned to an end of the grid"
UNTUNED, INSIDE = "untuned_structure_first", "choices_inside"
TIED_UNTUNED = {
    "mlp": "As in the authors' code cross-entropy alone has a bias; all are tied but for the losses that read classes "
    "off features",
    "transformer": "As in the authors' code harmonic is untied here, and the rivals are tied but for the losses that "
    "read classes off features, so that this is no comparison of losses alone",
}


def claims_of(model: str) -> tuple[Claim, ...]:
    """Return what is claimed of one model."""
    return (
        Claim(
            f"{UNTUNED}_{model}",
            "Harmonic loss gives more structure than every rival of the appendix at the authors' learning rate and "
            "weight decay, on average over lattice and modular addition. Holds where every rival's difference lies "
            f"below 0 with its 95 % interval; {RULE}. {TIED_UNTUNED[model]} ({BODIES[model]}, authors protocol).",
            "An appendix compares contrastive, spherical and margin losses; the authors' code applies them to the "
            "log-probabilities of a harmonic head, here they see the features. No numbers are known here.",
        ),
        *(
            Claim(
                f"{name}_{model}",
                f"{question.text}. {DOUBT} ({BODIES[model]}, matched protocol).",
                "Not reported.",
                control=True,
            )
            for name, question in JUDGES.items()
        ),
        Claim(
            f"{INSIDE}_{model}",
            "The search is wide enough: no chosen setting lies at an end of the grid, a weight decay of 0 being none "
            f"({BODIES[model]}, matched protocol).",
            "Not reported.",
            control=True,
        ),
    )


def judge(claim: Claim, spec: SearchSpec, full: SearchSpec, cells: Sequence[RivalCell], results: Results) -> Verdict:
    """Judge one claim on the cells that it needs; undecided where the spec is shorter than the full one."""
    name, model = claim.id.rsplit("_", 1)
    if name == INSIDE:
        own = [cell for cell in cells if (cell.protocol, cell.model) == ("matched", model)]
        # Of the tasks of the final runs the search knows nothing.
        short = spec.too_short(full, Place("matched", model, spec.tasks), ()) or spec.search_cut(full, model)
        return conclude(claim.id, partial(judge_inside, spec=spec), own, results, too_short=short)
    untuned = name == UNTUNED
    protocol = "authors" if untuned else "matched"
    place = Place(protocol, model, spec.tasks_under(protocol))
    judged = judge_first if untuned else partial(in_doubt, question=JUDGES[name], spec=spec)
    needed = APPENDIX if untuned else JUDGES[name].arms
    own = [cell for cell in cells if (cell.protocol, cell.model) == (protocol, model) and cell.loss in needed]
    missing = set(needed) - {cell.loss for cell in own}
    about_all = untuned or set(RIVALS) <= set(needed)
    if missing and not (about_all and {"harmonic", "linear"} <= {cell.loss for cell in own}):
        own = []  # of all rivals one is enough to say something about, though the claim stays open
    short = (
        spec.too_short(full, place)
        or ("" if untuned else spec.search_cut(full, model))
        or f"{len(missing)} arms were not run." * bool(missing)
    )
    return conclude(claim.id, partial(judged, place=place), own, results, too_short=short)


def in_doubt(results: Results, place: Place, question: Question, spec: SearchSpec) -> Finding:
    """Answer a question, unless it rests on an arm that was tuned to an end of the grid.

    That a claim holds, or how two arms differ, rests on all arms; that a claim about all is broken on any one of those
    that break it, and on what it is held against. A better setting could be worse in structure, which is not searched
    for, so that no side of a comparison is above doubt.
    """
    finding = question.judge(results, place=place)
    chosen = {cell.loss: result.metrics["choice"] for cell, result in results.items()}
    at_end = {loss for loss, choice in chosen.items() if ends_of(spec, choice)}
    breaking = finding.numbers.get(BREAKING) if finding.holds is False else None
    rests_on = [set(pair) for pair in breaking.items()] if breaking else [set(chosen)]
    if finding.holds is None or any(not arms & at_end for arms in rests_on):
        return finding
    told = ", ".join(ARMS[loss].label for loss in chosen if loss in at_end & set().union(*rests_on))
    words = f"{finding.sentence} Not decided, since tuned to an end of the grid: {told}."
    return finding._replace(holds=None, sentence=words)
