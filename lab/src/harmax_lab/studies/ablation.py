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

from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from harmax.figures import Picture
from harmax_lab.algorithmic import anchors, planes
from harmax_lab.algorithmic.protocols import Settings, settings
from harmax_lab.algorithmic.runs import BODIES, TITLES
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.experiment import Experiment
from harmax_lab.kit.results import Results
from harmax_lab.kit.tables import Table
from harmax_lab.studies import compare_arms as arms
from harmax_lab.studies import tables_and_figures as show
from harmax_lab.studies.compare_arms import QUICK, SMOKE, Place, Rule, StudySpec, minus, numbers_of, written
from harmax_lab.tasks import PROTOCOLS, find_task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS = {
    "linear": "inner product, softmax",
    "l2": "distance, softmax",
    "dot_harmax": "inner product, HarMax",
    "harmonic": "distance, HarMax",
}
SWITCHES = arms.switches("dot_harmax")
"""Weights of the four heads in each effect."""
OVER_NEITHER = {
    "both, over neither": minus("harmonic", "linear"),
    "distance alone, over neither": minus("l2", "linear"),
    "HarMax alone, over neither": minus("dot_harmax", "linear"),
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
        for task, head, seed in product(place.tasks, HEADS, spec.seeds)
    ]


def settings_of(spec: AblationSpec, cell: RunCell) -> Settings:
    """Return how a cell is trained: as the authors' arm with its similarity."""
    arm = "harmonic" if cell.head in ("l2", "harmonic") else "linear"
    how = settings(cell.protocol, cell.model, arm, epochs=spec.epochs(cell.model))
    return replace(how, bias=how.bias and cell.head == "linear")  # HarMax has no place for a bias


def _judge_share(place: Place, alone: str) -> Finding:
    whole, part = (place.contrast(minus(head, "linear"), "structure") for head in ("harmonic", alone))
    beyond = place.contrast({alone: 1.0, "linear": HALF - 1, "harmonic": -HALF}, "structure")
    gained = whole is not None and whole.difference.above(0) is True
    return Finding(
        beyond.difference.above(0) if gained and beyond else None,
        f"Structure over neither: both {written(whole)}, {HEADS[alone]} {written(part)}; the latter minus half of the "
        f"former {written(beyond, p=True)}{'' if gained else ', but both give no clear gain'}.",
        {"both": numbers_of(whole), "alone": numbers_of(part), "beyond_half": numbers_of(beyond)},
    )


def _claims(protocol: str, model: str) -> list[Claim]:
    where, suffix = f"{BODIES[model]}, {protocol} protocol, untuned", f"{model}_{protocol}"
    claim = partial(arms.study_claim, suffix=suffix, where=where, full=FULL, protocol=protocol, model=model, arms=HEADS)
    half = (
        "{} alone gives more than half of the gain in structure that both give over neither, on average over the tasks"
    )
    unclear = "Not decided where both give no clear gain"
    return [
        claim(
            "both_needed",
            "It takes both: distance and HarMax together give more structure than either alone or neither, on average "
            "over lattice and modular addition. Each of the three is compared with both together",
            arms.none_ahead({head: "harmonic" for head in HEADS if head != "harmonic"}, HEADS, "structure"),
            tasks=arms.PAPERS_TASKS,
            paper="Distance and HarMax together give the structure, either alone does not. Fig. 6 shows embeddings on "
            "lattice and modular addition; no numbers are known here.",
            control=protocol != "authors",
        ),
        claim("distance_most", half.format("The distance"), Rule(unclear, partial(_judge_share, alone="l2"))),
        claim("harmax_most", half.format("HarMax"), Rule(unclear, partial(_judge_share, alone="dot_harmax"))),
        claim(
            "interaction",
            "The two reinforce one another: the interaction in structure lies above 0",
            arms.above(SWITCHES["interaction"], "Interaction in structure"),
            paper="Not reported as a number.",
        ),
    ]


CLAIMS = tuple(claim for at in product(PROTOCOLS, BODIES) for claim in _claims(*at))


def tables(results: Results) -> list[Table]:
    """Tabulate scores, effects and epochs."""
    places = results.spec.places(results)
    return [
        show.score_table(show.SCORES_TITLE, places, HEADS),
        show.effect_table("Effects of the two switches, paired over seeds: mean [95 %]", places, SWITCHES),
        show.without_one(places, {**SWITCHES, **OVER_NEITHER}),
        *show.run_tables(places, HEADS, "head"),
    ]


def figures(results: Results) -> dict[str, Picture]:
    """Draw the effects, one figure per protocol, and the embeddings, one figure per protocol and model."""
    drawn = {}
    for protocol in results.distinct("protocol"):
        places = [place for place in results.spec.places(results) if place.protocol == protocol]
        drawn[f"effects_{protocol}"] = Picture(
            show.draw_effects(places, SWITCHES, by_task=False),
            f"What each switch does to the scores, {protocol} protocol, untuned: mean over seeds and 95 % interval, by "
            "task and averaged over tasks (last row); gray where the interval spans 0. Distance and HarMax: mean "
            "effect of a switch over the two settings of the other. Interaction: how much more each does with the "
            "other on.",
        )
        for place in [one for one in places if one.runs]:
            drawn[f"embeddings_{place.model}_{protocol}"] = Picture(
                _draw_embeddings(place),
                f"Embeddings of {BODIES[place.model]} in the plane of two components, {protocol} protocol. For each "
                "head and task the seed is shown whose share of variance in the plane (below) is the median.",
            )
    return drawn


def _draw_embeddings(place: Place) -> "Figure":
    rows = {head: label.replace(", ", "\n") for head, label in HEADS.items()}
    size = (1.95 * len(place.tasks) + 0.9, 1.95 * len(HEADS) + 0.3)
    figure, panels = drawing.facets(rows, {task: TITLES[task] for task in place.tasks}, size=size, font=9)
    for (head, task), axes in panels.items():
        structure = find_task(task, protocol=place.protocol).structure
        share = planes.draw_middle(axes, structure, place.runs.get((task, head), {}), size=3.4)
        axes.set_xlabel(share, fontsize=8)
        axes.yaxis.label.set_fontsize(9)
    return figure


EXPERIMENT = Experiment(
    name="ablation",
    title="Distance and HarMax, one at a time",
    figure="Fig. 6; appendix",
    claims=CLAIMS,
    profiles={
        "smoke": replace(FULL, **SMOKE, authors_tasks=("lattice",)),
        "quick": replace(FULL, **QUICK, protocols=("matched",)),
        "full": FULL,
    },
    work=arms.work(cells, settings_of, pieces=lambda cell: (cell.protocol, cell.model, cell.head)),
    tables=tables,
    figures=figures,
)
