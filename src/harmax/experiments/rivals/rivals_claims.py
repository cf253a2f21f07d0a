"""What is claimed of harmonic loss among its rivals, and how each claim is judged."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from harmax.experiments.algorithmic.measures import shared_level
from harmax.experiments.rivals.arms import APPENDIX, ARMS, LOSSES, RivalCell
from harmax.experiments.rivals.outcomes import (
    BODIES,
    MARGIN,
    SCORES,
    Place,
    collect,
    holds_everywhere,
    unbeaten,
    versus,
    written,
)
from harmax.experiments.rivals.search import SearchSpec, at_edge
from harmax.experiments.spec import Claim, Finding, Verdict, conclude
from harmax.store import CellResult

Results = Mapping[RivalCell, CellResult]
RIVALS = tuple(name for name in LOSSES if name != "harmonic")


def _loss(cell: RivalCell) -> str:
    return cell.loss


def judge_first(results: Results, place: Place) -> Finding:
    """Judge by harmonic against every rival: all must be behind, and one ahead at the shared level breaks it."""
    outcomes = collect(results, _loss)
    rivals = [loss for loss in RIVALS if any(cell.loss == loss for cell in results)]
    level = shared_level(len(rivals))
    found = {loss: versus(outcomes, place, "harmonic", loss, "structure") for loss in rivals}
    strict = [versus(outcomes, place, "harmonic", loss, "structure", level=level) for loss in rivals]
    answers = [one.difference.above(0) if one else None for one in found.values()]
    behind = [loss for loss, answer in zip(rivals, answers, strict=True) if answer is True]
    known = {loss: one for loss, one in found.items() if one}
    nearest = min(known, key=lambda loss: known[loss].difference.estimate)
    return Finding(
        holds_everywhere(answers, [one.difference.above(0) if one else None for one in strict]),
        f"Clearly behind are {len(behind)} of {len(rivals)}. The strongest rival is {ARMS[nearest].label}: structure "
        f"of harmonic minus its {written(known[nearest])}, mean of {len(place.tasks)} tasks.",
        {f"difference_{loss}": one.difference._asdict() for loss, one in known.items()},
    )


def judge_unbeaten(results: Results, place: Place) -> Finding:
    """Judge by whether any rival has a higher test accuracy by more than the margin."""
    rivals = [loss for loss in RIVALS if any(cell.loss == loss for cell in results)]
    answer = unbeaten(collect(results, _loss), place, "harmonic", rivals, "accuracy")
    return Finding(
        answer.holds,
        f"The most accurate rival is {ARMS[answer.best].label}: test accuracy {written(answer.found[answer.best])} "
        f"more than harmonic, mean of {len(place.tasks)} tasks.",
        {f"difference_{loss}": one.difference._asdict() for loss, one in answer.found.items()},
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
# By name: what is claimed, the losses it needs (None: harmonic and every rival), and the judge.
JUDGES: dict[str, tuple[str, tuple[str, ...] | None, Judge]] = {
    "structure_first": (
        "Harmonic loss gives more structure than every rival, each tuned, on average over the tasks. Holds where all "
        "differences lie above 0 with their 95 % intervals; broken where one lies below, the level shared among them",
        None,
        judge_first,
    ),
    "accuracy_unbeaten": (
        f"No rival, each tuned, is more accurate in test by more than {MARGIN} on average over the tasks. Holds where "
        "all differences lie below that with their 95 % intervals; broken where one lies above, the level shared",
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
    "tying_is_nothing": (
        f"Untying changes the structure under harmonic loss by less than {MARGIN} (95 % interval of the mean over the "
        "tasks inside; broken: outside)",
        ("harmonic", "harmonic_untied"),
        partial(judge_alike, ours="harmonic_untied", theirs="harmonic"),
    ),
    "bias_is_nothing": (
        f"A bias changes the structure under cross-entropy by less than {MARGIN} (95 % interval of the mean over the "
        "tasks inside; broken: outside)",
        ("linear", "linear_bias"),
        partial(judge_alike, ours="linear_bias", theirs="linear"),
    ),
}
UNTUNED = "untuned_structure_first"
CLAIMS = (
    *(
        Claim(
            f"{UNTUNED}_{model}",
            "Harmonic loss gives more structure than every rival of the appendix at the authors' learning rate and "
            "weight decay, on average over lattice and modular addition. Holds where all differences lie above 0 with "
            "their 95 % intervals; broken where one lies below, the level shared among them "
            f"({BODIES[model]}, authors protocol).",
            "An appendix compares contrastive, spherical and margin losses; the authors' code applies them to the "
            "log-probabilities of a harmonic head, here they are as published. No numbers are known here.",
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
    everything = APPENDIX if name == UNTUNED else LOSSES
    own = [cell for cell in there if cell.loss in (needed or everything)]
    missing = set(needed or everything) - {cell.loss for cell in own}
    if missing:
        # Two are enough to say something about; a claim about all of them stays open.
        own = [] if needed is not None or not {"harmonic", "linear"} <= {cell.loss for cell in own} else own
    short = spec.too_short(full, model) or f"{len(missing)} losses were not run." * bool(missing)
    place = Place(protocol, model, spec.tasks_under(protocol))
    return conclude(claim.id, partial(judged, place=place), own, results, too_short=short)
