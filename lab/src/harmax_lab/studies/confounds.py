"""What came with the loss: does its gain over cross-entropy need the leaking data, the weight decay or the tying?

    harmax run confounds            MLPs, two tasks, 3 seeds, cut short: seconds on two CPU cores
    harmax run confounds --full     five tasks, both models, 20 seeds, five conditions; meant for a GPU

Harmonic loss and cross-entropy are trained alike under the matched protocol, and then with one thing changed for both:
the authors' way of drawing data, no weight decay, a strong one, or a head that is not tied to the embedding. A gain is
harmonic's score minus cross-entropy's on the same seed. Nothing is tuned; the rivals have tied and untied heads tuned.

The authors draw data with replacement and then split it, so test rows are also in the training set, and the number of
distinct training facts changes: it is smaller on three tasks and larger on genealogy, which also has 2.5 times as many
rows. Permutations are drawn once each under either protocol: there only the split differs. Since the splits differ,
the effect of the data on a gain is paired in initial weights alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from harmax_lab.studies.compare_arms import QUICK, SMOKE, Place, Rule, StudySpec, minus, written
from harmax_lab.studies.score_runs import SCORES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS = {"linear": "cross-entropy", "harmonic": "harmonic"}
MATCHED = "matched"


@dataclass(frozen=True)
class Condition:
    """What is changed for both losses."""

    label: str
    protocol: str = "matched"
    """Whose way of drawing data."""
    weight_decay: float | None = None
    """In place of the protocol's."""
    tied: bool = True


CONDITIONS: dict[str, Condition] = {
    MATCHED: Condition("as matched"),
    "drawn": Condition("data drawn as by the authors", protocol="authors"),
    "no_decay": Condition("no weight decay", weight_decay=0.0),
    "strong_decay": Condition("weight decay 0.3", weight_decay=0.3),
    "untied": Condition("untied", tied=False),
}
CHANGES = tuple(name for name in CONDITIONS if name != MATCHED)
DECAYS = ("no_decay", MATCHED, "strong_decay")
LABELS = {
    f"{head}, {name}": f"{words}: {condition.label}"
    for name, condition in CONDITIONS.items()
    for head, words in HEADS.items()
}
"""Of the arms."""
GAINS_TITLE = "Gains of harmonic loss over cross-entropy, paired over seeds: mean [95 %]"
CHANGES_TITLE = "What a change does to the gain, paired over seeds: mean [95 %]"


@dataclass(frozen=True)
class ConfoundCell(RunCell):
    """One model trained under one condition, a key of `CONDITIONS`; its protocol says how its data are drawn."""

    condition: str


@dataclass(frozen=True, kw_only=True)
class ConfoundSpec(StudySpec):
    """Settings of the study; the conditions say whose data a run has."""

    protocols: tuple[str, ...] = ("matched",)
    conditions: tuple[str, ...] = tuple(CONDITIONS)
    mlp_epochs: int = 4000
    """Fewer than the authors' 7000, as for transformers, so that the study takes minutes on a GPU."""
    transformer_epochs: int = 3000

    def key(self, cell: Any) -> tuple[str, str, str, str]:
        """Compare all runs in one place, whatever their data; an arm is a head under a condition."""
        return "matched", cell.model, cell.task, arm_name(cell.head, cell.condition)


FULL = ConfoundSpec(seeds=anchors.SEEDS)


def arm_name(head: str, condition: str) -> str:
    """Name a head under a condition."""
    return f"{head}, {condition}"


def cells(spec: ConfoundSpec) -> list[ConfoundCell]:
    """List every model, condition, task, head and seed."""
    return [
        ConfoundCell(CONDITIONS[condition].protocol, task, place.model, head, spec.train_fraction, seed, condition)
        for place in spec.places()
        for condition, task, head, seed in product(spec.conditions, place.tasks, HEADS, spec.seeds)
    ]


def settings_of(spec: ConfoundSpec, cell: ConfoundCell) -> Settings:
    """Return how a cell is trained: as under the matched protocol, but for what its condition changes."""
    how = settings("matched", cell.model, cell.head, epochs=spec.epochs(cell.model))
    condition = CONDITIONS[cell.condition]
    decay = how.weight_decay if condition.weight_decay is None else condition.weight_decay
    return replace(how, weight_decay=decay, tied=condition.tied)


def gain(condition: str) -> dict[str, float]:
    """Return the weights of two arms in the gain under a condition."""
    return minus(arm_name("harmonic", condition), arm_name("linear", condition))


def change(condition: str) -> dict[str, float]:
    """Return the weights of four arms in what a condition does to the gain."""
    return {**gain(condition), **{arm: -weight for arm, weight in gain(MATCHED).items()}}


def _both_gains(place: Place, condition: str, score: str) -> str:
    usual, changed = (written(place.contrast(gain(one), score)) for one in (MATCHED, condition))
    return f"Gain in {SCORES[score]}: {usual} as matched, {changed} under the condition; change"


def _claims(model: str) -> list[Claim]:
    def claim(name: str, said: str, rule: Rule, *conditions: str) -> Claim:
        asked = f"{CONDITIONS[conditions[-1]].label}; " if len(conditions) < len(DECAYS) else ""
        own = [arm_name(head, one) for one in conditions for head in HEADS]
        place: Any = {"full": FULL, "protocol": "matched", "model": model, "arms": own}
        return arms.study_claim(name, said, rule, suffix=model, where=f"{asked}{BODIES[model]}, untuned", **place)

    more, words = "Harmonic loss gives more structure than cross-entropy", "Structure, harmonic minus cross-entropy"
    against = {arm_name("linear", one): arm_name("harmonic", "no_decay") for one in DECAYS}
    return [
        *(claim(f"gain_{name}", more, arms.above(gain(name), words), name) for name in CONDITIONS),
        *(
            claim(
                f"{score}_{name}",
                f"The gain in {SCORES[score]} is the same as under the matched protocol",
                arms.above(change(name), partial(_both_gains, condition=name, score=score), score, alike=True),
                MATCHED,
                name,
            )
            for score in ("structure", "accuracy")
            for name in CHANGES
        ),
        claim(
            "decay_instead",
            "Harmonic loss without weight decay gives more structure than cross-entropy with each of "
            f"{len(DECAYS)} weight decays. Cross-entropy is compared with harmonic loss",
            arms.none_ahead(against, LABELS, "structure"),
            *DECAYS,
        ),
    ]


CLAIMS = tuple(claim for pair in zip(*map(_claims, BODIES), strict=True) for claim in pair)


def tables(results: Results) -> list[Table]:
    """Tabulate gains, what changes them, scores and epochs."""
    spec, places = results.spec, results.spec.places(results)
    gains = {CONDITIONS[one].label: gain(one) for one in spec.conditions}
    changes = {CONDITIONS[one].label: change(one) for one in CHANGES if {one, MATCHED} <= set(spec.conditions)}
    labels = {arm_name(head, one): LABELS[arm_name(head, one)] for one in spec.conditions for head in HEADS}
    scores = [
        {**place.columns, "arm": label, **{words: place.mean(arm, score) for score, words in SCORES.items()}}
        for place, (arm, label) in product(show.each(places), labels.items())
    ]
    made = [
        show.effect_table(GAINS_TITLE, places, gains),
        show.effect_table(CHANGES_TITLE, places, changes),
        show.without_one(places, gains),
        Table(show.SCORES_TITLE, tuple(scores)),
        *show.run_tables(places, labels),
    ]
    # The protocol is the same in all rows: the condition says whose data a run has.
    return [
        Table(one.title, tuple({key: row[key] for key in row if key != "protocol"} for row in one.rows)) for one in made
    ]


DRAWN = ("structure", "accuracy")
MEAN = "#222222"


def figures(results: Results) -> dict[str, Picture]:
    """Draw the gains in structure and in accuracy: a line per condition, with every task and their mean."""
    conditions = [name for name in CONDITIONS if name in results.distinct("condition")]
    if not conditions:
        return {}
    spec = results.spec
    places = [place for place in spec.places(results) if place.runs]
    epochs = ", ".join(f"{BODIES[place.model]} {spec.epochs(place.model)} epochs" for place in places)
    caption = (
        "How much better harmonic loss is than cross-entropy, both trained alike, under each condition. Right of 0 "
        "harmonic loss is better. A dot is the mean of one task over "
        f"{len(spec.seeds)} seeds. The diamond with its 95 % interval is the mean over the tasks. Look along a column: "
        "a gain that one condition takes away needs what this condition changes. Matched protocol, nothing tuned; "
        f"{epochs}."
    )
    return {"gains": Picture(_draw_gains(places, conditions), caption)}


def _draw_gains(places: Sequence[Place], conditions: Sequence[str]) -> "Figure":
    tasks = places[0].tasks
    handles = [drawing.mark_handle(TITLES[task], "o", class_color(index)) for index, task in enumerate(tasks)]
    handles.append(drawing.mark_handle("mean over the tasks", "D", MEAN))
    figure, panels = drawing.facets(
        {score: f"gain in {SCORES[score].removeprefix('late ')}" for score in DRAWN},
        {place.model: BODIES[place.model] for place in places},
        size=(4.1 * len(places) + 2.2, 2.6 * len(DRAWN) + 1.3),
        xlabel="harmonic minus cross-entropy",
        sharex=True,
        sharey=True,
    )
    figure.suptitle("Does harmonic loss need leaking data, weight decay or tying for its gain?")
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    for score, place in product(DRAWN, places):
        axes = panels[score, place.model]
        axes.axvline(0, color="#777777", linewidth=0.9, zorder=1)
        for line, condition in enumerate(conditions):
            for index, at in enumerate(place.alone()):
                if one := at.contrast(gain(condition), score):
                    color: Any = {"color": class_color(index), "markeredgewidth": 0}
                    axes.plot(one.difference.estimate, line - 0.17, "o", markersize=5.5, alpha=0.85, zorder=2, **color)
            if mean := place.contrast(gain(condition), score):
                drawing.draw_interval(axes, mean.difference, line + 0.17, MEAN, markersize=5, zorder=3)
        axes.set(ylim=(len(conditions) - 0.5, -0.5))
        axes.set_yticks(range(len(conditions)), [CONDITIONS[name].label for name in conditions])
    return figure


EXPERIMENT = Experiment(
    name="confounds",
    title="What came with the loss: leaking data, weight decay, tying",
    figure="Leak, decay and tying; the paper has no figure of them",
    claims=CLAIMS,
    profiles={
        "smoke": replace(FULL, **SMOKE, conditions=(MATCHED, "drawn")),
        "quick": replace(FULL, **QUICK, conditions=(MATCHED, "drawn", "no_decay", "strong_decay")),
        "full": FULL,
    },
    work=arms.work(cells, settings_of, pieces=lambda cell: (cell.model, cell.head, CONDITIONS[cell.condition].tied)),
    tables=tables,
    figures=figures,
)
