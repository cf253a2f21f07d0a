"""What the exponent does, from 1 to 20 with sqrt(D) = 4 and D = 16 among them, and the learnable one (appendix).

    harmax run exponents            MLPs, two tasks, 5 exponents, 2 seeds, cut short: seconds on two CPU cores
    harmax run exponents --full     five tasks, both models, 20 seeds; meant for a GPU

`exponent` is the power of the distance. The paper's rule is the square root of the width, which is 4 here; its small
models are said to have 1; the authors' code takes the power of the *squared* distance, which makes theirs 2. All fixed
exponents of a model are trained as one ensemble. The learnable one starts at 4 and is trained with the weights, weight
decay on its logarithm included. Everything else is the harmonic arm's of the protocol, the learning rate too: this
compares exponents at one setting and not each at its best.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from harmax.analysis import bootstrap_interval
from harmax.analysis.arrays import rank_correlation
from harmax_lab.algorithmic import anchors
from harmax_lab.algorithmic.protocols import Settings, settings
from harmax_lab.algorithmic.training import RunCell, train
from harmax_lab.kit.claims import Claim, Finding, Verdict
from harmax_lab.kit.experiment import Context, Experiment, Summary, conclude
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table
from harmax_lab.studies.comparisons import RULE, all_below
from harmax_lab.studies.exponents_figures import LEARNED, arm_of, figures, learned_exponents
from harmax_lab.studies.outcomes import (
    BODIES,
    MARGIN,
    PAPERS_TASKS,
    SCORES,
    Place,
    StudySpec,
    collect,
    compact,
    mean_of,
    per_seed,
    written,
)
from harmax_lab.studies.shared_tables import epoch_table, structure_tables, without_one

EXPONENTS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 20.0)
START = 4.0
"""Of the learnable exponent: sqrt(D), as the head's default is."""


@dataclass(frozen=True, kw_only=True)
class ExponentSpec(StudySpec):
    """Settings of the sweep."""

    exponents: tuple[float, ...] = EXPONENTS
    authors_tasks: tuple[str, ...] = PAPERS_TASKS
    transformer_epochs: int = 4000
    """Fewer than the authors' 7000, so that all of it stays within minutes on a GPU."""

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of all arms."""
        return (*(f"{exponent:g}" for exponent in self.exponents), LEARNED)


@dataclass(frozen=True)
class ExponentCell(RunCell):
    """One model trained with one exponent; where the exponent is learned, its start."""

    exponent: float


Results = Mapping[ExponentCell, CellResult]


def cells(spec: ExponentSpec) -> list[ExponentCell]:
    """List every protocol, model, task, exponent and seed."""
    heads = [*(("harmonic", exponent) for exponent in spec.exponents), ("learnable", START)]
    return [
        ExponentCell(place.protocol, task, place.model, head, spec.train_fraction, seed, exponent)
        for place in spec.places()
        for task in place.tasks
        for head, exponent in heads
        for seed in spec.seeds
    ]


def settings_of(spec: ExponentSpec, cell: ExponentCell) -> Settings:
    """Return how a cell is trained: as the protocol's harmonic arm, but for the exponent."""
    how = settings(cell.protocol, cell.model, "harmonic", epochs=spec.epochs(cell.model))
    return replace(how, exponent=cell.exponent, stack_exponents=cell.head == "harmonic")


def run_cells(
    spec: ExponentSpec, group: Sequence[ExponentCell], context: Context
) -> Iterable[tuple[ExponentCell, CellResult]]:
    """Train the runs, all fixed exponents of a protocol and model together."""
    return compact(train(group, partial(settings_of, spec), context, snapshots=2, centers=True))


UNBEATEN = {
    "two_structure": ("2", "structure", "Of the fixed exponents none gives more structure than 2"),
    "root_accuracy": ("4", "accuracy", "Of the fixed exponents none gives a higher test accuracy than sqrt(D) = 4"),
    "learned_accuracy": (LEARNED, "accuracy", "No fixed exponent gives a higher test accuracy than the learnable one"),
    "learned_structure": (LEARNED, "structure", "No fixed exponent gives more structure than the learnable one"),
}
KNOWN = (
    "The paper's rule is sqrt(D), its code's exponent for small models 2. No numbers of the appendix are known here."
)


def _claims_of(protocol: str, model: str) -> list[Claim]:
    tail = f"mean over tasks, {BODIES[model]}, {protocol} protocol, untuned"
    rule = f"Holds where every difference lies below {MARGIN} with its 95 % interval; {RULE}"
    trend = (
        "Structure falls as the exponent grows: the rank correlation of the two, taken within a seed, lies below 0 "
        "with its 95 % interval over seeds (broken: above)"
    )
    texts = {name: f"{words} by more than {MARGIN}. {rule}" for name, (_, _, words) in UNBEATEN.items()}
    return [
        Claim(f"{name}_{model}_{protocol}", f"{text} ({tail}).", KNOWN, control=True)
        for name, text in {**texts, "trend": trend}.items()
    ]


CLAIMS = tuple(
    claim for protocol in ("authors", "matched") for model in BODIES for claim in _claims_of(protocol, model)
)


def judge_unbeaten(results: Results, place: Place, arms: Sequence[str], ours: str, score: str) -> Finding:
    """Judge one arm against all fixed exponents."""
    others = [arm for arm in arms if arm not in (ours, LEARNED)]
    answer = all_below(collect(results, arm_of), place, dict.fromkeys(others, ours), score, limit=MARGIN)
    return Finding(
        answer.holds,
        f"Of the others {answer.best} is the best: its {SCORES[score]} minus that of "
        f"{'the learnable one' if ours == LEARNED else ours} is {written(answer.found[answer.best])}, mean of "
        f"{len(place.tasks)} tasks.{answer.in_doubt}",
        answer.numbers,
    )


def judge_trend(results: Results, place: Place, arms: Sequence[str]) -> Finding:
    """Judge by the rank correlation of exponent and structure, seed by seed."""
    outcomes = collect(results, arm_of)
    fixed = [arm for arm in arms if arm != LEARNED]
    scores = {arm: per_seed(outcomes, place, {arm: 1.0}, "structure") for arm in fixed}
    seeds = sorted(set.intersection(*map(set, scores.values())))
    exponents = np.array([float(arm) for arm in fixed])
    found = [rank_correlation(exponents, np.array([scores[arm][seed] for arm in fixed])) for seed in seeds]
    correlation = bootstrap_interval(found, statistic="mean")
    below = correlation.above(0)
    return Finding(
        None if below is None else not below,
        f"Rank correlation of exponent and structure, mean over {len(seeds)} seeds: {correlation}. Structure, mean of "
        f"{len(place.tasks)} tasks: "
        + ", ".join(f"exponent {arm} {np.mean(list(one.values())):.3f}" for arm, one in scores.items())
        + ".",
        {"correlation": correlation._asdict()},
    )


def _judge(claim: Claim, spec: ExponentSpec, results: Results) -> Verdict:
    name, model, protocol = claim.id.rsplit("_", 2)
    place = Place(protocol, model, spec.tasks_under(protocol))
    own = [cell for cell in cells(spec) if (cell.protocol, cell.model) == (protocol, model)]
    judge = partial(judge_trend, place=place, arms=spec.arms)
    if name in UNBEATEN:
        ours, score, _ = UNBEATEN[name]
        own = own if ours in spec.arms else []
        judge = partial(judge_unbeaten, place=place, arms=spec.arms, ours=ours, score=score)
    short = spec.too_short(FULL, place) or "Not all exponents were run." * (spec.exponents != FULL.exponents)
    return conclude(claim.id, judge, own, results, too_short=short)


def summarize(spec: ExponentSpec, results: Results) -> Summary:
    """Judge every claim, and tabulate scores and epochs by exponent, and what was learned."""
    outcomes = collect(results, arm_of)
    places = [place for whole in spec.places() for place in whole.each()]
    scores = Table(
        "Scores by exponent: mean over seeds [95 %]",
        tuple(
            {**place.columns, "score": words, **{arm: mean_of(outcomes, place, arm, score) for arm in spec.arms}}
            for place in places
            for score, words in SCORES.items()
        ),
    )
    learned = Table(
        f"The learnable exponent after training, from {START:g}",
        tuple(_learned_row(outcomes, place) for place in places if len(place.tasks) == 1),
    )
    over_two = {
        f"exponent {arm} minus 2": {arm: 1.0, "2": -1.0} for arm in spec.arms if arm != "2" and "2" in spec.arms
    }
    labels = {arm: arm for arm in spec.arms}
    epochs = epoch_table(outcomes, spec.places(), labels, "exponent")
    robust = without_one(outcomes, spec.places(), over_two)
    tables = (scores, robust, epochs, learned, *structure_tables(outcomes, spec.places(), labels))
    verdicts = tuple(_judge(claim, spec, results) for claim in CLAIMS)
    return Summary(verdicts, tuple(table for table in tables if table.rows))


def _learned_row(outcomes: Any, place: Place) -> dict[str, Any]:
    values = learned_exponents(outcomes, (place.protocol, place.model, place.tasks[0]))
    return {
        **place.columns,
        "runs": len(values),
        "median [95 %]": str(bootstrap_interval(values)) if values else None,
        "least": min(values, default=None),
        "most": max(values, default=None),
    }


FULL = ExponentSpec(seeds=anchors.SEEDS)
EXPERIMENT = Experiment(
    name="exponents",
    title="The exponent from 1 to 20, and the learnable one",
    figure="Appendix on the exponent",
    claims=CLAIMS,
    profiles={
        "smoke": ExponentSpec(
            seeds=(0, 1),
            models=("mlp",),
            tasks=("modular_addition",),
            authors_tasks=("lattice",),
            exponents=(1.0, 4.0, 20.0),
            mlp_epochs=2,
        ),
        "quick": ExponentSpec(
            seeds=anchors.SEEDS[:2],
            protocols=("matched",),
            models=("mlp",),
            tasks=("modular_addition", "permutation"),  # questions of one length: one stack
            exponents=(1.0, 2.0, 4.0, 8.0, 16.0),
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
