"""Exponent and learning rate on a small GPT, with the controls that tell the loss's shape from the logits' scale.

    harmax run language_sweep --smoke    does it work: seconds
    harmax run language_sweep            generated tokens on the CPU, under a minute: it works, but decides nothing
    harmax run language_sweep --full     the corpus of the data folder, 20M tokens a run; meant for a GPU

At a distance d the harmonic logits -(n / 2) log |x - w|^2 have the slope of (n / d^2) (x.w - |w|^2 / 2). After the last
LayerNorm d^2 is near D, so that exponent 2 D begins like cross-entropy with logits doubled (arm `scaled_2`) and a bias
besides (`gaussian_2`, the Gaussian limit of the loss). What they gain over plain cross-entropy is the scale's doing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from harmax.analysis import Interval, mean_interval
from harmax.figures import Picture
from harmax_lab.kit.claims import Claim, Finding, Verdict
from harmax_lab.kit.experiment import Cell, Context, Experiment, Summary, conclude
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table
from harmax_lab.language import sweep_figures
from harmax_lab.language.pretraining import read_result, train_model
from harmax_lab.language.spec import STANDARD, TrainingSpec

ARMS: dict[str, dict[str, Any]] = {
    STANDARD: {"head": "linear"},
    "harmonic_28": {"head": "harmonic", "exponent": 28.0},
    "harmonic_56": {"head": "harmonic", "exponent": 56.0},
    "harmonic_768": {"head": "harmonic", "exponent": 768.0},
    "harmonic_1536": {"head": "harmonic", "exponent": 1536.0},
    "harmonic_learnable": {"head": "harmonic", "exponent": 768.0, "learn_exponent": True},
    "scaled_2": {"head": "linear", "logit_scale": 2.0},
    "gaussian_2": {"head": "gaussian", "logit_scale": 2.0},
}
"""What each arm changes in a `PretrainSpec`."""

CONTROLS = ("scaled_2", "gaussian_2")
AS_WELL = 0.02  # nats: about how far two seeds of one arm lie apart
LEAST_SEEDS = 3
LEAST_TOKENS = 10_000_000


@dataclass(frozen=True, kw_only=True)
class SweepSpec(TrainingSpec):
    """Settings of the sweep: the first seed is run at every learning rate, the others at one of them."""

    arms: tuple[str, ...] = tuple(ARMS)
    lrs: tuple[float, ...] = (5e-4, 1e-3, 3e-3, 6e-3)
    repeated_lr: float = 1e-3
    """Where the other seeds are run."""
    repeated_arms: tuple[str, ...] = (STANDARD, "harmonic_28", "harmonic_768", *CONTROLS)
    """Whose other seeds are run: those that claims compare."""


@dataclass(frozen=True)
class SweepCell(Cell):
    """One arm at one learning rate from one seed."""

    arm: str
    lr: float
    seed: int


Results = Mapping[SweepCell, CellResult]


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
        output = context.scratch / cell.name
        try:
            yield (
                cell,
                train_model(
                    spec, ARMS[cell.arm], lr=cell.lr, seed=cell.seed, output=output, context=context, label=cell.name
                ),
            )
        except FloatingPointError:
            found = read_result(output)
            reached = int(found.curves["step"][-1]) if len(found.curves["step"]) else 0
            lost = {"val_loss": np.inf, "train_loss": np.inf, "gap": np.nan, "exponent": None, "parameters": None}
            seen = {"tokens": spec.tokens, "times_seen": None, "embedded": spec.embedded, "lr": cell.lr}
            yield cell, CellResult(found.curves, {}, {**found.metrics, **lost, **seen, "diverged_at": reached + 1})


def val_loss(results: Results, arm: str, lr: float, seed: int) -> float | None:
    """Return a run's last validation loss, None where it is not finished."""
    result = results.get(SweepCell(arm, lr, seed))
    return None if result is None else float(result.metrics["val_loss"])


class Best(NamedTuple):
    """The learning rate at which an arm's first seed ends lowest, and that loss."""

    lr: float
    val_loss: float


def best(spec: SweepSpec, results: Results, arm: str) -> Best | None:
    """Return the best of the learning rates that are finished."""
    found = {lr: val_loss(results, arm, lr, spec.seeds[0]) for lr in spec.lrs}
    finished = [Best(lr, loss) for lr, loss in found.items() if loss is not None]
    return min(finished, key=lambda one: one.val_loss, default=None)


def over_seeds(spec: SweepSpec, results: Results, arm: str) -> dict[int, float]:
    """Return an arm's validation losses at the repeated learning rate, by seed."""
    found = {seed: val_loss(results, arm, spec.repeated_lr, seed) for seed in spec.seeds}
    return {seed: loss for seed, loss in found.items() if loss is not None}


def contrast(spec: SweepSpec, results: Results, weights: Mapping[str, float]) -> tuple[Interval, float]:
    """Return a weighted sum of arms' losses: its mean over seeds at the repeated learning rate, and at the best ones.

    The interval is Student's. Seeds are paired: arms with one seed start from the same weights and read the same text
    in the same order. A run that diverged counts as if it guessed, all tokens alike.
    """
    guess = math.log(spec.vocab)
    losses = {arm: over_seeds(spec, results, arm) for arm in weights}
    seeds = set.intersection(*(set(found) for found in losses.values()))
    paired = [sum(weight * min(losses[arm][seed], guess) for arm, weight in weights.items()) for seed in sorted(seeds)]
    tops = {arm: best(spec, results, arm) for arm in weights}
    at_best = sum(
        weight * min(top.val_loss, guess) for arm, weight in weights.items() if (top := tops[arm]) is not None
    )
    return mean_interval(paired), at_best


CLAIMS = (
    Claim(
        "paper_exponent",
        "With exponent 28, the paper's sqrt(D) for GPT-2 small, harmonic loss trains as well as cross-entropy: its "
        f"validation loss is at most {AS_WELL} higher.",
        "Sec. on GPT-2: exponent sqrt(768) = 28, validation loss 3.146 against 3.159 for cross-entropy at 10k steps of "
        "OpenWebText; the authors' code has exponent 1536.",
    ),
    Claim(
        "authors_exponent",
        "With the exponent of the authors' code, 2 D (768 at this width), harmonic loss trains better than "
        "cross-entropy.",
        "3.146 against 3.159, on other text, with a larger model and budget.",
    ),
    Claim(
        "scale_explains",
        "The scale of the logits explains most of that gain: cross-entropy with doubled logits, or their Gaussian "
        "limit, whichever is better, has more than half of it.",
        "Not reported.",
        control=True,
    ),
    Claim(
        "shape_helps",
        "What the scale leaves over is real: exponent 2 D ends lower than both controls.",
        "Not reported.",
        control=True,
    ),
    Claim(
        "learned_exponent",
        f"An exponent that is learned from 768 on trains as well as one that stays there, within {AS_WELL}.",
        "Not reported.",
        control=True,
    ),
)


def _words(spec: SweepSpec, interval: Interval, at_best: float) -> str:
    count = len(spec.seeds)
    span = f" [{interval.low:+.3f}, {interval.high:+.3f}] over {count} seeds" if count > 1 else " with one seed"
    return (
        f"{interval.estimate:+.3f}{span} at {spec.repeated_lr:g}, {at_best:+.3f} where each arm has its best learning "
        "rate (one seed)"
    )


def _agreed(interval: Interval, at_best: float, limit: float) -> bool | None:
    """Whether both lie above a limit: None where the interval spans it or the best learning rates disagree."""
    over = interval.above(limit)
    return over if over is not None and over == (at_best > limit) else None


def judge_paper_exponent(spec: SweepSpec, results: Results) -> Finding:
    """Judge by the difference to cross-entropy."""
    interval, at_best = contrast(spec, results, {"harmonic_28": 1, STANDARD: -1})
    worse = _agreed(interval, at_best, AS_WELL)
    return Finding(
        None if worse is None else not worse,
        f"Exponent 28 minus cross-entropy: {_words(spec, interval, at_best)}.",
        {"difference": interval._asdict(), "at_best": at_best},
    )


def judge_authors_exponent(spec: SweepSpec, results: Results) -> Finding:
    """Judge by the difference to cross-entropy."""
    interval, at_best = contrast(spec, results, {STANDARD: 1, "harmonic_768": -1})
    return Finding(
        _agreed(interval, at_best, 0.0),
        f"Cross-entropy minus exponent 768: {_words(spec, interval, at_best)}.",
        {"gain": interval._asdict(), "at_best": at_best},
    )


def better_control(spec: SweepSpec, results: Results) -> str:
    """Return the control with the lower mean over seeds."""
    means = {arm: np.mean(list(over_seeds(spec, results, arm).values())) for arm in CONTROLS}
    return min(means, key=lambda arm: means[arm])


def judge_scale(spec: SweepSpec, results: Results) -> Finding:
    """Judge the better control's gain against what it leaves; without a gain there is nothing to explain."""
    gain, gain_at_best = contrast(spec, results, {STANDARD: 1, "harmonic_768": -1})
    control = better_control(spec, results)
    has, _ = contrast(spec, results, {STANDARD: 1, control: -1})
    interval, at_best = contrast(spec, results, {STANDARD: 1, "harmonic_768": 1, control: -2})
    is_gain = _agreed(gain, gain_at_best, 0.0)
    return Finding(
        _agreed(interval, at_best, 0.0) if is_gain else None,
        f"Gain over cross-entropy at {spec.repeated_lr:g}: exponent 768 {gain.estimate:+.3f}, {control} "
        f"{has.estimate:+.3f}. What it has of the gain minus what it leaves: {_words(spec, interval, at_best)}."
        + ("" if is_gain else " The gain itself is not beyond doubt, so there is nothing to explain."),
        {"gain": gain._asdict(), "control": control, "control_gain": has._asdict(), "excess": interval._asdict()},
    )


def judge_shape(spec: SweepSpec, results: Results) -> Finding:
    """Judge by the smaller of the two advantages."""
    found = {arm: contrast(spec, results, {arm: 1, "harmonic_768": -1}) for arm in CONTROLS}
    outcomes = [_agreed(*one, 0.0) for one in found.values()]
    return Finding(
        False if False in outcomes else True if all(outcomes) else None,
        "; ".join(f"{arm} minus exponent 768: {_words(spec, *one)}" for arm, one in found.items()) + ".",
        {arm: interval._asdict() for arm, (interval, _) in found.items()},
    )


def judge_learned(spec: SweepSpec, results: Results) -> Finding:
    """Judge at the best learning rates of one seed, where a difference must be twice as large to count."""
    learned, fixed = (best(spec, results, arm) for arm in ("harmonic_learnable", "harmonic_768"))
    assert learned is not None
    assert fixed is not None
    difference = learned.val_loss - fixed.val_loss
    end = results[SweepCell("harmonic_learnable", learned.lr, spec.seeds[0])].metrics["exponent"]
    words = "nothing: it diverged" if end is None else f"{end:.4g}"
    return Finding(
        True if difference < 0 else False if difference > 2 * AS_WELL else None,
        f"Learned minus fixed, one seed, best learning rates ({learned.lr:g} and {fixed.lr:g}): {difference:+.3f}; the "
        f"exponent ends at {words}.",
        {"difference": difference, "exponent": end},
    )


class _Basis(NamedTuple):
    arms: tuple[str, ...]
    judge: Any
    least_seeds: int = LEAST_SEEDS


JUDGES = {
    "paper_exponent": _Basis((STANDARD, "harmonic_28"), judge_paper_exponent),
    "authors_exponent": _Basis((STANDARD, "harmonic_768"), judge_authors_exponent),
    "scale_explains": _Basis((STANDARD, "harmonic_768", *CONTROLS), judge_scale),
    "shape_helps": _Basis(("harmonic_768", *CONTROLS), judge_shape),
    "learned_exponent": _Basis(("harmonic_768", "harmonic_learnable"), judge_learned, least_seeds=1),
}


def too_short(spec: SweepSpec, least_seeds: int = LEAST_SEEDS) -> str:
    """Say why a spec cannot decide anything; empty where it can."""
    if spec.embedded:
        return "Generated tokens say nothing about text."
    if spec.tokens < LEAST_TOKENS:
        return f"Only {spec.tokens / 1e6:.1f}M of at least {LEAST_TOKENS / 1e6:.0f}M tokens were trained on."
    if len(spec.seeds) < least_seeds:
        return f"{len(spec.seeds)} of at least {least_seeds} seeds: one seed's difference may be chance."
    return ""


def _verdict(claim: str, spec: SweepSpec, results: Results) -> Verdict:
    basis = JUDGES[claim]
    if not set(basis.arms) <= set(spec.arms) or spec.repeated_lr not in spec.lrs:
        wanted: list[SweepCell] = []
    else:
        wanted = [cell for cell in cells(spec) if cell.arm in basis.arms]
    short = too_short(spec, basis.least_seeds)
    return conclude(claim, lambda found: basis.judge(spec, found), wanted, results, too_short=short)


def summarize(spec: SweepSpec, results: Results) -> Summary:
    """Judge every claim, and tabulate the losses by learning rate, over seeds, and what each arm ends as."""
    by_lr = Table(
        f"Validation loss by learning rate, {spec.tokens / 1e6:.3g}M tokens, seed {spec.seeds[0]}",
        tuple(_lr_row(spec, results, arm) for arm in spec.arms),
    )
    ends = Table(
        f"Each arm at learning rate {spec.repeated_lr:g}",
        tuple(_end_row(spec, results, arm) for arm in spec.arms),
    )
    return Summary(tuple(_verdict(claim.id, spec, results) for claim in CLAIMS), (by_lr, ends))


def _lr_row(spec: SweepSpec, results: Results, arm: str) -> dict[str, Any]:
    top = best(spec, results, arm)
    losses = {f"lr {lr:g}": val_loss(results, arm, lr, spec.seeds[0]) for lr in spec.lrs}
    found = {"best lr": top.lr, "best": top.val_loss} if top else {"best lr": None, "best": None}
    return {"arm": sweep_figures.label(arm), **losses, **found}


def _end_row(spec: SweepSpec, results: Results, arm: str) -> dict[str, Any]:
    losses = over_seeds(spec, results, arm)
    first = results.get(SweepCell(arm, spec.repeated_lr, spec.seeds[0]))
    metrics = first.metrics if first else {}
    pairs = {seed: loss for seed, loss in over_seeds(spec, results, STANDARD).items() if seed in losses}
    gain = [loss - losses[seed] for seed, loss in pairs.items() if np.isfinite(loss - losses[seed])]
    return {
        "arm": sweep_figures.label(arm),
        "seeds": len(losses),
        "validation loss": float(np.mean(list(losses.values()))) if losses else None,
        "lowest and highest": f"{min(losses.values()):.3f} to {max(losses.values()):.3f}" if losses else None,
        "gain over cross-entropy": float(np.mean(gain)) if gain else None,
        "training loss": metrics.get("train_loss"),
        "exponent at the end": metrics.get("exponent"),
    }


def figures(spec: SweepSpec, results: Results) -> dict[str, Picture]:
    """Draw the losses against the learning rate, and over the training."""
    if not results:
        return {}
    tokens = "generated tokens" if spec.embedded else "the corpus"
    body = f"{spec.n_layer} layers, {spec.n_embd} wide, {spec.tokens / 1e6:.3g}M tokens of {tokens}"
    losses = {(cell.arm, cell.lr, cell.seed): result.metrics["val_loss"] for cell, result in results.items()}
    runs = {
        arm: [result for cell, result in results.items() if (cell.arm, cell.lr) == (arm, spec.repeated_lr)]
        for arm in spec.arms
    }
    drawn = {
        "sweep_lr": Picture(
            sweep_figures.draw_lrs(spec.arms, losses),
            f"Validation loss against the learning rate ({body}): a mark is a run, lines join the first seed's. Left: "
            "cross-entropy and its two controls beside exponent 2 D; right: exponents. Diverged runs are left out.",
        )
    }
    if any(runs.values()):
        drawn["sweep_curves"] = Picture(
            sweep_figures.draw_curves(runs),
            f"Loss over the training at learning rate {spec.repeated_lr:g} ({body}): training batches, smoothed, as "
            "thin lines, validation as marks; both are medians over seeds. The first steps, and "
            "arms that learn little, lie above the edge.",
        )
    return drawn


EXPERIMENT = Experiment(
    name="language_sweep",
    title="Exponent, scale and learning rate of a small GPT",
    figure="Sec. GPT-2",
    claims=CLAIMS,
    profiles={
        "smoke": SweepSpec(
            embedded=True,
            arms=(STANDARD, "harmonic_28"),
            lrs=(3e-3, 1e-2),
            repeated_lr=3e-3,
            repeated_arms=(STANDARD,),
            n_layer=1,
            n_head=2,
            n_embd=16,
            context=16,
            vocab=50,
            sequences=8,
            micro_batch=8,
            steps=6,
            warmup=2,
            dtype="float32",
            compile=False,
            log_every=1,
            evaluate_every=3,
            evaluation_sequences=8,
            checkpoint_every=2,
        ),
        "quick": SweepSpec(
            embedded=True,
            lrs=(3e-3, 1e-2),
            repeated_lr=3e-3,
            n_layer=2,
            n_head=2,
            n_embd=64,
            context=32,
            vocab=128,
            sequences=16,
            micro_batch=16,
            steps=40,
            warmup=4,
            dtype="float32",
            compile=False,
            log_every=2,
            evaluate_every=10,
            evaluation_sequences=32,
            checkpoint_every=40,
        ),
        "full": SweepSpec(
            seeds=(0, 1, 2),
            n_layer=6,
            n_head=6,
            n_embd=384,
            context=512,
            sequences=128,
            micro_batch=64,
            steps=300,
            warmup=30,
            log_every=10,
            evaluate_every=50,
            evaluation_sequences=512,
            checkpoint_every=300,
        ),
    },
    cells=cells,
    run_cells=run_cells,
    old_summarize=summarize,
    old_figures=figures,
    accelerated=True,
)
