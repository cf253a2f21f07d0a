"""What is claimed of harmonic loss among its rivals, and how each claim is judged."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from harmax.experiments.rivals.arms import APPENDIX, ARMS, LOSSES, RivalCell
from harmax.experiments.rivals.comparisons import RULE, AllBelow, all_below, reference_of, switches
from harmax.experiments.rivals.outcomes import (
    BODIES,
    MARGIN,
    SCORES,
    Place,
    alike,
    collect,
    contrast,
    versus,
    with_p,
    written,
)
from harmax.experiments.rivals.search import SearchSpec, ends_of
from harmax.experiments.spec import Claim, Finding, Verdict, conclude
from harmax.store import CellResult

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


def _loss(cell: RivalCell) -> str:
    return cell.loss


def _held(results: Results, place: Place, ours: str, score: str, limit: float) -> tuple[AllBelow, dict[str, str]]:
    """Hold every rival that was run against an arm of harmonic loss, tied or untied as the rival is."""
    there = {cell.loss for cell in results}
    pairs = {loss: reference_of(loss, ours, place.protocol) for loss in RIVALS if loss in there}
    return all_below(collect(results, _loss), place, pairs, score, limit=limit), pairs


def judge_first(results: Results, place: Place, ours: str = "harmonic") -> Finding:
    """Judge by every rival against harmonic: all must be behind, and one clearly ahead breaks it."""
    answer, pairs = _held(results, place, ours, "structure", 0.0)
    behind = [loss for loss, one in answer.found.items() if one.difference.above(0) is False]
    return Finding(
        answer.holds,
        f"Clearly behind are {len(behind)} of {len(pairs)}. The strongest rival is {ARMS[answer.best].label}: "
        f"structure {written(answer.found[answer.best])} more than {ARMS[pairs[answer.best]].label}, mean of "
        f"{len(place.tasks)} tasks.{answer.in_doubt}",
        answer.numbers,
    )


def judge_unbeaten(results: Results, place: Place, ours: str = "harmonic") -> Finding:
    """Judge by whether any rival has a higher test accuracy by more than the margin."""
    answer, pairs = _held(results, place, ours, "accuracy", MARGIN)
    return Finding(
        answer.holds,
        f"The most accurate rival is {ARMS[answer.best].label}: {SCORES['accuracy']} "
        f"{written(answer.found[answer.best])} more than {ARMS[pairs[answer.best]].label}, mean of {len(place.tasks)} "
        f"tasks.{answer.in_doubt}",
        answer.numbers,
    )


def judge_better(results: Results, place: Place, ours: str, theirs: str, score: str) -> Finding:
    """Judge by the interval of one difference."""
    found = versus(collect(results, _loss), place, ours, theirs, score)
    return Finding(
        found.difference.above(0) if found else None,
        f"{SCORES[score].capitalize()}, {ARMS[ours].label} minus {ARMS[theirs].label}: {with_p(found)}, mean of "
        f"{len(place.tasks)} tasks.",
        {"difference": found.difference._asdict() if found else None},
    )


def judge_alike(results: Results, place: Place, ours: str, theirs: str) -> Finding:
    """Judge by whether a difference in structure lies within the margin, or beyond it."""
    found = versus(collect(results, _loss), place, ours, theirs, "structure")
    assert found is not None
    return Finding(
        alike(found),
        f"Structure, {ARMS[ours].label} minus {ARMS[theirs].label}: {with_p(found)}, mean of {len(place.tasks)} tasks.",
        {"difference": found.difference._asdict()},
    )


def judge_effect(results: Results, place: Place, name: str) -> Finding:
    """Judge by the interval of one effect of the two switches."""
    found = contrast(collect(results, _loss), place, SQUARE[name], "structure")
    return Finding(
        found.difference.above(0) if found else None,
        f"{EFFECTS[name]} in structure: {with_p(found)}, mean of {len(place.tasks)} tasks.",
        {"effect": found.difference._asdict() if found else None},
    )


def judge_inside(results: Results, spec: SearchSpec) -> Finding:
    """Judge by the choices at an end of the grid."""
    ends = {cell.loss: ends_of(spec, result.metrics["choice"]) for cell, result in results.items()}
    edge = [f"{ARMS[loss].label} ({' and '.join(names)})" for loss, names in ends.items() if names]
    return Finding(
        not edge,
        f"{len(edge)} of {len(ends)} choices lie at an end{': ' + ', '.join(edge) if edge else ''}.",
        {"edge": len(edge), "choices": len(ends)},
    )


Judge = Callable[..., Finding]


class Question(NamedTuple):
    """What is asked of tuned arms: the words, who answers, and whose tuning can put the answer in doubt."""

    text: str
    judge: Judge
    ours: tuple[str, ...]
    """Arms that better tuning could make look better: one at an end of the grid, and nothing is broken."""
    theirs: tuple[str, ...]
    """Arms that better tuning could turn against it: one at an end of the grid, and nothing holds."""

    @property
    def arms(self) -> tuple[str, ...]:
        """All that it needs."""
        return tuple(dict.fromkeys((*self.ours, *self.theirs)))


UNTIED = "those that read classes off features against untied harmonic, all others against tied"
ABOVE = "Holds where the 95 % interval of the mean over the tasks lies above 0; broken: below"
SQUARE_WORDS = (
    "with inner product or distance, softmax or HarMax, each of the four tuned and tied, and spherical softmax, "
    "p ~ (w . x)^2, for the inner product under HarMax"
)
ROOT = ARMS["harmonic_root"].label
JUDGES: dict[str, Question] = {
    "structure_first": Question(
        f"Harmonic loss gives more structure than every rival, each tuned, on average over the tasks ({UNTIED}). Holds "
        f"where every rival's difference lies below 0 with its 95 % interval; {RULE}",
        judge_first,
        OURS,
        RIVALS,
    ),
    "accuracy_unbeaten": Question(
        f"No rival, each tuned, is more accurate in test by more than {MARGIN} on average over the tasks ({UNTIED}). "
        f"Holds where every rival's difference lies below {MARGIN} with its 95 % interval; {RULE}",
        judge_unbeaten,
        OURS,
        RIVALS,
    ),
    "structure_over_linear": Question(
        "Harmonic loss gives more structure than cross-entropy, both tuned, tied and without bias (95 % interval of "
        "the mean over the tasks above 0; broken: below)",
        partial(judge_better, ours="harmonic", theirs="linear", score="structure"),
        ("harmonic",),
        ("linear",),
    ),
    "accuracy_over_linear": Question(
        "Harmonic loss is more accurate in test than cross-entropy, both tuned, tied and without bias (95 % interval "
        "of the mean over the tasks above 0; broken: below)",
        partial(judge_better, ours="harmonic", theirs="linear", score="accuracy"),
        ("harmonic",),
        ("linear",),
    ),
    "untied_over_linear": Question(
        "Harmonic loss gives more structure in the input embedding than cross-entropy, both tuned, untied and without "
        "bias (95 % interval of the mean over the tasks above 0; broken: below)",
        partial(judge_better, ours="harmonic_untied", theirs="linear_untied", score="structure"),
        ("harmonic_untied",),
        ("linear_untied",),
    ),
    "root_over_two": Question(
        f"With the paper's rule for the exponent ({ROOT}) harmonic loss gives more structure than with 2, both tuned "
        "and tied (95 % interval of the mean over the tasks above 0; broken: below)",
        partial(judge_better, ours="harmonic_root", theirs="harmonic", score="structure"),
        ("harmonic_root",),
        ("harmonic",),
    ),
    "root_first": Question(
        f"With the paper's rule for the exponent ({ROOT}) harmonic loss gives more structure than every tied rival, "
        "each tuned, on average over the tasks. Holds where every rival's difference lies below 0 with its 95 % "
        f"interval; {RULE}",
        partial(judge_first, ours="harmonic_root"),
        ("harmonic_root",),
        TIED_RIVALS,
    ),
    "root_unbeaten": Question(
        f"With the paper's rule for the exponent ({ROOT}) no tied rival, each tuned, is more accurate in test by more "
        f"than {MARGIN} on average over the tasks. Holds where every rival's difference lies below {MARGIN} with its "
        f"95 % interval; {RULE}",
        partial(judge_unbeaten, ours="harmonic_root"),
        ("harmonic_root",),
        TIED_RIVALS,
    ),
    "tying_is_nothing": Question(
        "Untying, and the other initial weights that come with it, change the structure under harmonic loss by less "
        f"than {MARGIN} (95 % interval of the mean over the tasks inside; broken: outside)",
        partial(judge_alike, ours="harmonic_untied", theirs="harmonic"),
        *(("harmonic", "harmonic_untied"),) * 2,
    ),
    "bias_is_nothing": Question(
        f"A bias changes the structure under cross-entropy by less than {MARGIN} (95 % interval of the mean over the "
        "tasks inside; broken: outside)",
        partial(judge_alike, ours="linear_bias", theirs="linear"),
        *(("linear", "linear_bias"),) * 2,
    ),
    "tuned_distance": Question(
        f"The distance gives structure: its main effect lies above 0, {SQUARE_WORDS}. {ABOVE}",
        partial(judge_effect, name="distance"),
        CORNERS,
        CORNERS,
    ),
    "tuned_harmax": Question(
        f"HarMax gives structure: its main effect lies above 0, {SQUARE_WORDS}. {ABOVE}",
        partial(judge_effect, name="HarMax"),
        CORNERS,
        CORNERS,
    ),
    "tuned_interaction": Question(
        f"The distance and HarMax reinforce one another in structure: the interaction lies above 0, {SQUARE_WORDS}. "
        f"{ABOVE}",
        partial(judge_effect, name="interaction"),
        CORNERS,
        CORNERS,
    ),
}
DOUBT = "Not decided where an arm that could turn it was tuned to an end of the grid"
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
                f"{text}. {DOUBT} ({BODIES[model]}, matched protocol).",
                "Not reported.",
                control=True,
            )
            for name, (text, *_) in JUDGES.items()
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
        same = (spec.learning_rates, spec.weight_decays) == (full.learning_rates, full.weight_decays)
        short = spec.too_short(full, model) or "The grid was cut down." * (not same)
        return conclude(claim.id, partial(judge_inside, spec=spec), own, results, too_short=short)
    untuned = name == UNTUNED
    protocol = "authors" if untuned else "matched"
    place = Place(protocol, model, spec.tasks_under(protocol))
    judged = judge_first if untuned else partial(in_doubt, question=JUDGES[name], spec=spec)
    needed = APPENDIX if untuned else JUDGES[name].arms
    own = [cell for cell in cells if (cell.protocol, cell.model) == (protocol, model) and cell.loss in needed]
    missing = set(needed) - {cell.loss for cell in own}
    about_all = untuned or JUDGES[name].theirs == RIVALS
    if missing and not (about_all and {"harmonic", "linear"} <= {cell.loss for cell in own}):
        own = []  # of all rivals one is enough to say something about, though the claim stays open
    short = spec.too_short(full, model) or f"{len(missing)} arms were not run." * bool(missing)
    return conclude(claim.id, partial(judged, place=place), own, results, too_short=short)


def in_doubt(results: Results, place: Place, question: Question, spec: SearchSpec) -> Finding:
    """Answer a question, unless an arm that was tuned to an end of the grid could answer it otherwise."""
    finding = question.judge(results, place=place)
    chosen = {cell.loss: result.metrics["choice"] for cell, result in results.items()}
    could = {True: question.theirs, False: question.ours, None: ()}[finding.holds]
    at_end = [ARMS[loss].label for loss, choice in chosen.items() if loss in could and ends_of(spec, choice)]
    if not at_end:
        return finding
    words = f"{finding.sentence} Not decided, since tuned to an end of the grid: {', '.join(at_end)}."
    return finding._replace(holds=None, sentence=words)
