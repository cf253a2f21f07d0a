"""What came with the loss: does its gain over cross-entropy need the leaking data, the weight decay or the tying?

    harmax run confounds            MLPs, two tasks, 3 seeds, cut short: seconds on two CPU cores
    harmax run confounds --full     five tasks, both models, 20 seeds, five conditions; meant for a GPU

Harmonic loss and cross-entropy, trained alike under the matched protocol and then with one thing changed for both: the
authors' way of drawing data, no weight decay, a strong one, or a head that is not tied to the embedding. A gain is
harmonic's score minus cross-entropy's on the same seed. Nothing is tuned; the rivals have tied and untied heads tuned.

Drawn the authors' way, with replacement and then split, test rows are also in the training set, and another number of
facts is trained on: fewer on three tasks; on genealogy more, and 2.5 times as many rows. Permutations are drawn once
each under either protocol: there it is another split and nothing else. Since the splits differ, what the data do to a
gain is paired in initial weights alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from harmax_lab.algorithmic import anchors
from harmax_lab.algorithmic.protocols import Settings, settings
from harmax_lab.algorithmic.training import train
from harmax_lab.kit.claims import Claim, Finding, Verdict
from harmax_lab.kit.experiment import Context, Experiment, Summary, conclude
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table
from harmax_lab.studies.comparisons import ABOVE, ALIKE, RULE, all_below, effect_rows, judge_contrast
from harmax_lab.studies.conditions import (
    CONDITIONS,
    HEADS,
    MATCHED,
    ConfoundCell,
    arm_name,
    gain_in,
    outcomes_of,
)
from harmax_lab.studies.confounds_figures import figures
from harmax_lab.studies.outcomes import (
    BODIES,
    SCORES,
    Outcomes,
    Place,
    StudySpec,
    alike,
    compact,
    contrast,
    mean_of,
    written,
)
from harmax_lab.studies.shared_tables import epoch_table, structure_tables, without_one

Results = Mapping[ConfoundCell, CellResult]
CHANGES = tuple(name for name in CONDITIONS if name != MATCHED)
DECAYS = ("no_decay", MATCHED, "strong_decay")
GAINS_TITLE = "Gains of harmonic loss over cross-entropy, paired over seeds: mean [95 %]"
CHANGES_TITLE = "What a change does to the gain, paired over seeds: mean [95 %]"


@dataclass(frozen=True, kw_only=True)
class ConfoundSpec(StudySpec):
    """Settings of the study; the conditions say whose data a run has."""

    protocols: tuple[str, ...] = ("matched",)
    conditions: tuple[str, ...] = tuple(CONDITIONS)
    mlp_epochs: int = 4000
    """Fewer than the authors' 7000, as for transformers, so that all of it stays within minutes on a GPU."""
    transformer_epochs: int = 3000


def cells(spec: ConfoundSpec) -> list[ConfoundCell]:
    """List every model, condition, task, head and seed."""
    return [
        ConfoundCell(CONDITIONS[condition].protocol, task, place.model, head, spec.train_fraction, seed, condition)
        for place in spec.places()
        for condition in spec.conditions
        for task in place.tasks
        for head in HEADS
        for seed in spec.seeds
    ]


def settings_of(spec: ConfoundSpec, cell: ConfoundCell) -> Settings:
    """Return how a cell is trained: as under the matched protocol, but for what its condition changes."""
    how = settings("matched", cell.model, cell.head, epochs=spec.epochs(cell.model))
    condition = CONDITIONS[cell.condition]
    decay = how.weight_decay if condition.weight_decay is None else condition.weight_decay
    return replace(how, weight_decay=decay, tied=condition.tied)


def run_cells(
    spec: ConfoundSpec, group: Sequence[ConfoundCell], context: Context
) -> Iterable[tuple[ConfoundCell, CellResult]]:
    """Train the runs: all tied conditions of a head and model together, whatever their data and decay."""
    return compact(train(group, partial(settings_of, spec), context, snapshots=2, centers=True))


def change_of(condition: str) -> dict[str, float]:
    """Return the weights of four arms in what a condition does to the gain."""
    return {**gain_in(condition), **{arm: -weight for arm, weight in gain_in(MATCHED).items()}}


def judge_gain(outcomes: Outcomes, place: Place, condition: str) -> Finding:
    """Judge by the interval of the gain in structure."""
    return judge_contrast(outcomes, place, gain_in(condition), "structure", "Structure, harmonic minus cross-entropy")


def judge_change(outcomes: Outcomes, place: Place, condition: str, score: str) -> Finding:
    """Judge by whether a gain is changed by less than the margin, or by more."""
    usual, changed = (written(contrast(outcomes, place, gain_in(one), score)) for one in (MATCHED, condition))
    words = f"Gain in {SCORES[score]}: {usual} as matched, {changed} under the condition; change"
    return judge_contrast(outcomes, place, change_of(condition), score, words, alike)


def judge_decay(outcomes: Outcomes, place: Place) -> Finding:
    """Judge harmonic without decay against cross-entropy with each."""
    ours = arm_name("harmonic", "no_decay")
    answer = all_below(outcomes, place, {arm_name("linear", one): ours for one in DECAYS}, "structure")
    found = (
        f"{CONDITIONS[one].label} {written(answer.found[arm_name('linear', one)])}"
        for one in DECAYS
        if arm_name("linear", one) in answer.found
    )
    return Finding(
        answer.holds,
        f"Structure of cross-entropy minus that of harmonic loss without weight decay: {'; '.join(found)}; mean of "
        f"{len(place.tasks)} tasks.{answer.in_doubt}",
        answer.numbers,
    )


@dataclass(frozen=True)
class Question:
    """What is asked: the words, the conditions it needs, and who answers."""

    text: str
    conditions: tuple[str, ...]
    judge: Callable[[Outcomes, Place], Finding]
    where: str = ""
    """Under which condition, where the same is asked of several."""


QUESTIONS: dict[str, Question] = {
    **{
        f"gain_{name}": Question(
            f"Harmonic loss gives more structure than cross-entropy. {ABOVE}",
            (name,),
            partial(judge_gain, condition=name),
            f"{one.label}; ",
        )
        for name, one in CONDITIONS.items()
    },
    **{
        f"{score}_{name}": Question(
            f"The gain in {SCORES[score]} is what it is under the matched protocol. {ALIKE}",
            (MATCHED, name),
            partial(judge_change, condition=name, score=score),
            f"{CONDITIONS[name].label}; ",
        )
        for score in ("structure", "accuracy")
        for name in CHANGES
    },
    "decay_instead": Question(
        "Harmonic loss without weight decay gives more structure than cross-entropy with each of "
        f"{len(DECAYS)} weight decays. Holds where cross-entropy's difference lies below 0 for each with its 95 % "
        f"interval; {RULE}",
        DECAYS,
        judge_decay,
    ),
}
CLAIMS = tuple(
    Claim(
        f"{name}_{model}",
        f"{question.text} ({question.where}{BODIES[model]}, untuned).",
        "Not reported.",
        control=True,
    )
    for name, question in QUESTIONS.items()
    for model in BODIES
)


def _judge(claim: Claim, spec: ConfoundSpec, results: Results) -> Verdict:
    name, model = claim.id.rsplit("_", 1)
    question = QUESTIONS[name]
    place = Place("matched", model, spec.tasks)
    there = set(question.conditions) <= set(spec.conditions)
    own = [cell for cell in cells(spec) if there and cell.model == model and cell.condition in question.conditions]

    def answer(found: Results) -> Finding:
        return question.judge(outcomes_of(found), place)

    return conclude(claim.id, answer, own, results, too_short=spec.too_short(FULL, place))


def summarize(spec: ConfoundSpec, results: Results) -> Summary:
    """Judge every claim, and tabulate gains, what changes them, scores and epochs."""
    outcomes = outcomes_of(results)
    places = [place for whole in spec.places() for place in whole.each()]
    gains = {CONDITIONS[one].label: gain_in(one) for one in spec.conditions}
    changes = {CONDITIONS[one].label: change_of(one) for one in CHANGES if {one, MATCHED} <= set(spec.conditions)}
    arms = {
        arm_name(head, one): f"{words}: {CONDITIONS[one].label}"
        for one in spec.conditions
        for head, words in HEADS.items()
    }
    scores = Table(
        "Scores: mean over seeds [95 %]",
        tuple(
            {
                **place.columns,
                "arm": label,
                **{words: mean_of(outcomes, place, arm, score) for score, words in SCORES.items()},
            }
            for place in places
            for arm, label in arms.items()
        ),
    )
    tables = (
        Table(GAINS_TITLE, tuple(effect_rows(outcomes, places, gains))),
        Table(CHANGES_TITLE, tuple(effect_rows(outcomes, places, changes)) if changes else ()),
        without_one(outcomes, spec.places(), gains),
        scores,
        epoch_table(outcomes, spec.places(), arms),
        *structure_tables(outcomes, spec.places(), arms),
    )
    # Whose data a run has is in its condition.
    plain = (
        Table(one.title, tuple({key: row[key] for key in row if key != "protocol"} for row in one.rows))
        for one in tables
        if one.rows
    )
    return Summary(tuple(_judge(claim, spec, results) for claim in CLAIMS), tuple(plain))


FULL = ConfoundSpec(seeds=anchors.SEEDS)
EXPERIMENT = Experiment(
    name="confounds",
    title="What came with the loss: leaking data, weight decay, tying",
    figure="Leak, decay and tying; the paper has no figure of them",
    claims=CLAIMS,
    profiles={
        "smoke": ConfoundSpec(
            seeds=(0, 1), models=("mlp",), tasks=("modular_addition",), conditions=(MATCHED, "drawn"), mlp_epochs=2
        ),
        "quick": ConfoundSpec(
            seeds=anchors.SEEDS[:3],
            models=("mlp",),
            tasks=("modular_addition", "permutation"),  # questions of one length: a stack a head
            conditions=(MATCHED, "drawn", "no_decay", "strong_decay"),
            mlp_epochs=48,
        ),
        "full": FULL,
    },
    cells=cells,
    run_cells=run_cells,
    old_summarize=summarize,
    old_figures=figures,
    group=lambda cell: None,  # side by side: a GPU is never left waiting for a compiler, or for a last straggler
    pieces=lambda cell: (cell.model, cell.head, CONDITIONS[cell.condition].tied),
    accelerated=True,
)
