"""Small transformers whose features start at the scale of their centers: are they still harder to train?

    harmax run start            two tasks, 3 seeds, cut short: seconds on two CPU cores
    harmax run start --full     five tasks, 20 seeds, four train fractions; meant for a GPU

The paper's small transformers add an outer residual around every layer, so the features that their head sees start
about twelve times longer than the centers. Then all centers are nearly equally far away, and a small exponent sees
little of the difference. The harmonic loss does not change when features and centers are scaled together, so their
ratio is free. Here the features are multiplied by 1/8, which is what the rule of `harmax.heads.scale` gives for all
five tasks. Cross-entropy with the same factor is the control. Everything else is the matched protocol.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from harmax.figures import Picture, class_color
from harmax_lab.algorithmic import anchors
from harmax_lab.algorithmic.protocols import Settings, settings
from harmax_lab.algorithmic.runs import BODIES, TITLES
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim
from harmax_lab.kit.experiment import Experiment
from harmax_lab.kit.results import Results
from harmax_lab.kit.tables import Table
from harmax_lab.studies import compare_arms as arms
from harmax_lab.studies import tables_and_figures as show
from harmax_lab.studies.compare_arms import Place, StudySpec, Weights, minus
from harmax_lab.studies.score_runs import SCORES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MATCHED = 0.125
"""Factor on the features: a power of two, the same for exponents 2 and 4 on all tasks."""
MOST = 0.8
"""The train fraction of the algorithmic section. All arms have it."""
MODEL = "transformer"


@dataclass(frozen=True)
class Arm:
    """A head, and what its features are multiplied by."""

    label: str
    head: str = "harmonic"
    exponent: float = 2.0
    feature_scale: float = 1.0


ARMS: dict[str, Arm] = {
    "linear": Arm("cross-entropy", "linear"),
    "linear_scaled": Arm("cross-entropy, features x 1/8", "linear", feature_scale=MATCHED),
    "harmonic": Arm("harmonic"),
    "harmonic_scaled": Arm("harmonic, matched start", feature_scale=MATCHED),
    "root": Arm("harmonic, exponent 4", exponent=4.0),
    "root_scaled": Arm("harmonic, exponent 4, matched start", exponent=4.0, feature_scale=MATCHED),
}
"""Exponent 2 is the authors', 4 the square root of the width, which the paper recommends."""
STARTS = {"harmonic": "exponent 2", "root": "exponent 4"}
"""Harmonic arms as they are; the name with `_scaled` is the one that starts at the matched scale."""


@dataclass(frozen=True)
class StartCell(RunCell):
    """One transformer; `start` is a key of `ARMS`."""

    start: str


@dataclass(frozen=True, kw_only=True)
class StartSpec(StudySpec):
    """Settings of the study."""

    protocols: tuple[str, ...] = ("matched",)
    models: tuple[str, ...] = (MODEL,)
    starts: tuple[str, ...] = tuple(ARMS)
    fractions: tuple[float, ...] = (0.2, 0.4, 0.6, MOST)
    """Train fractions; below the largest one only arms that are asked how much data they need are trained."""
    transformer_epochs: int = anchors.LONG_EPOCHS

    def key(self, cell: Any) -> tuple[str, str, str, str]:
        """Compare runs of all train fractions in one place: an arm is a start with a fraction."""
        return cell.protocol, cell.model, cell.task, arm_name(cell.start, cell.train_fraction)


FULL = StartSpec(seeds=anchors.SEEDS)


def arm_name(start: str, fraction: float = MOST) -> str:
    """Name a start at a train fraction.

    >>> arm_name("harmonic"), arm_name("harmonic", 0.4)
    ('harmonic', 'harmonic at 0.4')
    """
    return start if fraction == MOST else f"{start} at {fraction:g}"


def cells(spec: StartSpec) -> list[StartCell]:
    """List every task, start, train fraction and seed; the control has the largest fraction alone."""
    return [
        StartCell("matched", task, MODEL, ARMS[start].head, fraction, seed, start)
        for place in spec.places()
        for task, start, fraction, seed in product(place.tasks, spec.starts, spec.fractions, spec.seeds)
        if fraction == MOST or start != "linear_scaled"
    ]


def settings_of(spec: StartSpec, cell: StartCell) -> Settings:
    """Return how a cell is trained: as under the matched protocol, but for its exponent and its features' scale."""
    arm = ARMS[cell.start]
    how = settings("matched", cell.model, cell.head, epochs=spec.epochs(cell.model))
    scaled = (("feature_scale", arm.feature_scale),) if arm.feature_scale != 1 else ()
    return replace(how, exponent=arm.exponent, options=scaled)


def over_fractions(arm: str, against: str) -> dict[str, float]:
    """Return the weights of one arm minus another, as a mean over the train fractions of the full profile."""
    share = 1 / len(FULL.fractions)
    return {
        arm_name(start, fraction): sign * share
        for start, sign in ((arm, 1), (against, -1))
        for fraction in FULL.fractions
    }


def effects(harmonic: str) -> dict[str, Weights]:
    """Return what is asked of the harmonic arm with this exponent: weights of arms, by name."""
    scaled = f"{harmonic}_scaled"
    return {
        "matched start minus as it is": minus(scaled, harmonic),
        "the same, beyond cross-entropy's": {**minus(scaled, harmonic), "linear_scaled": -1.0, "linear": 1.0},
        "as it is minus cross-entropy": minus(harmonic, "linear"),
        "matched start minus cross-entropy": minus(scaled, "linear"),
    }


def _claims(harmonic: str) -> list[Claim]:
    scaled = f"{harmonic}_scaled"
    helps, beyond, _, ahead = effects(harmonic).values()

    def claim(name: str, said: str, weights: Weights, words: str, score: str) -> Claim:
        rule = arms.above(weights, words, score)
        place: Any = {"full": FULL, "protocol": "matched", "model": MODEL, "arms": tuple(weights)}
        return arms.study_claim(name, said, rule, suffix=harmonic, where=f"{STARTS[harmonic]}, untuned", **place)

    return [
        claim(
            "easier_to_train",
            "Harmonic transformers are more accurate when they start at the matched scale",
            helps,
            "Late test accuracy, matched start minus as it is",
            "accuracy",
        ),
        claim(
            "more_structure",
            "Harmonic transformers show more structure when they start at the matched scale",
            helps,
            "Structure, matched start minus as it is",
            "structure",
        ),
        claim(
            "not_for_cross_entropy",
            "The matched scale helps the accuracy of harmonic loss more than the same factor helps cross-entropy",
            beyond,
            "Gain in late test accuracy, harmonic minus cross-entropy",
            "accuracy",
        ),
        claim(
            "still_harder",
            "Harmonic transformers that start at the matched scale are still less accurate than standard ones",
            minus("linear", scaled),
            "Late test accuracy, cross-entropy minus harmonic from a matched start",
            "accuracy",
        ),
        claim(
            "still_more_data",
            "Harmonic transformers that start at the matched scale still need more data: their accuracy, averaged over "
            "train fractions, is lower than that of standard ones",
            over_fractions("linear", scaled),
            "Late test accuracy over train fractions, cross-entropy minus harmonic from a matched start",
            "accuracy",
        ),
        claim(
            "more_structure_than_cross_entropy",
            "Harmonic transformers that start at the matched scale show more structure than standard ones",
            ahead,
            "Structure, harmonic from a matched start minus cross-entropy",
            "structure",
        ),
    ]


CLAIMS = tuple(claim for pair in zip(*map(_claims, STARTS), strict=True) for claim in pair)


def tables(results: Results) -> list[Table]:
    """Tabulate scores, effects, accuracy against the train fraction, and epochs."""
    spec, places = results.spec, results.spec.places(results)
    labels = {start: ARMS[start].label for start in spec.starts}
    asked = {
        f"{STARTS[harmonic]}: {name}": weights
        for harmonic in STARTS
        for name, weights in effects(harmonic).items()
        if set(weights) <= set(spec.starts)
    }
    return [
        show.score_table(show.SCORES_TITLE, places, labels),
        show.effect_table("What the start does, paired over seeds: mean [95 %]", places, asked),
        show.without_one(places, asked, "accuracy"),
        Table(
            "Late test accuracy against the train fraction: mean over seeds [95 %]", tuple(_by_fraction(spec, places))
        ),
        *show.run_tables(places, labels),
    ]


def _by_fraction(spec: StartSpec, places: Iterable[Place]) -> Iterable[dict[str, Any]]:
    for place, start in product(show.each(places), spec.starts):
        found = {f"{one:g}": place.mean(arm_name(start, one), "accuracy") for one in spec.fractions}
        yield {**place.columns, "arm": ARMS[start].label, **found}


def figures(results: Results) -> dict[str, Picture]:
    """Draw the accuracy and the structure of every arm: a dot per task, a diamond for their mean."""
    places = [place for place in results.spec.places(results) if place.runs]
    if not places:
        return {}
    spec = results.spec
    caption = (
        "Late test accuracy (left) and structure (right) of small transformers. A dot is the mean of one task over "
        f"{len(spec.seeds)} seeds, the diamond with its 95 % interval the mean over the tasks. Compare each arm with "
        "the one above it: the lower one of a pair multiplies its features by 1/8 and is the same otherwise. Matched "
        f"protocol, train fraction {MOST:g}, nothing tuned; {spec.epochs(MODEL)} epochs."
    )
    return {"start": Picture(_draw(places[0], spec.starts), caption)}


def _draw(place: Place, starts: Sequence[str]) -> "Figure":
    handles = [drawing.mark_handle(TITLES[task], "o", class_color(index)) for index, task in enumerate(place.tasks)]
    handles.append(drawing.mark_handle("mean over the tasks", "D", "#222222"))
    shown = {score: SCORES[score] for score in ("accuracy", "structure")}
    figure, panels = drawing.panels_in_a_row(
        shown,
        size=(10, 0.55 * len(starts) + 2.0),
        handles=handles,
        title=f"What the scale at the start does to {BODIES[MODEL]}",
        sharey=True,
    )
    for score, axes in panels.items():
        for line, start in enumerate(starts):
            for index, at in enumerate(place.alone()):
                if one := at.contrast({arm_name(start): 1.0}, score):
                    color: Any = {"color": class_color(index), "markeredgewidth": 0}
                    axes.plot(one.difference.estimate, line - 0.15, "o", markersize=5.5, alpha=0.85, **color)
            if mean := place.contrast({arm_name(start): 1.0}, score):
                drawing.draw_interval(axes, mean.difference, line + 0.15, "#222222", markersize=5, zorder=3)
        axes.set_yticks(range(len(starts)), [ARMS[start].label for start in starts])
        axes.set(ylim=(len(starts) - 0.5, -0.5), xlim=(-0.03, 1.03))
    return figure


EXPERIMENT = Experiment(
    name="start",
    title="Small transformers that start at the scale of their centers",
    figure="Scale at the start; the paper has no figure of it",
    claims=CLAIMS,
    profiles={
        "smoke": replace(
            FULL,
            seeds=(0, 1),
            tasks=("modular_addition",),
            starts=("harmonic", "harmonic_scaled"),
            fractions=(MOST,),
            transformer_epochs=2,
        ),
        "quick": replace(
            FULL,
            seeds=anchors.SEEDS[:3],
            tasks=("lattice", "modular_addition"),
            fractions=(MOST,),
            transformer_epochs=12,
        ),
        "full": FULL,
    },
    work=arms.work(cells, settings_of, pieces=lambda cell: (cell.model, cell.start)),
    tables=tables,
    figures=figures,
)
