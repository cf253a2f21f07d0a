"""What is claimed of harmonic loss among its rivals, and how each claim is judged."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from harmax.experiments.rivals.arms import APPENDIX, ARMS, LOSSES, RivalCell, reads_out
from harmax.experiments.rivals.comparisons import RULE, AllBelow, all_below, reference_of, switches
from harmax.experiments.rivals.outcomes import BODIES, MARGIN, SCORES, Place, collect, contrast, versus, written
from harmax.experiments.rivals.search import SearchSpec, at_edge
from harmax.experiments.spec import Claim, Finding, Verdict, conclude
from harmax.store import CellResult

Results = Mapping[RivalCell, CellResult]
RIVALS = tuple(name for name in LOSSES if name != "harmonic")
EVERYTHING = (*LOSSES, *dict.fromkeys(reference_of(loss, "harmonic", "matched") for loss in RIVALS if reads_out(loss)))
"""What a claim about all rivals needs: harmonic, every rival, and the untied harmonic that some are held against."""
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


def _held(results: Results, place: Place, score: str, limit: float) -> tuple[AllBelow, dict[str, str]]:
    """Hold every rival that was run against harmonic, tied or untied as the rival is."""
    there = {cell.loss for cell in results}
    pairs = {loss: reference_of(loss, "harmonic", place.protocol) for loss in RIVALS if loss in there}
    return all_below(collect(results, _loss), place, pairs, score, limit=limit), pairs


def judge_first(results: Results, place: Place) -> Finding:
    """Judge by every rival against harmonic: all must be behind, and one clearly ahead breaks it."""
    answer, pairs = _held(results, place, "structure", 0.0)
    behind = [loss for loss, one in answer.found.items() if one.difference.above(0) is False]
    return Finding(
        answer.holds,
        f"Clearly behind are {len(behind)} of {len(pairs)}. The strongest rival is {ARMS[answer.best].label}: "
        f"structure {written(answer.found[answer.best])} more than {ARMS[pairs[answer.best]].label}, mean of "
        f"{len(place.tasks)} tasks.{answer.in_doubt}",
        answer.numbers,
    )


def judge_unbeaten(results: Results, place: Place) -> Finding:
    """Judge by whether any rival has a higher test accuracy by more than the margin."""
    answer, pairs = _held(results, place, "accuracy", MARGIN)
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
        f"{SCORES[score].capitalize()}, {ARMS[ours].label} minus {ARMS[theirs].label}: {written(found)}, mean of "
        f"{len(place.tasks)} tasks.",
        {"difference": found.difference._asdict() if found else None},
    )


def judge_alike(results: Results, place: Place, ours: str, theirs: str) -> Finding:
    """Judge by whether a difference in structure lies within the margin, or beyond it."""
    found = versus(collect(results, _loss), place, ours, theirs, "structure")
    assert found is not None
    _, low, high = found.difference
    inside, outside = low > -MARGIN and high < MARGIN, low > MARGIN or high < -MARGIN
    return Finding(
        True if inside else False if outside else None,
        f"Structure, {ARMS[ours].label} minus {ARMS[theirs].label}: {written(found)}, mean of {len(place.tasks)} "
        "tasks.",
        {"difference": found.difference._asdict()},
    )


def judge_effect(results: Results, place: Place, name: str) -> Finding:
    """Judge by the interval of one effect of the two switches."""
    found = contrast(collect(results, _loss), place, SQUARE[name], "structure")
    return Finding(
        found.difference.above(0) if found else None,
        f"{EFFECTS[name]} in structure: {written(found)}, mean of {len(place.tasks)} tasks.",
        {"effect": found.difference._asdict() if found else None},
    )


def judge_inside(results: Results, spec: SearchSpec) -> Finding:
    """Judge by the choices at an edge of the grid."""
    chosen = {(cell.loss, cell.model): tuple(result.metrics["choice"]) for cell, result in results.items()}
    edge = [pair for pair, (rate, decay) in chosen.items() if at_edge(spec, (rate, decay))]
    words = ", ".join(f"{ARMS[loss].label} ({BODIES[model]})" for loss, model in edge)
    return Finding(
        not edge,
        f"{len(edge)} of {len(chosen)} choices lie at an edge{': ' + words if edge else ''}.",
        {"edge": len(edge), "choices": len(chosen)},
    )


Judge = Callable[..., Finding]
UNTIED = "those that read classes off features against untied harmonic, all others against tied"
ABOVE = "Holds where the 95 % interval of the mean over the tasks lies above 0; broken: below"
SQUARE_WORDS = (
    "with inner product or distance, softmax or HarMax, each of the four tuned and tied, and spherical softmax, "
    "p ~ (w . x)^2, for the inner product under HarMax"
)
# By name: what is claimed, the losses it needs (None: harmonic and every rival), and the judge.
JUDGES: dict[str, tuple[str, tuple[str, ...] | None, Judge]] = {
    "structure_first": (
        f"Harmonic loss gives more structure than every rival, each tuned, on average over the tasks ({UNTIED}). Holds "
        f"where every rival's difference lies below 0 with its 95 % interval; {RULE}",
        None,
        judge_first,
    ),
    "accuracy_unbeaten": (
        f"No rival, each tuned, is more accurate in test by more than {MARGIN} on average over the tasks ({UNTIED}). "
        f"Holds where every rival's difference lies below {MARGIN} with its 95 % interval; {RULE}",
        None,
        judge_unbeaten,
    ),
    "structure_over_linear": (
        "Harmonic loss gives more structure than cross-entropy, both tuned, tied and without bias (95 % interval of "
        "the mean over the tasks above 0; broken: below)",
        ("harmonic", "linear"),
        partial(judge_better, ours="harmonic", theirs="linear", score="structure"),
    ),
    "accuracy_over_linear": (
        "Harmonic loss is more accurate in test than cross-entropy, both tuned, tied and without bias (95 % interval "
        "of the mean over the tasks above 0; broken: below)",
        ("harmonic", "linear"),
        partial(judge_better, ours="harmonic", theirs="linear", score="accuracy"),
    ),
    "untied_over_linear": (
        "Harmonic loss gives more structure in the input embedding than cross-entropy, both tuned, untied and without "
        "bias (95 % interval of the mean over the tasks above 0; broken: below)",
        ("harmonic_untied", "linear_untied"),
        partial(judge_better, ours="harmonic_untied", theirs="linear_untied", score="structure"),
    ),
    "tying_is_nothing": (
        "Untying, and the other initial weights that come with it, change the structure under harmonic loss by less "
        f"than {MARGIN} (95 % interval of the mean over the tasks inside; broken: outside)",
        ("harmonic", "harmonic_untied"),
        partial(judge_alike, ours="harmonic_untied", theirs="harmonic"),
    ),
    "bias_is_nothing": (
        f"A bias changes the structure under cross-entropy by less than {MARGIN} (95 % interval of the mean over the "
        "tasks inside; broken: outside)",
        ("linear", "linear_bias"),
        partial(judge_alike, ours="linear_bias", theirs="linear"),
    ),
    "tuned_distance": (
        f"The distance gives structure: its main effect lies above 0, {SQUARE_WORDS}. {ABOVE}",
        CORNERS,
        partial(judge_effect, name="distance"),
    ),
    "tuned_harmax": (
        f"HarMax gives structure: its main effect lies above 0, {SQUARE_WORDS}. {ABOVE}",
        CORNERS,
        partial(judge_effect, name="HarMax"),
    ),
    "tuned_interaction": (
        f"The distance and HarMax reinforce one another in structure: the interaction lies above 0, {SQUARE_WORDS}. "
        f"{ABOVE}",
        CORNERS,
        partial(judge_effect, name="interaction"),
    ),
}
UNTUNED = "untuned_structure_first"
TIED_UNTUNED = {
    "mlp": "As in the authors' code cross-entropy alone has a bias; all are tied but for the losses that read classes "
    "off features",
    "transformer": "As in the authors' code harmonic is untied here, and the rivals are tied but for the losses that "
    "read classes off features, so that this is no comparison of losses alone",
}
CLAIMS = (
    *(
        Claim(
            f"{UNTUNED}_{model}",
            "Harmonic loss gives more structure than every rival of the appendix at the authors' learning rate and "
            "weight decay, on average over lattice and modular addition. Holds where every rival's difference lies "
            f"below 0 with its 95 % interval; {RULE}. {TIED_UNTUNED[model]} ({BODIES[model]}, authors protocol).",
            "An appendix compares contrastive, spherical and margin losses; the authors' code applies them to the "
            "log-probabilities of a harmonic head, here they see the features. No numbers are known here.",
        )
        for model in BODIES
    ),
    *(
        Claim(f"{name}_{model}", f"{text} ({BODIES[model]}, matched protocol).", "Not reported.", control=True)
        for model in BODIES
        for name, (text, _, _) in JUDGES.items()
    ),
    Claim(
        "choices_inside",
        "The search is wide enough: no chosen setting lies at an edge of the grid (a weight decay of 0 is none).",
        "Not reported.",
        control=True,
    ),
)


def judge(claim: Claim, spec: SearchSpec, full: SearchSpec, cells: Sequence[RivalCell], results: Results) -> Verdict:
    """Judge one claim on the cells that it needs; undecided where the spec is shorter than the full one."""
    if claim.id == "choices_inside":
        own = [cell for cell in cells if cell.protocol == "matched"]
        same = (spec.learning_rates, spec.weight_decays) == (full.learning_rates, full.weight_decays)
        short = spec.too_short(full, *spec.models) or "The grid was cut down." * (not same)
        return conclude(claim.id, partial(judge_inside, spec=spec), own, results, too_short=short)
    name, model = claim.id.rsplit("_", 1)
    protocol = "authors" if name == UNTUNED else "matched"
    _, needed, judged = ("", None, judge_first) if name == UNTUNED else JUDGES[name]
    there = [cell for cell in cells if (cell.protocol, cell.model) == (protocol, model)]
    everything = APPENDIX if name == UNTUNED else EVERYTHING
    own = [cell for cell in there if cell.loss in (needed or everything)]
    missing = set(needed or everything) - {cell.loss for cell in own}
    if missing:
        # Two are enough to say something about; a claim about all of them stays open.
        own = [] if needed is not None or not {"harmonic", "linear"} <= {cell.loss for cell in own} else own
    short = spec.too_short(full, model) or f"{len(missing)} arms were not run." * bool(missing)
    place = Place(protocol, model, spec.tasks_under(protocol))
    return conclude(claim.id, partial(judged, place=place), own, results, too_short=short)
