"""Which half of the loss does it: the distance or HarMax (Fig. 6 and its appendix).

    harmax run ablation            MLPs, two tasks, 3 seeds, cut short: seconds on two CPU cores
    harmax run ablation --full     five tasks, both models, both protocols, 20 seeds; meant for a GPU

Two switches make four heads: inner product or distance, softmax or HarMax. A main effect is the mean of what a switch
does with the other one off and on. The interaction is how much more it does with the other one on than off. Under the
matched protocol the four heads differ in the switches alone. Under the authors' protocol a head takes the other
settings of the authors' arm with its similarity: transformers with a distance are not tied, and the standard MLP has an
output bias.

The paper does not define HarMax of an inner product. `DotHarmaxHead` says what is taken for it: the class that wins is
the most orthogonal one. All four have the authors' learning rate and weight decay; nothing is tuned. The rivals have
the same square with each corner tuned, and with spherical softmax, p ~ (w . x)^2, in this corner. Transformers train
for 5000 epochs, where the authors have 7000 and, on permutations, 10,000.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from harmax.figures import HEAD_STYLES, HeadStyle, Picture
from harmax_lab.algorithmic import anchors, planes
from harmax_lab.algorithmic.protocols import Settings, settings
from harmax_lab.algorithmic.runs import BODIES, TITLES
from harmax_lab.algorithmic.training import RunCell, task_of, train
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.experiment import Context, Experiment
from harmax_lab.kit.judges import listed
from harmax_lab.kit.results import Results
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table
from harmax_lab.studies.compare_arms import (
    BELOW_ZERO,
    PAPERS_TASKS,
    Place,
    StudySpec,
    all_below,
    by_contrast,
    minus,
    numbers_of,
    study_claim,
    switches,
    written,
)
from harmax_lab.studies.score_runs import compact
from harmax_lab.studies.tables_and_figures import draw_switches, effect_table, run_tables, score_table, without_one

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS: dict[str, HeadStyle] = {
    "linear": HeadStyle("Inner product, softmax", HEAD_STYLES["cross_entropy"].color, "--"),
    "l2": HeadStyle("Distance, softmax", HEAD_STYLES["cross_entropy_bias"].color, "-."),
    "dot_harmax": HeadStyle("Inner product, HarMax", HEAD_STYLES["harmonic_2"].color, ":"),
    "harmonic": HeadStyle("Distance, HarMax", HEAD_STYLES["harmonic"].color, "-"),
}
LABELS = {head: style.label for head, style in HEADS.items()}
SWITCHES = switches("dot_harmax")
"""Weights of the four heads in each effect."""
OVER_NEITHER = {
    f"{words}, over neither": minus(head, "linear")
    for head, words in (("harmonic", "both"), ("l2", "distance alone"), ("dot_harmax", "HarMax alone"))
}
HALF = 0.5


@dataclass(frozen=True, kw_only=True)
class AblationSpec(StudySpec):
    """Settings of the ablation."""

    transformer_epochs: int = 5000
    """Fewer than the authors' 7000, so that the study takes minutes on a GPU."""


FULL = AblationSpec(seeds=anchors.SEEDS)


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
    """Return how a cell is trained: as the authors' arm with its similarity."""
    arm = "harmonic" if cell.head in ("l2", "harmonic") else "linear"
    how = settings(cell.protocol, cell.model, arm, epochs=spec.epochs(cell.model))
    return replace(how, bias=how.bias and cell.head == "linear")  # HarMax has no place for a bias


def run_cells(spec: AblationSpec, group: Sequence[RunCell], context: Context) -> Iterable[tuple[RunCell, CellResult]]:
    """Train the runs, one stack per protocol, head, model and length of question."""
    return compact(train(group, partial(settings_of, spec), context, snapshots=2, centers=True))


def _judge_both(place: Place) -> Finding:
    answer = all_below(place, {head: "harmonic" for head in HEADS if head != "harmonic"}, "structure")
    found = {_lower(head): written(one) for head, one in answer.found.items()}
    sentence = f"Structure minus that of distance with HarMax: {listed(found)}; mean of {len(place.tasks)} tasks."
    return Finding(answer.holds, sentence + answer.in_doubt, answer.numbers)


def _judge_share(place: Place, alone: str) -> Finding:
    whole, part = (place.contrast(minus(head, "linear"), "structure") for head in ("harmonic", alone))
    beyond = place.contrast({alone: 1.0, "linear": HALF - 1, "harmonic": -HALF}, "structure")
    gained = whole is not None and whole.difference.above(0) is True
    return Finding(
        beyond.difference.above(0) if gained and beyond else None,
        f"Structure over neither: both {written(whole)}, {_lower(alone)} {written(part)}; the latter minus half of the "
        f"former {written(beyond, p=True)}{'' if gained else ', but both give no clear gain'}.",
        {"both": numbers_of(whole), "alone": numbers_of(part), "beyond_half": numbers_of(beyond)},
    )


def _lower(head: str) -> str:
    return LABELS[head][0].lower() + LABELS[head][1:]


def _claims(protocol: str, model: str) -> list[Claim]:
    def claim(name: str, statement: str, judge: Any, **more: Any) -> Claim:
        statement = f"{statement} ({BODIES[model]}, {protocol} protocol, untuned)."
        options = {"full": FULL, "protocol": protocol, "model": model, "arms": HEADS, **more}
        return study_claim(f"{name}_{model}_{protocol}", statement, judge, **options)

    most = (
        "{} alone gives more than half of the gain in structure that both give over neither, on average over the "
        "tasks. Not decided where both give no clear gain"
    )
    return [
        claim(
            "both_needed",
            "It takes both: distance and HarMax together give more structure than either alone or neither, on average "
            f"over lattice and modular addition. Each of the three is compared with both together. {BELOW_ZERO}",
            _judge_both,
            tasks=PAPERS_TASKS,
            paper="Distance and HarMax together give the structure, either alone does not. Fig. 6 shows embeddings on "
            "lattice and modular addition; no numbers are known here.",
            control=protocol != "authors",
        ),
        claim("distance_most", most.format("The distance"), partial(_judge_share, alone="l2")),
        claim("harmax_most", most.format("HarMax"), partial(_judge_share, alone="dot_harmax")),
        claim(
            "interaction",
            "The two reinforce one another: the interaction in structure, averaged over the tasks, lies above 0 with "
            "its 95 % interval. Broken where it lies below",
            by_contrast(SWITCHES["interaction"], "structure", "Interaction in structure"),
            paper="Not reported as a number.",
        ),
    ]


def tables(results: Results) -> list[Table]:
    """Tabulate scores, effects and epochs."""
    places = results.spec.places(results)
    return [
        score_table("Scores: mean over seeds [95 %]", places, LABELS),
        effect_table("Effects of the two switches, paired over seeds: mean [95 %]", places, SWITCHES),
        without_one(places, {**SWITCHES, **OVER_NEITHER}),
        *run_tables(places, LABELS, "head"),
    ]


def figures(results: Results) -> dict[str, Picture]:
    """Draw the effects, one figure per protocol, and the embeddings, one figure per protocol and model."""
    drawn = {}
    for protocol in results.distinct("protocol"):
        places = {place.model: place for place in results.spec.places(results) if place.protocol == protocol}
        drawn[f"effects_{protocol}"] = Picture(
            draw_switches(places, SWITCHES),
            f"What each switch does to the scores, {protocol} protocol, untuned: mean over seeds and 95 % interval, by "
            "task and averaged over tasks (last row); gray where the interval spans 0. Distance and HarMax: mean "
            "effect of a switch over the two settings of the other. Interaction: how much more each does with the "
            "other on.",
        )
        for model, place in places.items():
            if place.runs:
                drawn[f"embeddings_{model}_{protocol}"] = Picture(
                    _draw_embeddings(place),
                    f"Embeddings of {BODIES[model]} in the plane of two components, {protocol} protocol. For each head "
                    "and task the seed is shown whose share of variance in the plane (below) is the median.",
                )
    return drawn


def _draw_embeddings(place: Place) -> "Figure":
    figure, panels = drawing.facets(
        {head: label.replace(", ", "\n") for head, label in LABELS.items()},
        {task: TITLES[task] for task in place.tasks},
        size=(1.95 * len(place.tasks) + 0.9, 1.95 * len(HEADS) + 0.3),
        font=9,
    )
    for (head, task), axes in panels.items():
        structure = task_of(RunCell(place.protocol, task, place.model, head, 0.8, 0)).structure
        share = planes.draw_middle(axes, structure, place.runs.get((task, head), {}), size=3.4)
        axes.set_xlabel(share, fontsize=8)
    return figure


EXPERIMENT = Experiment(
    name="ablation",
    title="Distance and HarMax, one at a time",
    figure="Fig. 6; appendix",
    claims=tuple(claim for protocol in ("authors", "matched") for model in BODIES for claim in _claims(protocol, model)),
    profiles={
        "smoke": AblationSpec(
            seeds=(0, 1), models=("mlp",), tasks=("modular_addition",), authors_tasks=("lattice",), mlp_epochs=2
        ),
        "quick": AblationSpec(
            seeds=anchors.SEEDS[:3],
            protocols=("matched",),
            models=("mlp",),
            tasks=("modular_addition", "permutation"),  # questions of one length: one stack per head
            mlp_epochs=48,
        ),
        "full": FULL,
    },
    cells=cells,
    run_cells=run_cells,
    tables=tables,
    figures=figures,
    group=lambda cell: None,  # side by side: a GPU never waits for a compiler or for a last straggler
    pieces=lambda cell: (cell.protocol, cell.model, cell.head),
    accelerated=True,
)
