"""What the exponent does, from 1 to 20 with sqrt(D) = 4 and D = 16 among them, and the learnable one (appendix).

    harmax run exponents            MLPs, two tasks, 5 exponents, 2 seeds, cut short: seconds on two CPU cores
    harmax run exponents --full     five tasks, both models, 20 seeds; meant for a GPU

`exponent` is the power of the distance. The paper's rule is the square root of the width, which is 4 here. The text
says 1 for its small models; the authors' code takes the power of the *squared* distance, which makes it 2. All fixed
exponents of a model are trained as one ensemble. The learnable one starts at 4 and is trained with the weights, weight
decay on its logarithm included. Everything else, the learning rate too, is that of the protocol's harmonic arm: this
study compares exponents at one setting, not each at its best.
"""

# E exponents

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.analysis import bootstrap_interval
from harmax.analysis.arrays import rank_correlation
from harmax.figures import Picture
from harmax_lab.algorithmic import anchors
from harmax_lab.algorithmic.protocols import Settings, settings
from harmax_lab.algorithmic.runs import BODIES, TITLES
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.experiment import Experiment
from harmax_lab.kit.results import Results
from harmax_lab.kit.tables import Table
from harmax_lab.studies import compare_arms as arms
from harmax_lab.studies.compare_arms import MARGIN, PAPERS_TASKS, QUICK, SMOKE, Place, Rule, StudySpec, minus
from harmax_lab.studies.score_runs import SCORES
from harmax_lab.studies.tables_and_figures import alone, run_tables, score_table, without_one
from harmax_lab.tasks import PROTOCOLS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXPONENTS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 20.0)
START = 4.0
"""Of the learnable exponent: sqrt(D), as the head's default is."""
LEARNED = "learned"


@dataclass(frozen=True)
class ExponentCell(RunCell):
    """One model trained with one exponent; where the exponent is learned, its start."""

    exponent: float


@dataclass(frozen=True, kw_only=True)
class ExponentSpec(StudySpec):
    """Settings of the sweep."""

    exponents: tuple[float, ...] = EXPONENTS
    authors_tasks: tuple[str, ...] = PAPERS_TASKS
    transformer_epochs: int = 4000
    """Fewer than the authors' 7000, so that the study takes minutes on a GPU."""

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of all arms."""
        return (*(f"{exponent:g}" for exponent in self.exponents), LEARNED)

    def key(self, cell: Any) -> tuple[str, str, str, str]:
        """Name an arm by its exponent, or by the word that it is learned."""
        arm = LEARNED if cell.head == "learnable" else f"{cell.exponent:g}"
        return cell.protocol, cell.model, cell.task, arm


FULL = ExponentSpec(seeds=anchors.SEEDS)


def cells(spec: ExponentSpec) -> list[ExponentCell]:
    """List every protocol, model, task, exponent and seed."""
    heads = [*(("harmonic", exponent) for exponent in spec.exponents), ("learnable", START)]
    return [
        ExponentCell(place.protocol, task, place.model, head, spec.train_fraction, seed, exponent)
        for place in spec.places()
        for task, (head, exponent), seed in product(place.tasks, heads, spec.seeds)
    ]


def settings_of(spec: ExponentSpec, cell: ExponentCell) -> Settings:
    """Return how a cell is trained: as the protocol's harmonic arm, but for the exponent."""
    how = settings(cell.protocol, cell.model, "harmonic", epochs=spec.epochs(cell.model))
    return replace(how, exponent=cell.exponent, stack_exponents=cell.head == "harmonic")


def _judge_trend(place: Place) -> Finding:
    fixed = [arm for arm in place.arms if arm != LEARNED]
    scores = {arm: place.per_seed({arm: 1.0}, "structure") for arm in fixed}
    seeds = sorted(set.intersection(*map(set, scores.values())))
    exponents = np.array([float(arm) for arm in fixed])
    found = [rank_correlation(exponents, np.array([scores[arm][seed] for arm in fixed])) for seed in seeds]
    correlation = bootstrap_interval(found, statistic="mean")
    above = correlation.above(0)
    means = ", ".join(f"exponent {arm} {np.mean(list(one.values())):.3f}" for arm, one in scores.items())
    return Finding(
        None if above is None else not above,
        f"Rank correlation of exponent and structure, mean over {len(seeds)} seeds: {correlation}. Structure, mean of "
        f"{len(place.tasks)} tasks: {means}.",
        {"correlation": correlation._asdict()},
    )


def _claims(protocol: str, model: str) -> list[Claim]:
    claim = partial(
        arms.study_claim,
        suffix=f"{model}_{protocol}",
        where=f"mean over tasks, {BODIES[model]}, {protocol} protocol, untuned",
        full=FULL,
        protocol=protocol,
        model=model,
        arms=FULL.arms,
        also=lambda spec: "Not all exponents were run." * (spec.exponents != FULL.exponents),
        paper="The paper's rule is sqrt(D); its code has 2 for small models. No numbers of the appendix are known.",
    )

    def unbeaten(name: str, ours: str, score: str) -> Claim:
        more = "more structure" if score == "structure" else "a higher test accuracy"
        than = {"4": "sqrt(D) = 4", LEARNED: "the learnable one"}.get(ours, ours)
        others = {arm: ours for arm in FULL.arms if arm not in (ours, LEARNED)}
        rule = arms.none_ahead(others, {arm: f"exponent {arm}" for arm in FULL.arms}, score, limit=MARGIN)
        said = f"No {'other ' * (ours != LEARNED)}fixed exponent gives {more} than {than} by more than {MARGIN}"
        return claim(name, said, rule, must=[ours])

    falls = (
        "Structure falls as the exponent grows: the rank correlation of the two, taken within a seed, lies below 0 "
        "with its 95 % interval over seeds"
    )
    return [
        unbeaten("two_structure", "2", "structure"),
        unbeaten("root_accuracy", "4", "accuracy"),
        unbeaten("learned_accuracy", LEARNED, "accuracy"),
        unbeaten("learned_structure", LEARNED, "structure"),
        claim("trend", falls, Rule("Broken where it lies above", _judge_trend), must=()),
    ]


CLAIMS = tuple(claim for at in product(PROTOCOLS, BODIES) for claim in _claims(*at))


def tables(results: Results) -> list[Table]:
    """Tabulate scores and epochs by exponent, and where the learnable one ends."""
    spec, places = results.spec, results.spec.places(results)
    labels = {arm: arm for arm in spec.arms}
    over_two = {f"exponent {arm} minus 2": minus(arm, "2") for arm in spec.arms if arm != "2" and "2" in spec.arms}
    learned = []
    for place in alone(places):
        values = learned_exponents(place)
        middle = str(bootstrap_interval(values)) if values else None
        ends = {"least": min(values, default=None), "most": max(values, default=None)}
        learned.append({**place.columns, "runs": len(values), "median [95 %]": middle, **ends})
    epochs, *structures = run_tables(places, labels, "exponent")
    return [
        score_table("Scores by exponent: mean over seeds [95 %]", places, labels),
        without_one(places, over_two),
        epochs,
        Table(f"The learnable exponent after training, from {START:g}", tuple(learned)),
        *structures,
    ]


def learned_exponents(place: Place) -> list[float]:
    """Return where the learnable exponent ended on a place's one task, in runs that did not diverge."""
    return [metrics["exponent"] for metrics in place.metrics(LEARNED) if metrics["diverged_at"] is None]


COLORS = {"mlp": "#0072B2", "transformer": "#009E73"}
TICKS, EPOCH_TICKS = (1, 2, 4, 8, 16), (10, 100, 1000)
LEARNED_AT = {"mlp": 34.0, "transformer": 48.0}
"""Where the learnable exponent's marks stand: beside the axis, since it may end anywhere, at 5 or at a million."""
ROWS = {**SCORES, "variance": "variance in\ntwo components", "test_epoch": "epoch"}


def figures(results: Results) -> dict[str, Picture]:
    """Draw one figure per protocol."""
    return {
        f"exponents_{protocol}": Picture(
            _draw(results.spec, [one for one in results.spec.places(results) if one.protocol == protocol]),
            "Scores, and the epoch from which runs generalize, against the exponent of the distance; "
            f"{protocol} protocol, {len(results.spec.seeds)} seeds. Lines: means; for epochs medians, left out where "
            "most runs never generalize. Bands: 95 % intervals. Open marks with bars, right: the learnable exponent; "
            "below a column stands the median of where it ended. Dotted: the square root of the width.",
        )
        for protocol in results.distinct("protocol")
    }


def _draw(spec: ExponentSpec, places: Sequence[Place]) -> "Figure":
    by_task = {one.tasks[0]: [whole.alone()[i] for whole in places] for i, one in enumerate(places[0].alone())}
    lines = {one.model: MODEL_STYLES[one.model, "linear"].line for one in places}
    handles = [drawing.line_handle(BODIES[model], COLORS[model], line) for model, line in lines.items()]
    handles.append(drawing.mark_handle("learnable", "D", "#444444", face="white", size=5))
    figure, panels = drawing.facets(
        ROWS,
        {task: TITLES[task] for task in by_task},
        size=(max(2.1 * len(by_task) + 0.8, 5.5), 1.75 * len(ROWS) + 0.9),
        font=9,
        handles=handles,
        sharex=True,
        sharey="row",
    )
    for (score, task), axes in panels.items():
        axes.axvline(4, color="#999999", linewidth=0.8, linestyle=":")
        for place in by_task[task]:
            _draw_model(axes, place, score)
        axes.set(xscale="log")
        axes.set_xticks(TICKS, [str(tick) for tick in TICKS])
        axes.axvspan(26, 62, color="#f4f4f4", linewidth=0, zorder=0)
        axes.set_xlim(0.85, 62)
        if score == "test_epoch":
            axes.set(yscale="log", ylim=(3, 1.5 * max(20, *map(spec.epochs, spec.models))))
            axes.set_yticks(EPOCH_TICKS[:-1] if axes.get_ylim()[1] < EPOCH_TICKS[-1] else EPOCH_TICKS)
            axes.yaxis.set_major_formatter("{x:.0f}")
            ends = {BODIES[one.model]: np.median(found) for one in by_task[task] if (found := learned_exponents(one))}
            words = ", ".join(f"{name} {end:,.0f}" if end >= 100 else f"{name} {end:.2g}" for name, end in ends.items())
            axes.set_xlabel(f"exponent\n(learned: {words})" if words else "exponent", fontsize=7.5)
        else:
            axes.set(ylim=(min(-0.04, axes.get_ylim()[0]), 1.04))
        axes.minorticks_off()
    return figure


def _draw_model(axes: "Axes", place: Place, score: str) -> None:
    color, line = COLORS[place.model], MODEL_STYLES[place.model, "linear"].line
    statistic = "median" if score == "test_epoch" else "mean"
    found = {
        arm: bootstrap_interval([metrics[score] for metrics in runs], statistic=statistic)
        for arm in place.arms
        if (runs := place.metrics(arm))
    }
    learned = found.pop(LEARNED, None)
    if found:
        fixed = sorted(found, key=float)
        x_E = np.array(fixed, dtype=float)
        middle, low, high = np.array([found[arm] for arm in fixed]).T
        seen = np.where(np.isfinite(middle), middle, np.nan)
        axes.plot(x_E, seen, color=color, linestyle=line, marker="o", markersize=3, linewidth=1.3)
        # Where an interval reaches infinity the band leaves the panel at the top.
        top = np.where(np.isfinite(high), high, 10 * seen)
        axes.fill_between(x_E, low, top, where=np.isfinite(middle), color=color, alpha=0.15, linewidth=0)
    if learned and np.isfinite(learned.estimate):
        middle, low, high = learned
        high = min(high, 10 * middle) if score == "test_epoch" else high
        bars = [[middle - low], [high - middle]]
        style: dict[str, Any] = {"color": color, "marker": "D", "markersize": 4.5, "markerfacecolor": "white"}
        axes.errorbar([LEARNED_AT[place.model]], [middle], yerr=bars, elinewidth=1.2, zorder=4, **style)


EXPERIMENT = Experiment(
    name="exponents",
    title="The exponent from 1 to 20, and the learnable one",
    figure="Appendix on the exponent",
    claims=CLAIMS,
    profiles={
        "smoke": replace(FULL, **SMOKE, authors_tasks=("lattice",), exponents=(1.0, 4.0, 20.0)),
        "quick": replace(
            FULL, **{**QUICK, "seeds": anchors.SEEDS[:2]}, protocols=("matched",), exponents=(1.0, 2.0, 4.0, 8.0, 16.0)
        ),
        "full": FULL,
    },
    work=arms.work(cells, settings_of, pieces=lambda cell: (cell.protocol, cell.model, cell.head)),
    tables=tables,
    figures=figures,
)
