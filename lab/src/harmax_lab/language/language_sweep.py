"""Exponent and learning rate on a small GPT, with controls that separate the loss's shape from the logits' scale.

    harmax run language_sweep --smoke    does it work: seconds
    harmax run language_sweep            generated tokens on the CPU, under a minute: it works, but decides nothing
    harmax run language_sweep --full     the corpus of the data folder, 20M tokens per run; meant for a GPU

At a distance d the harmonic logits -(n / 2) log |x - w|^2 have the slope of (n / d^2) (x.w - |w|^2 / 2). After the last
LayerNorm d^2 is near D. So exponent 2 D begins like cross-entropy with doubled logits (arm `scaled_2`) and a bias
(`gaussian_2`, the Gaussian limit of the loss). The gain of these two over plain cross-entropy comes from the scale.

Behind that LayerNorm features start fifty times longer than the centers, which start at N(0, 0.02). All centers are
then about equally far away, and a small exponent tells them apart only when they have grown. So losses at small
exponents judge this start and the few steps of these runs too, not the exponent alone.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from harmax.analysis import Interval
from harmax.figures import Picture, headline
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.experiment import Cell, Context, Experiment, Work
from harmax_lab.kit.judges import Judge, both, listed
from harmax_lab.kit.results import Results, interval
from harmax_lab.kit.rules import Choice
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Column, Table, combinations, tabulate
from harmax_lab.language.arms import MARK, STANDARD, STYLES, compares, draw_runs, over_seeds
from harmax_lab.language.pretraining import WITHOUT_DATA, TrainingSpec, part, train_model
from harmax_lab.paper.readings import SIMILAR_LOSS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Arm(NamedTuple):
    """What an arm changes in a `PretrainSpec`, and how it is drawn: marks and dashes differ as well as colors."""

    changes: dict[str, Any]
    label: str
    color: str
    line: str
    marker: str


def _harmonic(exponent: float, *style: str, **more: bool) -> Arm:
    return Arm({"head": "harmonic", "exponent": exponent, **more}, *style)


_DOUBLED = {"logit_scale": 2.0}
ARMS = {
    STANDARD: Arm({"head": "linear"}, "cross-entropy", STYLES["standard"].color, "--", "s"),
    "harmonic_28": _harmonic(28.0, "harmonic, exponent 28", "#CC79A7", ":", "v"),
    "harmonic_56": _harmonic(56.0, "harmonic, exponent 56", "#56B4E9", "-.", "<"),
    "harmonic_768": _harmonic(768.0, "harmonic, exponent 768", STYLES["harmonic"].color, "-", "o"),
    "harmonic_1536": _harmonic(1536.0, "harmonic, exponent 1536", "#332288", "--", ">"),
    "harmonic_learnable": _harmonic(768.0, "harmonic, exponent learned", "#444444", "-", "P", learn_exponent=True),
    "scaled_2": Arm({"head": "linear", **_DOUBLED}, "cross-entropy, logits x 2", "#E69F00", "-.", "D"),
    "gaussian_2": Arm({"head": "gaussian", **_DOUBLED}, "Gaussian limit, x 2", "#009E73", ":", "^"),
}
CONTROLS = ("scaled_2", "gaussian_2")
LEARNED = "harmonic_learnable"


@dataclass(frozen=True, kw_only=True)
class SweepSpec(TrainingSpec):
    """Settings of the sweep: the first seed is run at every learning rate, the others at one of them."""

    FULL_TOKENS: ClassVar[int] = 19_660_800

    arms: tuple[str, ...] = tuple(ARMS)
    lrs: tuple[float, ...] = (5e-4, 1e-3, 3e-3, 6e-3, 1.2e-2, 2.4e-2)
    repeated_lr: float = 1e-3
    """Where the other seeds are run."""
    repeated_arms: tuple[str, ...] = (STANDARD, "harmonic_28", "harmonic_768", LEARNED, *CONTROLS)
    """Whose other seeds are run: those that claims compare."""

    def __post_init__(self) -> None:
        if self.repeated_lr not in self.lrs:
            raise ValueError(f"`repeated_lr` must be one of `lrs`, {self.lrs}, got {self.repeated_lr}; add it to them.")


@dataclass(frozen=True)
class SweepCell(Cell):
    """One arm at one learning rate from one seed."""

    arm: str
    lr: float
    seed: int


def cells(spec: SweepSpec) -> list[SweepCell]:
    """List the runs, those of one arm together, so that compiled graphs are found again."""
    return [
        SweepCell(arm, lr, seed)
        for arm in spec.arms
        for seed in spec.seeds
        for lr in (spec.lrs if seed == spec.seeds[0] else (spec.repeated_lr,))
        if seed == spec.seeds[0] or arm in spec.repeated_arms
    ]


def run_cells(spec: SweepSpec, group: Sequence[SweepCell], context: Context) -> Iterator[tuple[SweepCell, CellResult]]:
    """Train one model after the other; one that diverges is a result too, with an infinite loss."""
    for cell in group:
        output, progress = context.scratch / cell.name, part(context, 0, 1, cell.name)
        yield cell, train_model(spec, ARMS[cell.arm].changes, cell.lr, cell.seed, output, context.device, progress)


def over_rates(results: Results, arm: str) -> dict[float, float]:
    """Return the validation losses of an arm's first seed, by learning rate."""
    return results.where(arm=arm, seed=results.spec.seeds[0]).metric("val_loss").by("lr")


def losses_of(results: Results, arm: str) -> dict[int, float]:
    """Return an arm's validation losses at the repeated learning rate, by seed."""
    return results.where(arm=arm, lr=results.spec.repeated_lr).metric("val_loss").by("seed")


class Contrast(NamedTuple):
    """A weighted sum of arms' losses: over seeds at the repeated learning rate, and at the best learning rates."""

    spec: SweepSpec
    interval: Interval
    at_best: float

    def above(self, limit: float) -> bool | None:
        """Whether both lie above a limit: None where the interval spans it or the best learning rates disagree."""
        over = self.interval.above(limit)
        return over if over is not None and over == (self.at_best > limit) else None

    def __str__(self) -> str:
        found = over_seeds(self.interval, len(self.spec.seeds))
        best = f"{self.at_best:+.3f} where each arm has its best learning rate (one seed)"
        return f"{found} at {self.spec.repeated_lr:g}, {best}"


def contrast(results: Results, weights: Mapping[str, float]) -> Contrast:
    """Return a weighted sum of arms' losses.

    Seeds are paired: arms with one seed start from the same weights and read the same text in the same order. A run
    that diverged counts as if it guessed, all tokens alike.
    """
    guess = math.log(results.spec.vocab)
    losses = {arm: losses_of(results, arm) for arm in weights}
    seeds = sorted(set.intersection(*map(set, losses.values())))
    paired = [sum(weight * min(losses[arm][seed], guess) for arm, weight in weights.items()) for seed in seeds]
    at_best = sum(weight * min(*over_rates(results, arm).values(), guess) for arm, weight in weights.items())
    return Contrast(results.spec, interval(paired), at_best)


def chosen(*arms: str) -> Callable[[Results], list[Choice]]:
    """Return what the search over learning rates has chosen for some arms."""

    def choice(results: Results, arm: str) -> Choice:
        rates = over_rates(results, arm)
        best, _ = min(rates.items(), key=lambda found: found[1])
        return Choice(ARMS[arm].label, "learning rate", best, tuple(rates))

    return lambda results: [choice(results, arm) for arm in arms if arm in results.distinct("arm")]


def caught_up(results: Results) -> str:
    """Say that the centers cannot grow to the length of the features; empty if they can.

    A step of Adam moves a coordinate by about the learning rate. Features start with coordinates of size 1.
    """
    spec = results.spec
    reach = spec.repeated_lr * spec.steps
    return "" if reach >= 1 else f"In {spec.steps} steps at {spec.repeated_lr:g} the centers cannot catch up."


def _judge_within(results: Results, *, arm: str, of: str) -> Finding:
    found = contrast(results, {arm: 1, of: -1})
    worse, numbers = found.above(SIMILAR_LOSS), {"difference": found.interval._asdict(), "at_best": found.at_best}
    words = f"{ARMS[arm].label} minus {ARMS[of].label}: {found}."
    return Finding(None if worse is None else not worse, words, numbers)


def _judge_authors_exponent(results: Results) -> Finding:
    found = contrast(results, {STANDARD: 1, "harmonic_768": -1})
    numbers = {"gain": found.interval._asdict(), "at_best": found.at_best}
    return Finding(found.above(0.0), f"Cross-entropy minus exponent 768: {found}.", numbers)


def _judge_scale(results: Results) -> Finding:
    control = min(CONTROLS, key=lambda arm: np.mean(list(losses_of(results, arm).values())))
    gain = contrast(results, {STANDARD: 1, "harmonic_768": -1})
    has = contrast(results, {STANDARD: 1, control: -1}).interval
    excess = contrast(results, {STANDARD: 1, "harmonic_768": 1, control: -2})
    is_gain = gain.above(0.0)
    intervals = {"gain": gain.interval, "control_gain": has, "excess": excess.interval}
    return Finding(
        excess.above(0.0) if is_gain else None,
        f"Gain over cross-entropy at {results.spec.repeated_lr:g}: exponent 768 {gain.interval.estimate:+.3f}, "
        f"{control} {has.estimate:+.3f}. The part of the gain that it has, minus the part that it lacks: {excess}."
        + ("" if is_gain else " The gain itself is not certain, so there is nothing to explain."),
        {"control": control, **{name: interval._asdict() for name, interval in intervals.items()}},
    )


def _judge_shape(results: Results) -> Finding:
    found = {arm: contrast(results, {arm: 1, "harmonic_768": -1}) for arm in CONTROLS}
    words = listed({f"{arm} minus exponent 768:": one for arm, one in found.items()})
    numbers = {arm: one.interval._asdict() for arm, one in found.items()}
    return Finding(both(*(one.above(0.0) for one in found.values())), f"{words}.", numbers)


def _judge_learned(results: Results) -> Finding:
    found = _judge_within(results, arm=LEARNED, of="harmonic_768")
    ends = results.where(arm=LEARNED, lr=results.spec.repeated_lr).metric("exponent").present.values
    return found._replace(sentence=f"{found.sentence} It ends at {', '.join(f'{end:.4g}' for end in ends)}.")


def _claim(id: str, statement: str, judge: Judge, *arms: str, **own: Any) -> Claim:
    return compares(id, statement, judge, arms, choices=chosen(*arms), **own)


CLAIMS = (
    _claim(
        "paper_exponent",
        "In a language model sqrt(D), with D the width of the embedding, is a reasonable exponent. Judged with the "
        f"paper's 28 (here sqrt(D) is 20): the validation loss is at most {SIMILAR_LOSS:g} above that of "
        "cross-entropy, at one learning rate over seeds and where each has its best. In these runs features start "
        "fifty times longer than the centers, which handicaps small exponents. Runs in which the centers cannot catch "
        "up decide nothing.",
        partial(_judge_within, arm="harmonic_28", of=STANDARD),
        STANDARD,
        "harmonic_28",
        sentences=("2/14", "2/15"),
        enough=caught_up,
        paper="3.146 (harmonic, exponent 28) against 3.159. The authors' code has exponent 1536.",
    ),
    _claim(
        "authors_exponent",
        "With the exponent of the authors' code, 2 D (768 here), harmonic loss trains better than cross-entropy.",
        _judge_authors_exponent,
        STANDARD,
        "harmonic_768",
    ),
    _claim(
        "scale_explains",
        "The scale of the logits explains most of that gain: the better of two controls, cross-entropy with doubled "
        "logits and the Gaussian limit, has more than half of it.",
        _judge_scale,
        STANDARD,
        "harmonic_768",
        *CONTROLS,
    ),
    _claim(
        "shape_helps",
        "The scale does not explain all of it: exponent 2 D ends lower than both controls.",
        _judge_shape,
        "harmonic_768",
        *CONTROLS,
    ),
    _claim(
        "learned_exponent",
        f"An exponent that is learned, from 768 on, trains as well as one that stays at 768, within {SIMILAR_LOSS:g}.",
        _judge_learned,
        "harmonic_768",
        LEARNED,
    ),
)


def tables(results: Results) -> list[Table]:
    """Tabulate the losses by learning rate, over seeds, and the end of each arm."""
    spec = results.spec
    rows = combinations(arm=spec.arms)
    for at in rows:
        at.rates, by_seed = over_rates(results, at.arm), losses_of(results, at.arm)
        at.losses = list(by_seed.values())
        gains = [loss - by_seed.get(seed, np.inf) for seed, loss in losses_of(results, STANDARD).items()]
        at.gains = [gain for gain in gains if np.isfinite(gain)]
        at.end = results.get(SweepCell(at.arm, spec.repeated_lr, spec.seeds[0]), CellResult()).metrics

    def loss_at(lr: float) -> Column:
        return lambda at: at.rates.get(lr)

    by_rate: dict[str, Column] = {
        "arm": lambda at: ARMS[at.arm].label,
        **{f"lr {lr:g}": loss_at(lr) for lr in spec.lrs},
        "best lr": lambda at: min(at.rates, key=at.rates.get, default=None),
        "best": lambda at: min(at.rates.values(), default=None),
    }
    ends: dict[str, Column] = {
        "arm": lambda at: ARMS[at.arm].label,
        "seeds": lambda at: len(at.losses),
        "validation loss": lambda at: float(np.mean(at.losses)) if at.losses else None,
        "lowest and highest": lambda at: f"{min(at.losses):.3f} to {max(at.losses):.3f}" if at.losses else None,
        "gain over cross-entropy": lambda at: float(np.mean(at.gains)) if at.gains else None,
        "training loss": lambda at: at.end.get("train_loss"),
        "exponent at the end": lambda at: at.end.get("exponent"),
    }
    title = f"Validation loss by learning rate, {spec.tokens / 1e6:.3g}M tokens, seed {spec.seeds[0]}"
    return [tabulate(title, rows, by_rate), tabulate(f"Each arm at learning rate {spec.repeated_lr:g}", rows, ends)]


PANELS = {
    "The scale of the logits": ("standard", "scaled_2", "gaussian_2", "harmonic_768"),
    "The exponent": ("standard", "harmonic_28", "harmonic_56", "harmonic_768", "harmonic_1536", "harmonic_learnable"),
}
WIDE, LEAST_SPAN = 6.0, 0.5  # an axis holds the lower half of the losses this many times, and this many nats


def figures(results: Results) -> dict[str, Picture]:
    """Draw the losses against the learning rate, and over the training."""
    spec = results.spec
    if not results:
        return {}
    tokens = "generated tokens" if spec.embedded else "the corpus"
    body = f"{spec.n_layer} layers, {spec.n_embd} wide, {spec.tokens / 1e6:.3g}M tokens of {tokens}"
    body += f", {len(spec.seeds)} seed{'s' * (len(spec.seeds) > 1)} at learning rate {spec.repeated_lr:g}"
    rates = (
        f"Each mark is a run; lines join those of the first seed. Lower is better. Left: exponent 2 D does no better "
        "than cross-entropy with doubled logits if their lines agree. Right: exponents; small ones start with features "
        "fifty times longer than the centers. A line that falls or rises up to its end has its best rate outside the "
        f"grid. Diverged runs are left out. {body}."
    )
    curves = (
        "Medians over seeds. Thin: training batches, smoothed. Marks: validation. The first steps, and arms that learn "
        f"little, lie above the edge. {body}."
    )
    drawn = {"sweep_lr": Picture(_draw_rates(results), rates)}
    if repeated := results.where(lr=spec.repeated_lr):
        drawn["sweep_curves"] = Picture(_draw_curves(repeated), curves)
    return drawn


def _panels(headed: str, arms: Sequence[str], x: str, y: str) -> tuple["Figure", list[tuple["Axes", tuple[str, ...]]]]:
    own = {title: tuple(arm for arm in members if arm in arms) for title, members in PANELS.items()}
    # With cross-entropy alone there is nothing to compare.
    own = {title: members for title, members in own.items() if len(members) > 1} or {"": tuple(arms)}
    titles = {title: title for title in own}
    figure, panels = drawing.facets({"": ""}, titles, size=(5.2 * len(own), 4.6), xlabel=x, ylabel=y)
    headline(figure, headed)
    for (_, title), axes in panels.items():
        styles = [ARMS[arm] for arm in own[title]]
        handles = [drawing.mark_handle(style.label, style.marker, style.color) for style in styles]
        for handle, style in zip(handles, styles, strict=True):
            handle.set(linestyle=style.line)
        # Below the axes: no corner is free of lines whatever the losses are.
        axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=8.5)
    return figure, [(axes, own[title]) for (_, title), axes in panels.items()]


def _draw_rates(results: Results) -> "Figure":
    title = "Which learning rate each head wants: validation loss of a small GPT"
    figure, panels = _panels(title, results.spec.arms, "learning rate", "validation loss")
    finite = results.having(lambda result: bool(np.isfinite(result.metrics["val_loss"])))
    for axes, members in panels:
        own = finite.where(arm=members)
        rates, first = sorted(own.distinct("lr")), min(own.distinct("seed"), default=0)
        for place, arm in enumerate(members):
            style, runs = ARMS[arm], own.where(arm=arm)
            line = sorted(runs.where(seed=first).metric("val_loss").by("lr").items())
            # Side by side, as several seeds at one rate would hide one another.
            nudge = 1 + 0.035 * (place - (len(members) - 1) / 2)
            look: dict[str, Any] = {"color": style.color, "linestyle": style.line, "linewidth": 1.4}
            axes.plot([lr * nudge for lr, _ in line], [loss for _, loss in line], **look)
            marks = [cell.lr * nudge for cell in runs]
            axes.plot(marks, runs.metric("val_loss").values, style.marker, color=style.color, **MARK)
        axes.set_xscale("log")
        axes.set_xticks(rates, labels=[f"{rate:g}" for rate in rates])
        axes.set_xticks([], minor=True)
        if beyond := _cut(axes, own.metric("val_loss").values):
            axes.set_title(f"{len(beyond)} beyond the edge, up to {max(beyond):.3g}", loc="right", fontsize=8.5)
    return figure


def _draw_curves(results: Results) -> "Figure":
    title = f"Loss of a small GPT over the training, learning rate {results.spec.repeated_lr:g}"
    figure, panels = _panels(title, results.distinct("arm"), "step", "loss")
    for axes, members in panels:
        own = results.where(arm=members)
        for arm in members:
            if whole := [run for run in own.where(arm=arm).values() if run.metrics["diverged_at"] is None]:
                draw_runs(axes, whole, ARMS[arm].color, ARMS[arm].line, marker=ARMS[arm].marker)
        # Of the training batches only the later half: the first ones fall from log V, whatever the arm.
        late = [loss for curve in own.curve("loss") for loss in curve[len(curve) // 2 :]]
        _cut(axes, [*late, *(loss for curve in own.curve("val_loss") for loss in curve[1:])])
    return figure


def _cut(axes: "Axes", losses: Sequence[float]) -> list[float]:
    """Keep an axis to where most losses are, and return those above it: one bad arm would flatten all others."""
    finite = [loss for loss in losses if np.isfinite(loss)]
    if len(finite) < 4:
        return []
    low, middle = np.quantile(finite, [0, 0.5])
    top = low + max(WIDE * (middle - low), LEAST_SPAN)
    if max(finite) > top:
        axes.set_ylim(low - 0.08 * (top - low), top)
    return [loss for loss in finite if loss > top]


MODELS: dict[str, dict[str, Any]] = {
    "smoke": {"n_layer": 1, "n_head": 2, "n_embd": 16, "context": 16, "vocab": 50, "sequences": 8, "micro_batch": 8},
    "quick": {"n_layer": 2, "n_head": 2, "n_embd": 64, "context": 32, "vocab": 128, "sequences": 16, "micro_batch": 16},
    "full": {"n_layer": 6, "n_head": 6, "n_embd": 384, "context": 512, "sequences": 128, "micro_batch": 64},
}
STEPS: dict[str, dict[str, Any]] = {
    "smoke": {"steps": 6, "warmup": 2, "evaluate_every": 3, "evaluation_sequences": 8, "checkpoint_every": 2},
    "quick": {"steps": 40, "warmup": 4, "evaluate_every": 10, "evaluation_sequences": 32, "checkpoint_every": 40},
    "full": {"steps": 300, "warmup": 30, "evaluate_every": 50, "evaluation_sequences": 512, "checkpoint_every": 300},
}
RATES: dict[str, Any] = {"lrs": (3e-3, 1e-2), "repeated_lr": 3e-3}
OWN: dict[str, dict[str, Any]] = {
    "smoke": {**WITHOUT_DATA, **RATES, "arms": (STANDARD, "harmonic_28"), "repeated_arms": (STANDARD,), "log_every": 1},
    "quick": {**WITHOUT_DATA, **RATES, "log_every": 2},
    "full": {"seeds": (0, 1, 2)},
}

EXPERIMENT = Experiment(
    name="language_sweep",
    title="Exponent, scale and learning rate of a small GPT",
    figure="Sec. 2 and 5, exponent",
    claims=CLAIMS,
    profiles={name: SweepSpec(**MODELS[name], **STEPS[name], **OWN[name]) for name in MODELS},
    work=Work(cells, run_cells, accelerated=True, seeds_apart=True),
    tables=tables,
    figures=figures,
)
