"""GPT-2 small with either head on the same text, and what is measured on the two trained models.

    harmax run gpt2 --smoke    does it work: seconds
    harmax run gpt2            a tiny GPT-2 on generated tokens, on the CPU: it works, but decides nothing
    harmax run gpt2 --full     GPT-2 small, 252M tokens per model; meant for a GPU, and may be stopped at any time

A run that was stopped or killed goes on from its last checkpoint. A run whose measures failed is only measured again.
Here stand the losses. The experiments `parallelograms`, `layers` and `probes` are views of the same runs.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harmax.analysis import mean_interval
from harmax.data.folder import find_data
from harmax.data.glue import GLUE_TASKS, Sentences, load_glue
from harmax.data.text import load_encoding
from harmax.data.words import SAMPLE_PAIRS, WORD_TASKS, Encoding, load_pairs
from harmax.figures import Picture
from harmax.inspect import embedding_of, load_language_model, measure_embedding, measure_layers
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Finding
from harmax_lab.kit.experiment import Cell, Context, Experiment, Progress, Work
from harmax_lab.kit.judges import below
from harmax_lab.kit.results import Results
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Column, Table, tabulate
from harmax_lab.language import probing
from harmax_lab.language.arms import HARMONIC, NANOGPT, STANDARD, STYLES, compares, draw_runs, enough_text, over_seeds
from harmax_lab.language.pretraining import WITHOUT_DATA, TrainingSpec, part, train_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRAINING_SHARE = 0.85  # of a cell's time, roughly
NANOGPT_LR = 6e-4
PAPER_LOSS = {STANDARD: 3.159, HARMONIC: 3.146}
AS_STRONG = 0.05  # nats
MADE_UP = (96, 48)  # sentences to train on and to score on that stand in for SST-2 and CoLA
SEED = 0  # the same for both arms, so that they are measured on the same quadruples and with the same probes


@dataclass(frozen=True, kw_only=True)
class LanguageSpec(TrainingSpec):
    """Settings of a pre-training in both arms, and of what is measured on the models afterwards."""

    arms: tuple[str, ...] = (STANDARD, HARMONIC)
    lr_standard: float = 1e-3
    lr_harmonic: float = 1e-3
    exponent: float = 1536.0
    """Of the harmonic arm: 2 D, as in the authors' code; the paper's text has sqrt(D)."""
    nanogpt_sequences: int = 0
    """Sequences per step of one more standard model, with nanoGPT's batch and learning rate (480 and 6e-4) and as many
    tokens: it shows whether the standard arm is a weak baseline. 0: no such model."""

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


@dataclass(frozen=True)
class ArmCell(Cell):
    """One arm pre-trained from one seed."""

    arm: str
    seed: int


def arms(spec: LanguageSpec) -> dict[str, tuple[dict[str, Any], float]]:
    """Return what each arm tells the trainer beside the spec, and its learning rate."""
    found: dict[str, tuple[dict[str, Any], float]] = {
        STANDARD: ({"head": "linear"}, spec.lr_standard),
        HARMONIC: ({"head": "harmonic", "exponent": spec.exponent}, spec.lr_harmonic),
    }
    if spec.nanogpt_sequences:
        steps, rest = divmod(spec.steps * spec.sequences, spec.nanogpt_sequences)
        if rest:
            raise ValueError(
                f"`nanogpt_sequences` must divide the {spec.steps * spec.sequences} sequences of a run, got "
                f"{spec.nanogpt_sequences}; change it or `steps`."
            )
        found[NANOGPT] = ({"head": "linear", "sequences": spec.nanogpt_sequences, "steps": steps}, NANOGPT_LR)
    return found


def cells(spec: LanguageSpec) -> list[ArmCell]:
    """List every arm and seed, and with the first seed nanoGPT's recipe."""
    baseline = [ArmCell(NANOGPT, spec.seeds[0])] if spec.nanogpt_sequences else []
    return [ArmCell(arm, seed) for seed in spec.seeds for arm in spec.arms] + baseline


class Words(NamedTuple):
    """Word pairs by task, labeled sentences by data set (to train on, to score on), and the encoding of both."""

    pairs: Mapping[str, Sequence[tuple[str, str]]]
    sentences: Mapping[str, tuple[Sentences, Sentences]]
    encoding: Encoding


def read_words(spec: LanguageSpec) -> Words:
    """Read what a spec measures on from the data folder, or take what is embedded."""
    if not spec.embedded:
        pairs = {task: load_pairs(task) for task in spec.tasks or WORD_TASKS}
        sentences = {name: (load_glue(name, "train"), load_glue(name, "dev")) for name in GLUE_TASKS}
        data = find_data()
        return Words(pairs, sentences, load_encoding(None if data is None else data / "gpt2_bpe"))
    train, dev = (probing.made_up_sentences(count, seed) for seed, count in enumerate(MADE_UP))
    return Words(SAMPLE_PAIRS, dict.fromkeys(GLUE_TASKS, (train, dev)), WholeWords(spec.vocab))


class WholeWords:
    """An encoding for tiny vocabularies: one token per word; each word of the embedded pairs has its own.

    >>> WholeWords(64).encode("house House house")
    [0, 1, 0]
    """

    def __init__(self, vocab: int) -> None:
        words = dict.fromkeys(word for pairs in SAMPLE_PAIRS.values() for pair in pairs for word in pair)
        if vocab <= len(words):
            raise ValueError(f"`vocab` must be larger than {len(words)}, the embedded words, got {vocab}; raise it.")
        self._vocab = vocab
        self._tokens = {word: token for token, word in enumerate(words)}

    def encode(self, text: str, /) -> list[int]:
        """Return one token per word; other words share the tokens that are left."""
        return [self._tokens.get(word, self._hashed(word)) for word in text.split()]

    def _hashed(self, word: str) -> int:
        number = int(hashlib.sha256(word.encode()).hexdigest()[:12], 16)
        return len(self._tokens) + number % (self._vocab - len(self._tokens))


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
        words = read_words(spec)  # before the training, which may take hours: is everything there?
        arm, lr = arms(spec)[cell.arm]
        output, device = context.scratch / cell.name, context.device
        training = part(context, 0, TRAINING_SHARE, cell.name)
        measuring = part(context, TRAINING_SHARE, 1, cell.name)
        trained = train_model(spec, arm, lr, cell.seed, output, device, training)
        if cell.arm != NANOGPT:  # of which only the loss is compared
            trained = replace(trained, arrays=measure_model(spec, output / "model", words, device, measuring))
        yield cell, trained


def measure(spec: LanguageSpec, cell: ArmCell, result: CellResult) -> dict[str, float | None]:
    """Return the costs of a run as metrics of their own."""
    cost = result.metrics.get("cost", {})
    seconds = cost.get("training_seconds")
    costs = {name: cost.get(name) for name in ("tokens_per_s", "mfu", "memory_gib")}
    return {**costs, "training_minutes": None if seconds is None else seconds / 60}


def _judge_lower(results: Results, *, metric: str, words: str, form: str) -> Finding:
    """Judge by harmonic minus standard, paired over seeds, with Student's interval."""
    pairs = results.pairs(metric, "arm", HARMONIC, STANDARD)
    found = mean_interval([one - other for _, (one, other) in sorted(pairs.items())])
    means = {arm: float(np.mean(results.where(arm=arm).metric(metric).values)) for arm in (HARMONIC, STANDARD)}
    seen = f", where each token was seen {results.metric('times_seen').values[0]:.2f} times" * (metric == "gap")
    return Finding(
        below(found, 0),
        f"{words} {means[HARMONIC]:{form}} (harmonic) and {means[STANDARD]:{form}} (standard){seen}: a difference of "
        f"{over_seeds(found, len(pairs))}.",
        {"difference": found._asdict(), **means},
    )


def _judge_baseline(results: Results) -> Finding:
    ((standard, nanogpt),) = results.pairs("val_loss", "arm", STANDARD, NANOGPT).values()
    return Finding(
        standard - nanogpt <= AS_STRONG,
        f"Validation loss {standard:.3f}, and {nanogpt:.3f} with nanoGPT's recipe: a difference of "
        f"{standard - nanogpt:+.3f}, one model per recipe.",
        {"difference": standard - nanogpt, STANDARD: standard, NANOGPT: nanogpt},
    )


_claim = partial(compares, enough=enough_text(tokens=250_000_000))
CLAIMS = (
    _claim(
        "lower_loss",
        "After the same tokens in the same order the harmonic GPT-2 has a lower validation loss than the standard one.",
        partial(_judge_lower, metric="val_loss", words="Validation loss", form=".3f"),
        paper=(
            "3.146 (harmonic) against 3.159 (standard) after 10k steps of 480 x 1024 tokens of OpenWebText, one run "
            "each. The text is another one, and the tokens are twenty times those of the full profile here."
        ),
    ),
    _claim(
        "smaller_gap",
        "Its training loss, on as many sequences, lies no farther below its validation loss than the standard one's.",
        partial(_judge_lower, metric="gap", words="Validation minus training loss", form="+.3f"),
    ),
    _claim(
        "strong_baseline",
        f"The standard arm is no weak baseline: its validation loss is at most {AS_STRONG} above that of nanoGPT's "
        "batch (480 sequences) and learning rate (6e-4) after as many tokens.",
        _judge_baseline,
        (STANDARD, NANOGPT),
        enough=enough_text(tokens=250_000_000, seeds=1),
    ),
)


def validation(results: Results, arm: str, seed: int) -> dict[int, float]:
    """Return the validation losses of a run by step; none if it is not finished."""
    run = results.get(ArmCell(arm, seed), CellResult())
    steps, losses = (run.curves.get(name, np.empty(0)).tolist() for name in ("val_step", "val_loss"))
    return dict(zip(steps, losses, strict=True))


def losses_apart(results: Results, seed: int) -> dict[int, float]:
    """Return the harmonic validation loss minus the standard one, by the steps at which both were evaluated."""
    harmonic, standard = (validation(results, arm, seed) for arm in (HARMONIC, STANDARD))
    return {step: loss - standard[step] for step, loss in sorted(harmonic.items()) if step in standard}


def tables(results: Results) -> list[Table]:
    """Tabulate where each run ends, and the validation loss of the first seed at up to ten evaluations."""
    spec = results.spec
    order = (*spec.arms, NANOGPT)

    def metrics(**names: str) -> dict[str, Column]:
        def column(name: str) -> Column:
            return lambda cell: results[cell].metrics.get(name) if cell in results else None

        return {heading: column(name) for name, heading in names.items()}

    ends: dict[str, Column] = {
        "arm": lambda cell: cell.arm,
        "seed": lambda cell: cell.seed,
        **metrics(exponent="exponent"),
        "sequences per step": lambda cell: spec.nanogpt_sequences if cell.arm == NANOGPT else spec.sequences,
        **metrics(lr="learning rate"),
        "tokens, M": lambda cell: spec.tokens / 1e6,
        **metrics(times_seen="times each was seen", val_loss="validation loss", train_loss="training loss", gap="gap"),
        "paper's validation loss (other text, 4915M tokens)": lambda cell: PAPER_LOSS.get(cell.arm),
        **metrics(tokens_per_s="tokens per second", mfu="model FLOP utilization", memory_gib="peak memory, GiB"),
        **metrics(training_minutes="minutes of training"),
    }
    curves = {arm: validation(results, arm, spec.seeds[0]) for arm in spec.arms}
    steps = sorted({step for found in curves.values() for step in found})
    chosen = [steps[place] for place in np.unique(np.linspace(0, len(steps) - 1, min(10, len(steps))).astype(int))]

    apart = losses_apart(results, spec.seeds[0])
    way = tuple(
        {
            "step": step,
            "tokens, M": step * spec.tokens_per_step / 1e6,
            **{f"{arm} validation loss": losses.get(step) for arm, losses in curves.items()},
            "harmonic minus standard": apart.get(step),
        }
        for step in chosen
    )
    return [
        tabulate("The runs at their end", sorted(results.wanted, key=lambda cell: order.index(cell.arm)), ends),
        Table(f"Validation loss over the training, seed {spec.seeds[0]}", way),
    ]


def figures(results: Results) -> dict[str, Picture]:
    """Draw the losses of both arms and their difference."""
    spec, own = results.spec, results.where(arm=tuple(STYLES))
    if not own:
        return {}
    tokens = "generated tokens" if spec.embedded else "the corpus"
    caption = (
        f"GPT-2 ({spec.n_layer} layers, {spec.n_embd} wide) on {spec.tokens / 1e6:.3g}M tokens of {tokens}, the same "
        "ones in the same order for both heads. Left: loss of the training batches, smoothed (thin), and validation "
        "loss (marks). Right: harmonic minus standard validation loss, "
    )
    caption += "one model per arm." if len(spec.seeds) == 1 else "one line per seed."
    return {"gpt2_losses": Picture(_draw_losses(own), caption)}


def _draw_losses(results: Results) -> "Figure":
    spec = results.spec
    scale = spec.tokens_per_step / 1e6
    titles = {"loss": "Loss", "difference": "Difference of the validation losses"}
    figure, panels = drawing.facets({"": ""}, titles, size=(10, 4.0), xlabel="tokens, millions", ylabel="loss")
    left, right = panels.values()
    for cell, result in results.items():
        draw_runs(left, [result], STYLES[cell.arm].color, STYLES[cell.arm].line, scale=scale)
    # The first steps fall from log V; what there is to compare lies far below.
    losses = np.concatenate(results.curve("val_loss").values)
    low, high = float(losses.min()), float(np.quantile(losses, 0.9))
    left.set_ylim(low - 0.15 * max(high - low, 0.1), high + 0.35 * max(high - low, 0.1))
    styles = STYLES.items()
    lines = [drawing.line_handle(f"{arm}, training batches", style.color, style.line) for arm, style in styles]
    marks = [drawing.mark_handle(f"{arm}, validation", "o", style.color) for arm, style in styles]
    left.legend(handles=lines + marks, loc="upper right")
    left.set_xlim(left=0)
    right.set_xlim(left.get_xlim())
    right.axhline(0, color="#888888", linewidth=1, linestyle=":")
    for seed in spec.seeds:
        apart = losses_apart(results, seed)
        tokens = [step * scale for step in apart]
        right.plot(tokens, list(apart.values()), "o-", color="#333333", markersize=4, linewidth=1.3)
    right.set_ylabel("harmonic minus standard")
    return figure


TINY: dict[str, Any] = {"n_layer": 2, "n_head": 2, "log_every": 1, "quadruples": 40, "layers": (1,)}
TINY |= {**WITHOUT_DATA, "probe_layers": (0, 1)}
MODELS: dict[str, dict[str, Any]] = {
    "smoke": {"n_embd": 16, "context": 16, "vocab": 128, "sequences": 8, "micro_batch": 8, "nanogpt_sequences": 16},
    "quick": {"n_embd": 32, "context": 64, "vocab": 256, "sequences": 16, "micro_batch": 16, "nanogpt_sequences": 32},
}
STEPS: dict[str, dict[str, Any]] = {
    "smoke": {"steps": 8, "warmup": 2, "evaluate_every": 4, "evaluation_sequences": 8, "checkpoint_every": 2},
    "quick": {"steps": 60, "warmup": 5, "evaluate_every": 10, "evaluation_sequences": 32, "checkpoint_every": 60},
}
ARM_SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": {"lr_standard": 1e-2, "lr_harmonic": 1e-2, "exponent": 32.0, "probe_seeds": 2},
    "quick": {"lr_standard": 3e-3, "lr_harmonic": 3e-3, "exponent": 64.0, "probe_seeds": 3},
}

EXPERIMENT = Experiment(
    name="gpt2",
    title="GPT-2 with either head on the same text",
    figure="Sec. GPT-2",
    claims=CLAIMS,
    profiles={
        **{name: LanguageSpec(**TINY, **MODELS[name], **STEPS[name], **ARM_SETTINGS[name]) for name in MODELS},
        "full": LanguageSpec(nanogpt_sequences=480, evaluate_every=80, checkpoint_every=240),
    },
    work=Work(cells, run_cells, accelerated=True),
    measure=measure,
    keeps=("val_step", "val_loss"),
    tables=tables,
    figures=figures,
)
