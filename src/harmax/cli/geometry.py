"""`harmax geometry`: word pairs and token centers in causal language models of transformers."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from harmax.cli.data import default_vocabulary
from harmax.cli.geometry_tables import print_tables
from harmax.cli.live_line import LiveLine
from harmax.cli.usage import checking_usage, print_json
from harmax.data.folder import find_data
from harmax.data.text import load_encoding
from harmax.data.words import SAMPLE_PAIRS, WORD_TASKS, load_pairs
from harmax.environment import choose_device
from harmax.errors import needs
from harmax.figures import house_style, to_png
from harmax.files import to_json, write_atomically
from harmax.inspect.embedding import Pairs, measured_tasks
from harmax.inspect.geometry import MeasuredModel, compare_measured, draw_measured, measure_model, summarize_model
from harmax.inspect.language_models import Vocabulary, check_pairs, load_config, load_vocabulary, short_names
from harmax.inspect.layers import measured_layers
from harmax.inspect.sources import find_source

Opened = MeasuredModel | tuple[str, Vocabulary, Pairs]
"""A model that a folder stores with its measures, or one to measure: its name, its vocabulary, the pairs it knows."""


@dataclass(frozen=True)
class Geometry:
    """Measure parallelograms of word pairs and the cloud of token centers in causal language models of transformers.

    Models after the first are compared with it. Code that comes with a model is never run.

    harmax geometry gpt2

    harmax geometry runs/standard/model runs/harmonic/model --layers 6 --figures figures/
    """

    models: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="MODEL [MODEL ...]")]
    """Folders that `save_pretrained` wrote, names on the Hugging Face Hub, or with harmax-lab runs of `gpt2`."""
    layers: tuple[int, ...] = ()
    """Also measure the states of words in these layers; 0 is the input of the first block. This takes much longer."""
    tasks: tuple[str, ...] = ()
    """Word-pair tasks, for example capitalize; all if left out."""
    quadruples: int = 10_000
    """At most this many quadruples (pairs of word pairs) per task."""
    seed: int = 0
    """Seed of the draws."""
    device: str = "cpu"
    """Where the layers are computed: cpu, cuda, cuda:1."""
    vocabulary: Path | None = None
    """For models without a tokenizer: a folder with encoder.json and vocab.bpe; GPT-2's if left out."""
    figures: Path | None = None
    """Draw one or two models into this folder, as .png."""
    output: Path | None = None
    """Store the measured arrays in this .safetensors file, under the keys MODEL/<measure>/<task>/<what>."""
    json: bool = False
    """Print one JSON object. An interval is an estimate, its low end and its high end (95 %, over word pairs)."""

    def __call__(self) -> int:
        """Measure, and print tables or JSON."""
        with checking_usage():
            self._check()
            opened, pairs, origin = self._open()
            tasks = self._tasks(opened, pairs)
            found = self._measure(opened, choose_device(self.device))
        summary = {
            "tasks": tasks,
            "pairs": origin,
            "quadruples": self.quadruples,
            "seed": self.seed,
            "models": [summarize_model(one, tasks, self.layers) for one in found],
            "ratios": [self._ratios(found[0], other, tasks) for other in found[1:]],
            "files": [str(path) for path in self._write(found, tasks)],
        }
        (print_json if self.json else print_tables)(summary)
        return 0

    def _check(self) -> None:
        if not self.models or len(set(self.models)) < len(self.models):
            raise ValueError(
                f"MODEL must be one or more different models, got {' '.join(self.models) or 'none'}; name each once."
            )
        if self.quadruples < 1 or self.seed < 0:
            raise ValueError(
                f"`--quadruples` must be 1 or more and `--seed` 0 or more, got {self.quadruples} and {self.seed}; "
                "raise it."
            )
        if self.figures is not None:
            if self.figures.exists() and not self.figures.is_dir():
                raise ValueError(f"`--figures` must be a folder, got the file {str(self.figures)!r}; name another.")
            with house_style():  # a missing matplotlib is better noticed before the work
                pass
        if self.output is not None:
            if self.output.suffix != ".safetensors" or self.output.is_dir():
                raise ValueError(f"`--output` must be a .safetensors file, got {str(self.output)!r}; name one.")
            with needs("run"):
                import safetensors  # noqa: F401  (the same)

    def _open(self) -> tuple[dict[str, Opened], Pairs, str]:
        """Return the models by name, the word pairs to measure and where these come from."""
        opened: dict[str, Opened] = {}
        pairs: Pairs = {}
        origin = "stored"
        for model, name in zip(self.models, short_names(self.models), strict=True):
            source = find_source(Path(model)) if Path(model).is_dir() else None
            if source is not None:
                for one in source.measured_models():
                    full = one.name if len(self.models) == 1 else f"{name}/{one.name}"
                    opened[full] = replace(one, name=full)
                continue
            if not pairs:
                pairs, origin = read_pairs(self.tasks)
            vocabulary = self._vocabulary(model)
            opened[name] = (model, vocabulary, vocabulary.known(pairs))
        known = {name: one[1:] for name, one in opened.items() if isinstance(one, tuple)}
        check_pairs(known, pairs, quadruples=self.quadruples, seed=self.seed, notice=notice)
        if self.figures is not None and len(opened) > 2:
            raise ValueError(f"`--figures` must come with one or two models, got {len(opened)}; draw two at a time.")
        return opened, pairs, origin

    def _vocabulary(self, model: str) -> Vocabulary:
        config = load_config(model)
        deepest, wanted = config.num_hidden_layers, " ".join(map(str, self.layers))
        if not all(0 <= layer <= deepest for layer in self.layers):
            raise ValueError(f"`--layers` must be 0 to {deepest} for {model}, got {wanted}; choose among these.")
        fallback = self.vocabulary or default_vocabulary()
        return load_vocabulary(model, config.vocab_size, lambda: load_encoding(fallback), notice)

    def _tasks(self, opened: dict[str, Opened], pairs: Pairs) -> list[str]:
        """Return the tasks of all models, and refuse tasks and layers that a stored model does not have."""
        stored = [one for one in opened.values() if isinstance(one, MeasuredModel)]
        tasks = list(pairs or self.tasks or measured_tasks(stored[0].arrays))
        for one in stored:
            there = measured_tasks(one.arrays)
            if not set(tasks) <= set(there):
                raise ValueError(
                    f"`--tasks` must be among those that {one.name} stores ({', '.join(there)}), got "
                    f"{', '.join(tasks)}; choose among these."
                )
            inside = sorted({layer for task in tasks for layer in measured_layers(one.arrays, task)})
            if not set(self.layers) <= set(inside):
                raise ValueError(
                    f"`--layers` must be among those that {one.name} stores ({', '.join(map(str, inside)) or 'none'}), "
                    f"got {', '.join(map(str, self.layers))}; choose among these."
                )
        return tasks

    def _measure(self, opened: dict[str, Opened], device: str) -> list[MeasuredModel]:
        found: list[MeasuredModel] = []
        with LiveLine("loading") as line:
            for name, one in opened.items():
                if not isinstance(one, tuple):
                    found.append(one)
                    continue
                model, vocabulary, pairs = one
                line(f"{name}: loading", important=True)
                found.append(
                    measure_model(
                        model,
                        vocabulary,
                        pairs,
                        name=name,
                        layers=self.layers,
                        quadruples=self.quadruples,
                        seed=self.seed,
                        device=device,
                        progress=_progress_of(name, line),
                    )
                )
        return found

    def _ratios(self, first: MeasuredModel, other: MeasuredModel, tasks: Sequence[str]) -> dict[str, object]:
        places = compare_measured(first, other, tasks, self.layers)
        if places is None:
            notice(f"{first.name} and {other.name} have different vocabularies; their losses are not compared.")
        return {"model": other.name, "to": first.name, "places": places}

    def _write(self, found: Sequence[MeasuredModel], tasks: Sequence[str]) -> Iterator[Path]:
        if self.output is not None:
            with needs("run"):
                from safetensors.numpy import save

            arrays = {f"{one.name}/{key}": np.array(array) for one in found for key, array in one.arrays.items()}
            names = to_json([one.name for one in found])
            header = {"models": names, "quadruples": str(self.quadruples), "seed": str(self.seed)}
            write_atomically(self.output, save(arrays, metadata=header))
            yield self.output
        if self.figures is not None:
            with house_style():
                drawn = draw_measured(found, tasks, tuple(dict.fromkeys(self.layers)))
            for name, figure in drawn.items():
                path = self.figures / f"{name}.png"
                write_atomically(path, to_png(figure))
                yield path


def _progress_of(name: str, line: LiveLine) -> Callable[..., None]:
    def tell(fraction: float, message: str = "", /) -> None:
        line(f"{name}: {fraction:.0%} {message}".rstrip())

    return tell


def read_pairs(tasks: Sequence[str]) -> tuple[dict[str, Sequence[tuple[str, str]]], str]:
    """Return word pairs by task and where they come from: the data folder, or with a notice those within harmax."""
    data = find_data()
    there = data is not None and (data / "function_vectors").is_dir()
    if there or not all(task in SAMPLE_PAIRS for task in tasks):  # without a data folder, its own error says what to do
        return {task: load_pairs(task) for task in tasks or WORD_TASKS}, "function_vectors"
    notice("no data folder with word pairs: eight embedded pairs per task are used; HARMAX_DATA names a folder.")
    return {task: SAMPLE_PAIRS[task] for task in tasks or SAMPLE_PAIRS}, "embedded"


def notice(words: str) -> None:
    """Print a sentence to standard error."""
    print(f"harmax: {words}", file=sys.stderr, flush=True)
