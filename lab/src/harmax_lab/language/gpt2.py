"""GPT-2 small with either head on the same text, and what is measured on the trained models.

    harmax run gpt2 --smoke    does it work: seconds
    harmax run gpt2            a tiny GPT-2 on generated tokens, on the CPU: it works, but decides nothing
    harmax run gpt2 --full     GPT-2 small, 252M tokens per model; meant for a GPU, and may be stopped at any time

A run that was stopped or killed goes on from its last checkpoint. A run whose measures failed is only measured again.
Here stand the losses. The experiments `parallelograms`, `layers` and `probes` are views of the same runs.

The paper trains each model once, for 10k steps of 480 x 1024 tokens of OpenWebText, the harmonic one at ten times the
standard learning rate. Claims about those very runs are not run here; what our smaller runs say stands beside them.
The others compare the arm `arms.PAPERS` with the standard one, seed by seed.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from harmax.analysis import Interval
from harmax.data.words import WORD_TASKS
from harmax.figures import Picture, headline
from harmax.inspect import embedding_of, load_language_model, measure_embedding, measure_layers
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.experiment import Cell, Context, Experiment, Progress, Work
from harmax_lab.kit.judges import Judge, below, both
from harmax_lab.kit.results import Results
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Column, Table, tabulate
from harmax_lab.language import probing
from harmax_lab.language.arms import HARMONIC, PAPERS, STANDARD, STYLES, apart, compares, draw_runs, written
from harmax_lab.language.pretraining import WITHOUT_DATA, TrainingSpec, part, train_model
from harmax_lab.language.words import Words, embedded_words, read_words
from harmax_lab.paper.readings import AT_FIRST, SIMILAR_LOSS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRAINING_SHARE = 0.85  # of a cell's time, roughly
PAPER_LOSS = {STANDARD: 3.159, PAPERS: 3.146}
SEED = 0  # the same for all arms, so that they are measured on the same quadruples and with the same probes
LATE = 0.5  # share of the steps after which fluctuations are measured: before, the loss falls too fast
WINDOW = 11  # logged steps of a running median


@dataclass(frozen=True, kw_only=True)
class LanguageSpec(TrainingSpec):
    """Settings of a pre-training in all arms, and of what is measured on the models afterwards."""

    FULL_TOKENS: ClassVar[int] = 250_000_000

    arms: tuple[str, ...] = (STANDARD, HARMONIC)
    lr_standard: float = 1e-3
    lr_harmonic: float = 1e-3
    exponent: float = 1536.0
    """Of the harmonic arm: 2 D, as in the authors' code; the paper's text has sqrt(D)."""

    tasks: tuple[str, ...] = ()
    """Word-pair tasks; empty: the paper's twelve, or with `embedded` those that are embedded."""
    quadruples: int = 10_000
    """Pairs of word pairs per task, as in the paper."""
    layers: tuple[int, ...] = (6,)
    """Residual streams whose parallelograms are measured; 0 is what enters the first block."""
    probe_layers: tuple[int, ...] = (0, 6)
    probe_seeds: int = 10
    """Probes per layer and data set, each from its own start."""
    probe_sentences: int = 0
    """Sentences per data set that a probe learns from, at most; 0: all."""

    def short_of(self, cells: Sequence[Any]) -> str:
        """Say that the runs saw fewer tokens, or are measured on fewer word pairs, than those of the full profile."""
        left_out = [task for task in WORD_TASKS if self.tasks and task not in self.tasks]
        if left_out or self.quadruples < 10_000:
            return (
                f"{self.quadruples} of the paper's 10000 quadruples, tasks left out: {', '.join(left_out) or 'none'}."
            )
        return super().short_of(cells)


@dataclass(frozen=True)
class ArmCell(Cell):
    """One arm pre-trained from one seed."""

    arm: str
    seed: int


def arms(spec: LanguageSpec) -> dict[str, tuple[dict[str, Any], float]]:
    """Return what each arm tells the trainer beside the spec, and its learning rate."""
    return {
        STANDARD: ({"head": "linear"}, spec.lr_standard),
        HARMONIC: ({"head": "harmonic", "exponent": spec.exponent}, spec.lr_harmonic),
    }


def cells(spec: LanguageSpec) -> list[ArmCell]:
    """List every arm and seed."""
    return [ArmCell(arm, seed) for seed in spec.seeds for arm in spec.arms]


def measure_model(
    spec: LanguageSpec, folder: Path, words: Words, device: str, progress: Progress
) -> dict[str, np.ndarray]:
    """Measure a trained model that lies in a folder of transformers: its embedding, its layers, its probes."""
    model, (pairs, sentences, encoding) = load_language_model(folder), words
    embedding, drawn = embedding_of(model, tokens=spec.vocab), {"quadruples": spec.quadruples, "seed": SEED}
    first, second, third = (part(progress, *ends) for ends in ((0, 0.3), (0.3, 0.5), (0.5, 1)))
    return {
        **measure_embedding(embedding, pairs, encoding, **drawn, progress=first),
        **measure_layers(model, pairs, encoding, layers=spec.layers, **drawn, device=device, progress=second),
        **probing.measure_probes(
            model,
            sentences,
            encoding,
            layers=spec.probe_layers,
            seeds=range(spec.probe_seeds),
            device=device,
            most_sentences=spec.probe_sentences or None,
            progress=third,
        ),
    }


def run_cells(spec: LanguageSpec, group: Sequence[ArmCell], context: Context) -> Iterator[tuple[ArmCell, CellResult]]:
    """Train a model and measure it; its folder stays until the result is stored."""
    for cell in group:
        # Before the training, which may take hours: is everything there?
        words = embedded_words(spec.vocab) if spec.embedded else read_words(spec.tasks or WORD_TASKS)
        arm, lr = arms(spec)[cell.arm]
        output, device = context.scratch / cell.name, context.device
        training = part(context, 0, TRAINING_SHARE, cell.name)
        measuring = part(context, TRAINING_SHARE, 1, cell.name)
        trained = train_model(spec, arm, lr, cell.seed, output, device, training)
        if trained.metrics["diverged_at"] is None:
            trained = replace(trained, arrays=measure_model(spec, output / "model", words, device, measuring))
        yield cell, trained


def measure(spec: LanguageSpec, cell: ArmCell, result: CellResult) -> dict[str, float | None]:
    """Return what claims compare of a run's curves, and its costs, as metrics of their own."""
    cost = result.metrics.get("cost", {})
    seconds = cost.get("training_seconds")
    costs = {name: cost.get(name) for name in ("tokens_per_s", "mfu", "memory_gib")}
    return {
        "at_first": validation(result).get(round(AT_FIRST * spec.steps)),
        "fluctuation": fluctuation(result.curves["step"], result.curves["loss"], after=LATE * spec.steps),
        **costs,
        "training_minutes": None if seconds is None else seconds / 60,
    }


def validation(run: CellResult) -> dict[int, float]:
    """Return the validation losses of a run by step; none if it is not finished."""
    steps, losses = (run.curves.get(name, np.empty(0)).tolist() for name in ("val_step", "val_loss"))
    return dict(zip(steps, losses, strict=True))


def fluctuation(step: np.ndarray, loss: np.ndarray, after: float) -> float | None:
    """Return the root mean square deviation of training losses from their running median, after a step.

    None if too few losses were logged. A slow fall of the loss does not count, a spike does.

    >>> steps = np.arange(100)
    >>> fluctuation(steps, 1000.0 - steps, after=50)
    0.0
    """
    late = np.flatnonzero(step > after)
    if len(late) < WINDOW:
        return None
    start = max(int(late[0]) - WINDOW // 2, 0)
    windows = np.lib.stride_tricks.sliding_window_view(loss[start:].astype(float), WINDOW)
    deviation = windows[:, WINDOW // 2] - np.median(windows, axis=1)
    return float(np.sqrt(np.square(deviation).mean()))


def of_models(id: str, statement: str, judge: Judge, **own: Any) -> Claim:
    """Return a claim about the paper's arm against the standard one. A model that diverged counts as a failure."""

    def judge_trained(results: Results) -> Finding:
        lost = [cell for cell, run in results.items() if run.metrics.get("diverged_at") is not None]
        if not lost:
            return judge(results)
        words = f"Diverged: {'; '.join(cell.name for cell in lost)}."
        return Finding(False if any(cell.arm == PAPERS for cell in lost) else None, words, {"diverged": len(lost)})

    return compares(id, statement, judge_trained, **own)


def papers_exponent(results: Results) -> str:
    """Say that the harmonic model has another exponent than the paper's sqrt(D); empty if it has this one."""
    spec = results.spec
    found, wanted = arms(spec)[PAPERS][0]["exponent"], round(math.sqrt(spec.n_embd))
    return "" if round(found) == wanted else f"The harmonic model has exponent {found:g}, the paper's has {wanted}."


def of_paper(id: str, statement: str, judge: Judge, *sentences: str, **own: Any) -> Claim:
    """Return a claim of the paper about its two models, which only the paper's exponent can decide."""
    return of_models(id, statement, judge, sentences=sentences, enough=papers_exponent, **own)


def _rates(results: Results) -> tuple[bool, str]:
    """Return whether the harmonic arm's learning rate is larger, as the paper's is, and a sentence about it."""
    standard, harmonic = (arms(results.spec)[arm][1] for arm in (STANDARD, PAPERS))
    words = f"Learning rates: {harmonic:g} (harmonic) and {standard:g}; the paper's: 0.006 and 0.0006."
    return harmonic > standard, words


def _compared(results: Results, metric: str, words: str, form: str = ".3f") -> tuple[Interval | None, str]:
    """Return harmonic minus standard in a metric, and a sentence with both means."""
    found = apart(results, metric)
    values = {arm: results.where(arm=arm).metric(metric).present.values for arm in (PAPERS, STANDARD)}
    means = [f"{np.mean(one):{form}} ({arm})" if one else f"unknown ({arm})" for arm, one in values.items()]
    return found.difference if found else None, f"{words} {' and '.join(means)}: a difference of {written(found)}."


def _judge_lower(results: Results, *, metric: str, words: str, form: str = ".3f") -> Finding:
    found, sentence = _compared(results, metric, words, form)
    return Finding(below(found, 0) if found else None, sentence, {"difference": found and found._asdict()})


def _judge_similar(results: Results) -> Finding:
    found, sentence = _compared(results, "val_loss", "Validation loss")
    inside = found and both(found.above(-SIMILAR_LOSS), below(found, SIMILAR_LOSS))
    return Finding(inside, sentence, {"difference": found and found._asdict()})


def _judge_at_first(results: Results) -> Finding:
    found = _judge_lower(
        results, metric="at_first", words=f"Validation loss after {100 * AT_FIRST:.0f} % of the steps:"
    )
    larger, rates = _rates(results)
    # The paper says that a part of its lead is due to the larger rate, so other rates cannot contradict it.
    holds = None if found.holds is False and not larger else found.holds
    return found._replace(holds=holds, sentence=f"{found.sentence} {rates}")


def _judge_fluctuations(results: Results) -> Finding:
    found = _judge_lower(results, metric="fluctuation", words="Fluctuation of the training loss:", form=".4f")
    larger, rates = _rates(results)
    # A larger rate makes a loss fluctuate more, so other rates cannot confirm what the paper saw at a larger one.
    return found._replace(
        holds=None if found.holds and not larger else found.holds, sentence=f"{found.sentence} {rates}"
    )


NOT_OURS = (
    "The claim is about two runs of 4.9 billion tokens of OpenWebText on eight GPUs. Neither that text nor as many "
    "tokens were available."
)
LOSSES = partial(_judge_lower, metric="val_loss", words="Validation loss")
CLAIMS = (
    of_paper(
        "faster_at_first",
        "The harmonic GPT-2 converges faster at first. Judged by the validation loss after the first "
        f"{100 * AT_FIRST:.0f} % of the steps. The paper names its larger learning rate as a part of the reason, so "
        "without a larger rate a slower start leaves this undecided.",
        _judge_at_first,
        "5/12",
    ),
    of_paper(
        "similar_at_the_end",
        f"Both models end at a similar loss. Judged by the validation losses, at most {SIMILAR_LOSS:g} apart.",
        _judge_similar,
        "5/12",
        not_run=NOT_OURS,
    ),
    of_paper(
        "final_losses",
        "The validation losses end at 3.159 (standard) and 3.146 (harmonic). Beside it stands whether the harmonic "
        "loss is lower in our runs.",
        LOSSES,
        "5/13",
        not_run=NOT_OURS,
    ),
    of_paper(
        "smaller_fluctuations",
        "The training loss of the harmonic GPT-2 fluctuates less. Judged by the deviation of the batches' losses from "
        "their running median in the second half of the training. The paper's harmonic learning rate is ten times "
        "larger, so without a larger rate smaller fluctuations leave this undecided.",
        _judge_fluctuations,
        "5/14",
    ),
    of_models(
        "lower_loss",
        "After the same tokens in the same order the harmonic GPT-2 has a lower validation loss than the standard one.",
        LOSSES,
    ),
    of_models(
        "smaller_gap",
        "Its training loss, on as many sequences, lies no farther below its validation loss than the standard one's.",
        partial(_judge_lower, metric="gap", words="Validation minus training loss", form="+.3f"),
    ),
)


def losses_apart(results: Results, seed: int) -> dict[int, float]:
    """Return the harmonic validation loss minus the standard one, by the steps at which both were evaluated."""
    runs = [results.get(ArmCell(arm, seed), CellResult()) for arm in (PAPERS, STANDARD)]
    harmonic, standard = map(validation, runs)
    return {step: loss - standard[step] for step, loss in sorted(harmonic.items()) if step in standard}


def tables(results: Results) -> list[Table]:
    """Tabulate where each run ends, and the validation loss of the first seed at up to ten evaluations."""
    spec = results.spec

    def metrics(**names: str) -> dict[str, Column]:
        def column(name: str) -> Column:
            return lambda cell: results[cell].metrics.get(name) if cell in results else None

        return {heading: column(name) for name, heading in names.items()}

    ends: dict[str, Column] = {
        "arm": lambda cell: cell.arm,
        "seed": lambda cell: cell.seed,
        **metrics(exponent="exponent", lr="learning rate"),
        "tokens, M": lambda cell: spec.tokens / 1e6,
        **metrics(times_seen="times each was seen", val_loss="validation loss", train_loss="training loss", gap="gap"),
        **metrics(at_first=f"validation loss after {100 * AT_FIRST:.0f} % of the steps"),
        **metrics(fluctuation="fluctuation of the training loss"),
        "paper's validation loss (other text, 4915M tokens)": lambda cell: PAPER_LOSS.get(cell.arm),
        **metrics(tokens_per_s="tokens per second", mfu="model FLOP utilization", memory_gib="peak memory, GiB"),
        **metrics(training_minutes="minutes of training"),
    }
    curves = {arm: validation(results.get(ArmCell(arm, spec.seeds[0]), CellResult())) for arm in spec.arms}
    steps = sorted({step for found in curves.values() for step in found})
    chosen = [steps[place] for place in np.unique(np.linspace(0, len(steps) - 1, min(10, len(steps))).astype(int))]

    apart_at = losses_apart(results, spec.seeds[0])
    way = tuple(
        {
            "step": step,
            "tokens, M": step * spec.tokens_per_step / 1e6,
            **{f"{arm} validation loss": losses.get(step) for arm, losses in curves.items()},
            "harmonic minus standard": apart_at.get(step),
        }
        for step in chosen
    )
    return [
        tabulate("The runs at their end", sorted(results.wanted, key=lambda cell: spec.arms.index(cell.arm)), ends),
        Table(f"Validation loss over the training, seed {spec.seeds[0]}", way),
    ]


def trained(results: Results) -> Results:
    """Leave out models that diverged, of which nothing was measured."""
    return results.having(lambda run: bool(run.arrays))


def budget(spec: LanguageSpec) -> str:
    """Say in a caption what was trained, and how often."""
    text = "generated tokens" if spec.embedded else "the corpus"
    count = len(spec.seeds)
    return (
        f"GPT-2 ({spec.n_layer} layers, {spec.n_embd} wide) on {spec.tokens / 1e6:.3g}M tokens of {text}, "
        + ("one model per arm" if count == 1 else f"{count} models per arm")
        + f"; exponent {arms(spec)[PAPERS][0]['exponent']:g}."
    )


def figures(results: Results) -> dict[str, Picture]:
    """Draw the losses of all arms and the difference of the two that claims compare."""
    finite = results.having(lambda run: run.metrics.get("diverged_at") is None)
    if not finite:
        return {}
    caption = (
        "Left: loss of the training batches, smoothed (lines), and validation loss (marks). Right: harmonic minus "
        "standard validation loss, one line per seed; below 0 the harmonic model is ahead. The dashed line marks "
        f'{100 * AT_FIRST:.0f} % of the steps, where "faster initially" is read. Both arms read the same tokens '
        f"in the same order. {budget(results.spec)}"
    )
    return {"gpt2_losses": Picture(_draw_losses(finite), caption)}


def _draw_losses(results: Results) -> "Figure":
    spec = results.spec
    scale = spec.tokens_per_step / 1e6
    titles = {"loss": "Loss", "difference": "Validation loss, harmonic minus standard"}
    figure, panels = drawing.facets({"": ""}, titles, size=(10, 4.4), xlabel="tokens, millions", ylabel="loss")
    left, right = panels.values()
    for cell, result in results.items():
        draw_runs(left, [result], STYLES[cell.arm].color, STYLES[cell.arm].line, scale=scale)
    # The first steps fall from log V; the first evaluation is still to be seen.
    losses = np.concatenate(results.curve("val_loss").values)
    low, high = float(losses.min()), float(losses.max())
    left.set_ylim(low - 0.1 * max(high - low, 0.1), high + 0.15 * max(high - low, 0.1))
    left.set_xlim(left=0)
    right.set_xlim(left.get_xlim())
    right.axhline(0, color="#888888", linewidth=1, linestyle=":")
    for axes in (left, right):
        axes.axvline(AT_FIRST * spec.steps * scale, color="#888888", linewidth=1, linestyle="--")
    for seed in spec.seeds:
        gaps = losses_apart(results, seed)
        tokens = [step * scale for step in gaps]
        right.plot(tokens, list(gaps.values()), "o-", color="#333333", markersize=4, linewidth=1.3)
    right.set_ylabel("difference")
    styles = {arm: STYLES[arm] for arm in results.distinct("arm")}.items()
    lines = [drawing.line_handle(f"{arm}, training batches", style.color, style.line) for arm, style in styles]
    marks = [drawing.mark_handle(f"{arm}, validation", "o", style.color) for arm, style in styles]
    headline(figure, "Training and validation loss of GPT-2 with either head", lines + marks)
    return figure


TINY: dict[str, Any] = {"n_layer": 2, "n_head": 2, "log_every": 1, "quadruples": 40, "layers": (1,)}
TINY |= {**WITHOUT_DATA, "probe_layers": (0, 1)}
MODELS: dict[str, dict[str, Any]] = {
    "smoke": {"n_embd": 16, "context": 16, "vocab": 128, "sequences": 8, "micro_batch": 8},
    "quick": {"n_embd": 32, "context": 64, "vocab": 256, "sequences": 16, "micro_batch": 16},
}
STEPS: dict[str, dict[str, Any]] = {
    "smoke": {"steps": 8, "warmup": 2, "evaluate_every": 4, "evaluation_sequences": 8, "checkpoint_every": 2},
    "quick": {"steps": 60, "warmup": 5, "evaluate_every": 6, "evaluation_sequences": 32, "checkpoint_every": 60},
}
ARM_SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": {"lr_standard": 1e-2, "lr_harmonic": 1e-2, "exponent": 32.0, "probe_seeds": 2},
    "quick": {"lr_standard": 3e-3, "lr_harmonic": 3e-3, "exponent": 64.0, "probe_seeds": 3},
}

EXPERIMENT = Experiment(
    name="gpt2",
    title="GPT-2 with either head on the same text",
    figure="Sec. 5, Fig. 5",
    claims=CLAIMS,
    profiles={
        **{name: LanguageSpec(**TINY, **MODELS[name], **STEPS[name], **ARM_SETTINGS[name]) for name in MODELS},
        # Every step is logged, because a claim is about fluctuations; a tenth of the steps is one of the evaluations.
        "full": LanguageSpec(log_every=1, evaluate_every=96, checkpoint_every=240),
    },
    work=Work(cells, run_cells, accelerated=True, seeds_apart=True),
    measure=measure,
    keeps=("step", "loss", "val_step", "val_loss"),
    tables=tables,
    figures=figures,
    version=2,
)
