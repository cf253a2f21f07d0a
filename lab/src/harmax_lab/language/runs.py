"""GPT-2 small with either head on the same text, and what is measured on the two trained models.

    harmax run gpt2 --smoke    does it work: seconds
    harmax run gpt2            a tiny GPT-2 on generated tokens, on the CPU: it works, but decides nothing
    harmax run gpt2 --full     GPT-2 small, 252M tokens a model; meant for a GPU, and may be stopped at any time

A run that was stopped, or killed, goes on from its last checkpoint; one whose measures failed is only measured again.
Parallelograms, layers and probes are views of these runs; here stand the losses.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harmax.data.folder import find_data
from harmax.data.glue import GLUE_TASKS, Sentences, load_glue
from harmax.data.text import load_encoding
from harmax.data.words import SAMPLE_PAIRS, WORD_TASKS, Encoding, load_pairs
from harmax.errors import unknown
from harmax.figures import Picture
from harmax_lab.kit.claims import Claim
from harmax_lab.kit.experiment import Context, Experiment, Progress, Summary, view
from harmax_lab.kit.store import CellResult
from harmax_lab.language import curves
from harmax_lab.language.pretraining import train_model
from harmax_lab.language.spec import HARMONIC, NANOGPT, STANDARD, ArmCell, LanguageSpec

TRAINING_SHARE = 0.85  # of a cell's time, roughly
NANOGPT_LR = 6e-4
MADE_UP = {"train": 96, "dev": 48}  # sentences that stand in for SST-2 and CoLA


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
        recipe = {"head": "linear", "sequences": spec.nanogpt_sequences, "steps": steps}
        found[NANOGPT] = (recipe, NANOGPT_LR)
    return found


def cells(spec: LanguageSpec) -> list[ArmCell]:
    """List every arm and seed, and with the first seed nanoGPT's recipe."""
    baseline = [ArmCell(NANOGPT, spec.seeds[0])] if spec.nanogpt_sequences else []
    return [ArmCell(arm, seed) for seed in spec.seeds for arm in spec.arms] + baseline


def run_cells(spec: LanguageSpec, group: Sequence[ArmCell], context: Context) -> Iterator[tuple[ArmCell, CellResult]]:
    """Train a model and measure it; its folder stays until the result is stored."""
    for cell in group:
        if cell.arm not in arms(spec):
            raise ValueError(unknown("arm", cell.arm, arms(spec)))
        words = read_words(spec)  # before the training, which may take hours: is everything there?
        arm, lr = arms(spec)[cell.arm]
        output = context.scratch / cell.name
        trained = train_model(
            spec,
            arm,
            lr=lr,
            seed=cell.seed,
            output=output,
            context=context,
            label=cell.name,
            share=TRAINING_SHARE,
        )
        if cell.arm == NANOGPT:  # its loss is all that is asked of it
            yield cell, trained
            continue

        def tell(fraction: float, message: str = "", /, name: str = cell.name) -> None:
            context(TRAINING_SHARE + (1 - TRAINING_SHARE) * fraction, f"{name}: {message}" if message else name)

        arrays = measure(spec, output / "model", words, device=context.device, progress=tell)
        yield cell, CellResult(trained.curves, arrays, trained.metrics)


class Words:
    """What models are measured on: word pairs, labeled sentences, and the encoding of both."""

    def __init__(
        self,
        pairs: Mapping[str, Sequence[tuple[str, str]]],
        sentences: Mapping[str, tuple[Sentences, Sentences]],
        encoding: Encoding,
    ) -> None:
        self.pairs, self.sentences, self.encoding = pairs, sentences, encoding


def read_words(spec: LanguageSpec) -> Words:
    """Read what a spec measures on from the data folder, or take what is embedded."""
    if not spec.embedded:
        pairs = {task: load_pairs(task) for task in spec.tasks or WORD_TASKS}
        sentences = {name: (load_glue(name, "train"), load_glue(name, "dev")) for name in GLUE_TASKS}
        data = find_data()
        return Words(pairs, sentences, load_encoding(None if data is None else data / "gpt2_bpe"))
    from harmax_lab.language.probing import made_up_sentences

    sides = made_up_sentences(MADE_UP["train"], seed=0), made_up_sentences(MADE_UP["dev"], seed=1)
    return Words(SAMPLE_PAIRS, dict.fromkeys(GLUE_TASKS, sides), WholeWords(spec.vocab))


class WholeWords:
    """An encoding for tiny vocabularies: a token a word, the embedded pairs' words each their own.

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
        """Return a token a word; other words share what is left."""
        return [self._tokens.get(word, self._hashed(word)) for word in text.split()]

    def _hashed(self, word: str) -> int:
        number = int(hashlib.sha256(word.encode()).hexdigest()[:12], 16)
        return len(self._tokens) + number % (self._vocab - len(self._tokens))


def measure(
    spec: LanguageSpec, folder: Path, words: Words, *, device: str, progress: Progress
) -> dict[str, np.ndarray]:
    """Measure a trained model that lies in a folder of transformers: its embedding, its layers, its probes."""
    from harmax.inspect import embedding_of, load_language_model, measure_embedding, measure_layers
    from harmax_lab.language.probing import measure_probes

    model = load_language_model(folder)
    # One seed for both arms, so that they are looked at on the same quadruples and with the same probes.
    seed = 0
    arrays = measure_embedding(
        embedding_of(model, tokens=spec.vocab),
        words.pairs,
        words.encoding,
        quadruples=spec.quadruples,
        seed=seed,
        progress=_part(progress, 0, 0.3),
    )
    arrays |= measure_layers(
        model,
        words.pairs,
        words.encoding,
        layers=spec.layers,
        quadruples=spec.quadruples,
        seed=seed,
        device=device,
        progress=_part(progress, 0.3, 0.5),
    )
    arrays |= measure_probes(
        model,
        words.sentences,
        words.encoding,
        layers=spec.probe_layers,
        seeds=range(spec.probe_seeds),
        device=device,
        most_sentences=spec.probe_sentences or None,
        progress=_part(progress, 0.5, 1.0),
    )
    return arrays


def _part(progress: Progress, start: float, end: float) -> Progress:
    def tell(fraction: float, message: str = "", /) -> None:
        progress(start + (end - start) * fraction, message)

    return tell


EXPERIMENT = Experiment(
    name="gpt2",
    title="GPT-2 with either head on the same text",
    figure="Sec. GPT-2",
    claims=curves.CLAIMS,
    profiles={
        "smoke": LanguageSpec(
            embedded=True,
            lr_standard=1e-2,
            lr_harmonic=1e-2,
            exponent=32.0,
            nanogpt_sequences=16,
            n_layer=2,
            n_head=2,
            n_embd=16,
            context=16,
            vocab=128,
            sequences=8,
            micro_batch=8,
            steps=8,
            warmup=2,
            dtype="float32",
            compile=False,
            log_every=1,
            evaluate_every=4,
            evaluation_sequences=8,
            checkpoint_every=2,
            quadruples=40,
            layers=(1,),
            probe_layers=(0, 1),
            probe_seeds=2,
        ),
        "quick": LanguageSpec(
            embedded=True,
            lr_standard=3e-3,
            lr_harmonic=3e-3,
            exponent=64.0,
            nanogpt_sequences=32,
            n_layer=2,
            n_head=2,
            n_embd=32,
            context=64,
            vocab=256,
            sequences=16,
            micro_batch=16,
            steps=60,
            warmup=5,
            dtype="float32",
            compile=False,
            log_every=1,
            evaluate_every=10,
            evaluation_sequences=32,
            checkpoint_every=60,
            quadruples=40,
            layers=(1,),
            probe_layers=(0, 1),
            probe_seeds=3,
        ),
        "full": LanguageSpec(nanogpt_sequences=480, evaluate_every=80, checkpoint_every=240),
    },
    cells=cells,
    run_cells=run_cells,
    old_summarize=curves.summarize,
    old_figures=curves.figures,
    accelerated=True,
)


def measured_view(
    *,
    name: str,
    title: str,
    figure: str,
    claims: tuple[Claim, ...],
    summarize: Callable[[LanguageSpec, curves.Results], Summary],
    figures: Callable[[LanguageSpec, curves.Results], Mapping[str, Picture]],
) -> Experiment[LanguageSpec, ArmCell]:
    """Return a view of what was measured on the models; nanoGPT's recipe, of which only the loss is, stays out."""

    def measured(results: curves.Results) -> curves.Results:
        return {cell: result for cell, result in results.items() if cell.arm != NANOGPT}

    return view(
        EXPERIMENT,
        name=name,
        title=title,
        figure=figure,
        claims=claims,
        old_summarize=lambda spec, results: summarize(spec, measured(results)),
        old_figures=lambda spec, results: figures(spec, measured(results)),
    )
