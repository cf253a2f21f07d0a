"""Which part of the loss does it: the distance or HarMax (Fig. 6 and its section).

    harmax run ablation            MLPs, two tasks, 3 seeds, cut short: seconds on two CPU cores
    harmax run ablation --full     five tasks, both models, both protocols, 20 seeds; meant for a GPU

Two switches make four heads: inner product or distance, softmax or HarMax. Under the matched protocol the four differ
in the switches alone. Under the authors' protocol a head takes the other settings of the authors' arm with its
similarity: transformers with a distance are not tied, and the standard MLP has an output bias. All four have the
authors' learning rate and weight decay; nothing is tuned. The rivals have the same square with each corner tuned.

The paper trains MLPs on two tasks, and its claims are judged on these. It does not define HarMax of an inner product,
nor say whether softmax sees the distance or its square. Where its words leave a choice, both choices are trained, and
the one that is better for the claim counts (`PARTS`). Neither definition of HarMax of an inner product is the paper's:
in one the size of the inner product is the distance, and the most orthogonal class wins (`DotHarmaxHead`), which hardly
trains; in the other its inverse is, and the least orthogonal class wins (`SphericalHead`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from harmax.figures import Picture
from harmax_lab.algorithmic import anchors, planes
from harmax_lab.algorithmic.protocols import Settings, settings
from harmax_lab.algorithmic.runs import BODIES, TITLES
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.experiment import Experiment
from harmax_lab.kit.judges import below, both, listed
from harmax_lab.kit.results import Results, interval
from harmax_lab.kit.tables import Table
from harmax_lab.paper.readings import PERFECT, REPLICATES
from harmax_lab.studies import compare_arms as arms
from harmax_lab.studies import tables_and_figures as show
from harmax_lab.studies.compare_arms import PAPERS_TASKS, QUICK, SMOKE, Place, Rule, StudySpec, minus
from harmax_lab.studies.score_runs import SCORES
from harmax_lab.tasks import PROTOCOLS, find_task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS = {
    "harmonic": "distance, HarMax",
    "l2": "distance, softmax",
    "dot_harmax": "inner product, HarMax",
    "linear": "inner product, softmax",
}
"""In the order of the paper's figure."""
OTHERS = {"gaussian": "squared distance, softmax", "spherical": "1 / inner product, HarMax"}
"""The same parts, defined in another way; for MLPs on the paper's two tasks alone."""
LABELS = {**HEADS, **OTHERS}
PARTS = {"the distance": ("l2", "gaussian"), "HarMax": ("dot_harmax", "spherical")}
"""Heads that have one part of the loss, in every definition."""
OPTIONS: dict[str, tuple[tuple[str, float], ...]] = {"gaussian": (("precision", 2.0),)}
SWITCHES = arms.switches("dot_harmax")
"""Weights of the four heads in each effect."""
OVER_NEITHER = {
    "both, over neither": minus("harmonic", "linear"),
    "distance alone, over neither": minus("l2", "linear"),
    "HarMax alone, over neither": minus("dot_harmax", "linear"),
}


@dataclass(frozen=True, kw_only=True)
class AblationSpec(StudySpec):
    """Settings of the ablation."""

    transformer_epochs: int = 5000
    """Fewer than the paper's 10,000: its claims are about MLPs, and transformers are controls."""


FULL = AblationSpec(seeds=anchors.SEEDS)


def heads_of(place: Place, task: str) -> tuple[str, ...]:
    """Return the heads that are trained on a task."""
    papers = place.model == "mlp" and place.protocol == "authors" and task in PAPERS_TASKS
    return tuple(LABELS if papers else HEADS)


def cells(spec: AblationSpec) -> list[RunCell]:
    """List every protocol, task, model, head and seed."""
    return [
        RunCell(place.protocol, task, place.model, head, spec.train_fraction, seed)
        for place in spec.places()
        for task in place.tasks
        for head, seed in product(heads_of(place, task), spec.seeds)
    ]


def settings_of(spec: StudySpec, cell: RunCell) -> Settings:
    """Return how a cell is trained: as the authors' arm with its similarity."""
    arm = "harmonic" if cell.head in ("l2", "gaussian", "harmonic") else "linear"
    how = settings(cell.protocol, cell.model, arm, epochs=spec.epochs(cell.model))
    # HarMax has no place for a bias.
    return replace(how, bias=how.bias and cell.head == "linear", options=OPTIONS.get(cell.head, ()))


def either(*answers: bool | None) -> bool | None:
    """Return whether one answer is yes: True if one is, else None if one is missing.

    >>> either(True, None), either(None, False), either(False, False)
    (True, None, False)
    """
    return True if True in answers else None if None in answers else False


def _replicates(place: Place, head: str) -> bool | None:
    lost = [place.contrast(minus(head, "harmonic"), score) for score in ("variance", "accuracy")]
    return both(*(None if one is None else one.difference.above(-REPLICATES) for one in lost))


def _falls_short(place: Place, head: str) -> bool | None:
    found = _replicates(place, head)
    return None if found is None else not found


def _incomplete(place: Place, head: str) -> bool | None:
    found = place.contrast({head: 1.0}, "variance")
    return None if found is None else below(found.difference, PERFECT)


def _better_circle(place: Place, head: str) -> bool | None:
    found = place.contrast(minus(head, "linear"), "plane")
    return None if found is None else found.difference.above(0)


def _each_part(
    test: Callable[[Place, str], bool | None], definitions: Callable[..., bool | None], words: str, *scores: str
) -> Rule:
    """Judge by a test that each part must pass alone, in either or both of its definitions; show these scores."""

    def judge(place: Place) -> Finding:
        found = {head: test(place, head) for part in PARTS.values() for head in part}
        holds = both(*(definitions(*(found[head] for head in part)) for part in PARTS.values()))
        shown = {score: {LABELS[arm]: place.mean(arm, score) for arm in LABELS} for score in scores}
        sentence = ". ".join(f"{SHOWN[score].capitalize()}: {listed(values)}" for score, values in shown.items())
        return Finding(holds, f"{sentence}.", {f"passes_{head}": one for head, one in found.items()})

    which = (
        "In the better of two definitions of a part" if definitions is either else "In both definitions of each part"
    )
    return Rule(f"{which}, {words}", judge)


def _judge_only(place: Place) -> Finding:
    medians = {
        head: [float(np.median(list(at.per_seed({head: 1.0}, "structure").values()))) for at in place.alone()]
        for head in place.arms
    }
    recover = [head for head, found in medians.items() if min(found) >= PERFECT]
    shown = {LABELS[head]: " and ".join(f"{one:.3f}" for one in found) for head, found in medians.items()}
    tasks = " and ".join(TITLES[task].lower() for task in place.tasks)
    sentence = f"Structure of the median run on {tasks}: {listed(shown)}."
    return Finding(recover == ["harmonic"], sentence, {"recover": len(recover)})


SHOWN = {**SCORES, "plane": "share of the plane that a circle explains"}


def _papers_claims() -> list[Claim]:
    claim = partial(
        arms.study_claim,
        suffix="mlp",
        where="MLPs, authors protocol, untuned",
        full=FULL,
        protocol="authors",
        model="mlp",
        arms=LABELS,
        passing=arms.passed,
    )
    lattice, circle = ((task,) for task in PAPERS_TASKS)
    points, scores = f"{100 * REPLICATES:.0f} points", ("variance", "accuracy")
    return [
        claim(
            "lattice_either",
            "On the lattice the distance alone and HarMax alone each replicate the full performance",
            _each_part(
                _replicates,
                either,
                f"the explained variance and the late test accuracy are at most {points} below those of harmonic loss, "
                "with their 95 % intervals; broken where one is farther below",
                *scores,
            ),
            tasks=lattice,
            sentences=("6/5",),
        ),
        claim(
            "circle_both",
            "On modular addition both parts are essential: neither alone replicates the full performance",
            _each_part(
                _falls_short,
                both,
                f"the explained variance or the late test accuracy is more than {points} below that of harmonic loss, "
                "with its 95 % interval; broken where both are closer",
                *scores,
            ),
            tasks=circle,
            sentences=("6/6",),
        ),
        claim(
            "circle_better",
            "On modular addition each part alone makes a better circle than cross-entropy",
            _each_part(
                _better_circle,
                either,
                "the best circle explains a larger share of the plane of two components, with the 95 % interval; "
                "broken where a smaller one",
                "plane",
            ),
            tasks=circle,
            sentences=("6/7",),
        ),
        claim(
            "circle_incomplete",
            "On modular addition the explained variance with one part alone is clearly below 100 %",
            _each_part(
                _incomplete,
                both,
                f"its mean lies below {100 * PERFECT:.0f} % with the 95 % interval; broken where above",
                "variance",
            ),
            tasks=circle,
            sentences=("6/7",),
        ),
        claim(
            "only_both",
            "Only distance and HarMax together recover both the lattice and the circle",
            Rule(
                f"Holds where the run whose structure is the median has at least {100 * PERFECT:.0f} % of it on both "
                "tasks with harmonic loss, and where no other head has such a run on both",
                _judge_only,
            ),
            tasks=PAPERS_TASKS,
            sentences=("Fig. 6/5",),
        ),
    ]


def _controls(protocol: str, model: str) -> list[Claim]:
    where, suffix = f"{BODIES[model]}, {protocol} protocol, untuned", f"{model}_{protocol}"
    claim = partial(arms.study_claim, suffix=suffix, where=where, full=FULL, protocol=protocol, model=model, arms=HEADS)
    found = [
        claim(
            "both_needed",
            "It takes both: distance and HarMax together give more structure than either alone or neither, on average "
            "over lattice and modular addition. Each of the three is compared with both together",
            arms.none_ahead({head: "harmonic" for head in HEADS if head != "harmonic"}, HEADS, "structure"),
            tasks=PAPERS_TASKS,
        )
    ]
    if protocol == "matched":  # else tying and bias differ with the switches
        said = "The two reinforce one another: the interaction in structure lies above 0"
        found.append(claim("interaction", said, arms.above(SWITCHES["interaction"], "Interaction in structure")))
    return found


CLAIMS = (*_papers_claims(), *(claim for at in product(PROTOCOLS, BODIES) for claim in _controls(*at)))


def tables(results: Results) -> list[Table]:
    """Tabulate scores, effects and epochs."""
    places = results.spec.places(results)
    return [
        show.score_table(show.SCORES_TITLE, places, LABELS),
        show.effect_table("Effects of the two switches, paired over seeds: mean [95 %]", places, SWITCHES),
        show.without_one(places, {**SWITCHES, **OVER_NEITHER}),
        *show.run_tables(places, LABELS, "head"),
    ]


def figures(results: Results) -> dict[str, Picture]:
    """Draw the embeddings, one figure per protocol and model, and the explained variance of every run."""
    drawn, spec = {}, results.spec
    for place in [one for one in spec.places(results) if one.runs]:
        how = f"{place.protocol} protocol, {len(spec.seeds)} seeds, {spec.epochs(place.model)} epochs"
        drawn[f"embeddings_{place.model}_{place.protocol}"] = Picture(
            _draw_embeddings(place),
            f"What tokens look like with both parts of the loss, with one and with none: {BODIES[place.model]} in the "
            f"plane of two components; {how}. For each head and task the seed is shown whose share of variance in the "
            "plane is the median; the number is this share.",
        )
        if set(PAPERS_TASKS) <= set(place.tasks) and OTHERS.keys() & set(place.arms):
            drawn[f"variance_{place.model}_{place.protocol}"] = Picture(
                _draw_variance(place),
                f"How much of the embedding lies in the plane: every run of {BODIES[place.model]} as a dot, the mean "
                f"and its 95 % interval as a diamond; {how}. The last two heads are other definitions of the parts in "
                "the second and third row.",
            )
    return drawn


def _draw_variance(place: Place) -> "Figure":
    titles = {task: TITLES[task] for task in PAPERS_TASKS}
    figure, panels = drawing.panels_in_a_row(titles, size=(8.4, 2.9), sharey=True)
    for task, axes in panels.items():
        for row, head in enumerate(LABELS):
            found = list(place._replace(tasks=(task,)).per_seed({head: 1.0}, "variance").values())
            if not found:
                continue
            heights = drawing.beside(row, len(found), 0.28)
            axes.plot(100 * np.sort(found), heights, ".", color="#999999", markersize=4)
            drawing.draw_interval(axes, interval(found), row, "#0072B2", scale=100, markersize=6)
        axes.set(xlim=(0, 102), ylim=(len(LABELS) - 0.5, -0.5))
        axes.set_yticks(range(len(LABELS)), list(LABELS.values()))
    figure.supxlabel("explained variance of two components, %", fontsize=9.5)
    figure.suptitle("Explained variance with both parts of the loss, with one and with none", fontsize=10.5)
    return figure


def _draw_embeddings(place: Place) -> "Figure":
    rows = {head: label.replace(", ", "\n") for head, label in HEADS.items()}
    size = (1.95 * len(place.tasks) + 0.9, 1.95 * len(HEADS) + 0.6)
    figure, panels = drawing.facets(rows, {task: TITLES[task] for task in place.tasks}, size=size, font=9)
    for (head, task), axes in panels.items():
        structure = find_task(task, protocol=place.protocol).structure
        share = planes.draw_middle(axes, structure, place.runs.get((task, head), {}), size=3.4)
        axes.set_xlabel(share, fontsize=8)
        axes.yaxis.label.set_fontsize(9)
    figure.suptitle(f"Embeddings of {BODIES[place.model]} with each loss, and their explained variance", fontsize=11)
    return figure


EXPERIMENT = Experiment(
    name="ablation",
    title="Distance and HarMax, one at a time",
    figure="Sec. 6, Fig. 6",
    claims=CLAIMS,
    profiles={
        "smoke": replace(FULL, **SMOKE, authors_tasks=("lattice",)),
        "quick": replace(FULL, **QUICK, protocols=("matched",)),
        "full": FULL,
    },
    work=arms.work(cells, settings_of, pieces=lambda cell: (cell.protocol, cell.model, cell.head)),
    tables=tables,
    figures=figures,
    version=2,
)
