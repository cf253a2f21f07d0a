"""Which half of the loss does it: the distance or HarMax (Fig. 6 and its appendix).

    harmax run ablation            MLPs, two tasks, 3 seeds, cut short: seconds on two CPU cores
    harmax run ablation --full     five tasks, both models, both protocols, 20 seeds; meant for a GPU

Two switches make four heads: inner product or distance, softmax or HarMax. A main effect is the mean of what a switch
does with the other one off and on; the interaction is what it does more with the other one on than off. Under the
matched protocol the four differ in the switches alone. Under the authors' a head takes the other settings of the
authors' arm with its similarity: transformers with a distance are not tied, and the standard MLP has an output bias.

HarMax of an inner product is not defined by the paper; `DotHarmaxHead` says what is taken for it: the class that wins
is the most orthogonal one. Learning rate and weight decay are the authors' for all four and not tuned; the rivals have
the same square with each corner tuned, and with spherical softmax, p ~ (w . x)^2, in this one's place. Transformers
train for 5000 epochs, where the authors have 7000 and, on permutations, 10,000.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from harmax_lab.algorithmic import anchors
from harmax_lab.algorithmic.protocols import Settings, settings
from harmax_lab.algorithmic.training import RunCell, train
from harmax_lab.kit.claims import Claim, Finding, Verdict
from harmax_lab.kit.experiment import Context, Experiment, Summary, conclude
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table
from harmax_lab.studies.ablation_figures import HEADS, SWITCHES, figures
from harmax_lab.studies.comparisons import RULE, all_below, effect_rows, judge_contrast
from harmax_lab.studies.outcomes import (
    BODIES,
    PAPERS_TASKS,
    SCORES,
    Place,
    StudySpec,
    collect,
    compact,
    contrast,
    mean_of,
    versus,
    with_p,
    written,
)
from harmax_lab.studies.shared_tables import epoch_table, structure_tables, without_one

Results = Mapping[RunCell, CellResult]
HALF = 0.5
OVER_NEITHER = {
    f"{words}, over neither": {head: 1.0, "linear": -1.0}
    for head, words in (("harmonic", "both"), ("l2", "distance alone"), ("dot_harmax", "HarMax alone"))
}


@dataclass(frozen=True, kw_only=True)
class AblationSpec(StudySpec):
    """Settings of the ablation."""

    transformer_epochs: int = 5000
    """Fewer than the authors' 7000, so that all of it stays within minutes on a GPU."""


def cells(spec: AblationSpec) -> list[RunCell]:
    """List every protocol, task, model, head and seed."""
    return [
        RunCell(place.protocol, task, place.model, head, spec.train_fraction, seed)
        for place in spec.places()
        for task in place.tasks
        for head in HEADS
        for seed in spec.seeds
    ]


def settings_of(spec: AblationSpec, cell: RunCell) -> Settings:
    """Return how a cell is trained: as the authors' arm with its similarity is."""
    arm = "harmonic" if cell.head in ("l2", "harmonic") else "linear"
    how = settings(cell.protocol, cell.model, arm, epochs=spec.epochs(cell.model))
    # HarMax has no bias to put one in.
    return replace(how, bias=how.bias and cell.head == "linear")


def run_cells(spec: AblationSpec, group: Sequence[RunCell], context: Context) -> Iterable[tuple[RunCell, CellResult]]:
    """Train the runs, a stack a protocol, head, model and length of question."""
    return compact(train(group, partial(settings_of, spec), context, snapshots=2, centers=True))


def _claims_of(protocol: str, model: str) -> list[Claim]:
    tail = f"{BODIES[model]}, {protocol} protocol, untuned"
    authors = protocol == "authors"
    shown = "Fig. 6 shows embeddings on lattice and modular addition; no numbers are known here."
    texts = {
        "both_needed": (
            "It takes both: with distance and HarMax together there is more structure than with either alone or with "
            "neither, on average over lattice and modular addition. Holds where the differences of all three from both "
            f"together lie below 0 with their 95 % intervals; {RULE}",
            "Distance and HarMax together give the structure, either alone does not. " + shown,
        ),
        "distance_most": (
            "The distance alone gives more than half of the gain in structure that both give over neither, on average "
            "over the tasks. Not decided where both give no clear gain",
            "Not reported.",
        ),
        "harmax_most": (
            "HarMax alone gives more than half of the gain in structure that both give over neither, on average over "
            "the tasks. Not decided where both give no clear gain",
            "Not reported.",
        ),
        "interaction": (
            "The two reinforce one another: the interaction in structure, averaged over the tasks, lies above 0 with "
            "its 95 % interval (broken: below)",
            "Not reported as a number.",
        ),
    }
    return [
        Claim(f"{name}_{model}_{protocol}", f"{text} ({tail}).", paper, control=not (authors and name == "both_needed"))
        for name, (text, paper) in texts.items()
    ]


CLAIMS = tuple(
    claim for protocol in ("authors", "matched") for model in BODIES for claim in _claims_of(protocol, model)
)


def judge_both(results: Results, place: Place) -> Finding:
    """Judge by harmonic against each of the other three on the paper's tasks."""
    others = [head for head in HEADS if head != "harmonic"]
    there = place._replace(tasks=PAPERS_TASKS)
    answer = all_below(collect(results, _head), there, dict.fromkeys(others, "harmonic"), "structure")
    found = (f"{_lower(HEADS[head].label)} {written(one)}" for head, one in answer.found.items())
    return Finding(
        answer.holds,
        f"Structure minus that of distance with HarMax: {'; '.join(found)}; mean of {len(PAPERS_TASKS)} tasks."
        + answer.in_doubt,
        answer.numbers,
    )


def judge_share(results: Results, place: Place, alone: str) -> Finding:
    """Judge by whether one switch alone gives more than half of what both give."""
    outcomes = collect(results, _head)
    whole = versus(outcomes, place, "harmonic", "linear", "structure")
    part = versus(outcomes, place, alone, "linear", "structure")
    beyond = contrast(outcomes, place, {alone: 1.0, "linear": HALF - 1, "harmonic": -HALF}, "structure")
    gained = whole is not None and whole.difference.above(0) is True
    return Finding(
        beyond.difference.above(0) if gained and beyond else None,
        f"Structure over neither: both {written(whole)}, {_lower(HEADS[alone].label)} {written(part)}; minus half of "
        f"both {with_p(beyond)}{'' if gained else ', but both give no clear gain'}.",
        {"both": _numbers(whole), "alone": _numbers(part), "beyond_half": _numbers(beyond)},
    )


def judge_interaction(results: Results, place: Place) -> Finding:
    """Judge by the interval of the interaction."""
    weights = SWITCHES["interaction"]
    return judge_contrast(collect(results, _head), place, weights, "structure", "Interaction in structure")


def _numbers(found: Any) -> dict[str, float] | None:
    return found.difference._asdict() if found else None


def _lower(label: str) -> str:
    return label[0].lower() + label[1:]


def _head(cell: RunCell) -> str:
    return cell.head


JUDGES: dict[str, Callable[..., Finding]] = {
    "both_needed": judge_both,
    "distance_most": partial(judge_share, alone="l2"),
    "harmax_most": partial(judge_share, alone="dot_harmax"),
    "interaction": judge_interaction,
}


def _judge(claim: Claim, spec: AblationSpec, results: Results) -> Verdict:
    name, model, protocol = claim.id.rsplit("_", 2)
    place = Place(protocol, model, spec.tasks_under(protocol))
    own = [cell for cell in cells(spec) if (cell.protocol, cell.model) == (protocol, model)]
    if name == "both_needed":
        own = [cell for cell in own if cell.task in PAPERS_TASKS] if set(PAPERS_TASKS) <= set(place.tasks) else []
    short = spec.too_short(FULL, place, PAPERS_TASKS if name == "both_needed" else None)
    return conclude(claim.id, partial(JUDGES[name], place=place), own, results, too_short=short)


def summarize(spec: AblationSpec, results: Results) -> Summary:
    """Judge every claim, and tabulate scores, effects and epochs."""
    outcomes = collect(results, _head)
    places = [place for whole in spec.places() for place in whole.each()]
    scores = Table(
        "Scores: mean over seeds [95 %]",
        tuple(
            {**place.columns, "score": words, **{HEADS[h].label: mean_of(outcomes, place, h, score) for h in HEADS}}
            for place in places
            for score, words in SCORES.items()
        ),
    )
    effects = Table(
        "Effects of the two switches, paired over seeds: mean [95 %]", tuple(effect_rows(outcomes, places, SWITCHES))
    )
    labels = {head: style.label for head, style in HEADS.items()}
    epochs = epoch_table(outcomes, spec.places(), labels, "head")
    robust = without_one(outcomes, spec.places(), {**SWITCHES, **OVER_NEITHER})
    tables = (scores, effects, robust, epochs, *structure_tables(outcomes, spec.places(), labels))
    tables = tuple(table for table in tables if table.rows)
    return Summary(tuple(_judge(claim, spec, results) for claim in CLAIMS), tables)


FULL = AblationSpec(seeds=anchors.SEEDS)
EXPERIMENT = Experiment(
    name="ablation",
    title="Distance and HarMax, one at a time",
    figure="Fig. 6; appendix",
    claims=CLAIMS,
    profiles={
        "smoke": AblationSpec(
            seeds=(0, 1), models=("mlp",), tasks=("modular_addition",), authors_tasks=("lattice",), mlp_epochs=2
        ),
        "quick": AblationSpec(
            seeds=anchors.SEEDS[:3],
            protocols=("matched",),
            models=("mlp",),
            tasks=("modular_addition", "permutation"),  # questions of one length: a stack a head
            mlp_epochs=48,
        ),
        "full": FULL,
    },
    cells=cells,
    run_cells=run_cells,
    old_summarize=summarize,
    old_figures=figures,
    group=lambda cell: None,  # side by side: a GPU is never left waiting for a compiler, or for a last straggler
    pieces=lambda cell: (cell.protocol, cell.model, cell.head),
    accelerated=True,
)
