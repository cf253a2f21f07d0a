"""`harmax geometry`: what word pairs and token centers look like in any causal language model of transformers."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harmax.analysis import Interval
from harmax.cli.data import default_vocabulary
from harmax.cli.usage import checking_usage, print_json
from harmax.data.text import load_encoding
from harmax.environment import choose_device
from harmax.errors import needs
from harmax.figures import house_style, to_png
from harmax.files import to_json, write_atomically
from harmax_lab.cli.geometry_models import (
    Pairs,
    Subject,
    check_pairs,
    load_config,
    load_tokenizer,
    loading,
    notice,
    read_pairs,
    short_names,
)
from harmax_lab.cli.progress import ShowProgress
from harmax_lab.kit.engine import Event
from harmax_lab.kit.experiment import Progress
from harmax_lab.kit.store import CellResult
from harmax_lab.language import embedding, layers, parallelogram_figures
from harmax_lab.language.parallelograms import compare
from harmax_lab.language.runs import load_model
from harmax_lab.language.spec import HARMONIC, STANDARD, ArmCell, LanguageSpec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Arrays = Mapping[str, np.ndarray]

MOST_PADDING = 1024  # rows beyond a vocabulary that may well only pad it
SHOWN_WORDS = 8  # whose neighbors are printed
LONGEST = 28  # letters of a model's name in a figure


@dataclass(frozen=True)
class Geometry:
    """Measure parallelograms of word pairs and the cloud of token centers in causal language models of transformers.

    harmax geometry gpt2

    harmax geometry runs/standard/model runs/harmonic/model --layers 6 --figures figures/
    """

    models: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="MODEL [MODEL ...]")]
    """Folders that `save_pretrained` wrote, or names of the Hugging Face Hub; others are compared with the first."""
    layers: tuple[int, ...] = ()
    """Also the states of words in these layers: 0 enters the first block. The whole vocabulary passes the model."""
    tasks: tuple[str, ...] = ()
    """Word-pair tasks, for example capitalize; all that there are if left out."""
    quadruples: int = 10_000
    """Pairs of word pairs a task, at most."""
    seed: int = 0
    """Of the draws."""
    device: str = "cpu"
    """Where the layers are computed: cpu, cuda, cuda:1."""
    vocabulary: Path | None = None
    """For models without a tokenizer: a folder with encoder.json and vocab.bpe; the data folder's gpt2_bpe, or a
    download, if left out."""
    figures: Path | None = None
    """Draw distributions and quadruples, with `--layers` also the steps of word pairs, into this folder, as .png."""
    output: Path | None = None
    """Keep the measured arrays in this .safetensors file, each as MODEL/<measure>/<task>/<what>."""
    json: bool = False
    """Print one JSON object; an interval is an estimate, its low and its high end (95 %, over word pairs)."""

    def __call__(self) -> int:
        """Measure, and print tables or JSON."""
        with checking_usage():
            self._check()
            device = choose_device(self.device)
            pairs, source = read_pairs(self.tasks)
            subjects = [self._open(*one, pairs) for one in zip(self.models, short_names(self.models), strict=True)]
            check_pairs(subjects, pairs, self.quadruples, self.seed)
            found: dict[str, dict[str, np.ndarray]] = {}
            with ShowProgress("models") as show:
                for done, subject in enumerate(subjects):
                    place = Event("geometry", done, 0, len(subjects), 0.0, subject.name)
                    found[subject.name] = self._measure(subject, device, partial(tell, show, place))
        summary = {
            "tasks": list(pairs),
            "pairs": source,
            "quadruples": self.quadruples,
            "seed": self.seed,
            "models": [summarize(subject, found[subject.name], self.layers) for subject in subjects],
            "ratios": [self._ratios(subjects[0], other, found) for other in subjects[1:]],
            "files": [str(path) for path in self._write(found, pairs)],
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
                f"`--quadruples` must be 1 or more, `--seed` 0 or more, got {self.quadruples}, {self.seed}; raise it."
            )
        if self.figures is not None:
            if len(self.models) > 2:
                raise ValueError(
                    f"`--figures` must come with one or two models, got {len(self.models)}; draw them two at a time."
                )
            if self.figures.exists() and not self.figures.is_dir():
                raise ValueError(f"`--figures` must be a folder, got the file {str(self.figures)!r}; name another.")
            with house_style():  # is matplotlib there? Better noticed before the work than after it
                pass
        if self.output is not None and (self.output.suffix != ".safetensors" or self.output.is_dir()):
            raise ValueError(f"`--output` must be a .safetensors file, got {str(self.output)!r}; name one.")

    def _open(self, model: str, name: str, pairs: Pairs) -> "Subject":
        config = load_config(model)
        deepest, wanted = config.num_hidden_layers, " ".join(map(str, self.layers))
        if not all(0 <= layer <= deepest for layer in self.layers):
            raise ValueError(f"`--layers` must be of 0 to {deepest} for {model}, got {wanted}; choose among these.")
        subject, room = load_tokenizer(model, name), config.vocab_size
        if subject is None:
            encoding = load_encoding(self.vocabulary or default_vocabulary())
            subject = Subject(name, model, "GPT-2's BPE", encoding.n_vocab, encoding.encode, encoding.decode)
            room = MOST_PADDING  # a model with many more tokens has another vocabulary
        if not 0 <= config.vocab_size - subject.n_vocab <= room:
            raise ValueError(
                f"a vocabulary must fit the {config.vocab_size} tokens of {model}, got {subject.vocabulary} with "
                f"{subject.n_vocab}; save the model's own tokenizer beside it, or name its BPE (--vocabulary)."
            )
        known = {task: [pair for pair in both if all(map(subject.spell, pair))] for task, both in pairs.items()}
        return replace(subject, pairs=known)

    def _measure(self, subject: "Subject", device: str, progress: Progress) -> dict[str, np.ndarray]:
        progress(0.0, "loading")
        with loading(subject.model):
            model = load_model(Path(subject.model)).float()
        settings: dict[str, Any] = {"quadruples": self.quadruples, "seed": self.seed}
        share = 0.5 if self.layers else 1.0
        arrays = embedding.measure_embedding(
            embedding.embedding_of(model, tokens=subject.n_vocab),
            subject.pairs,
            subject,
            progress=lambda fraction, message="", /: progress(share * fraction, message),
            **settings,
        )
        arrays |= spelt_neighbors(arrays, subject)
        if self.layers:
            arrays |= layers.measure_layers(
                model,
                subject.pairs,
                subject,
                layers=self.layers,
                device=device,
                progress=lambda fraction, message="", /: progress(share + (1 - share) * fraction, message),
                **settings,
            )
        return arrays

    def _ratios(self, first: "Subject", other: "Subject", found: Mapping[str, Arrays]) -> dict[str, Any]:
        """Compare a model with the first on the same quadruples, where the same words are the same tokens."""
        head = {"model": other.name, "to": first.name}
        if first.spell_pairs() != other.spell_pairs():
            notice(f"{first.name} and {other.name} have different vocabularies; their losses are not compared.")
            return {**head, "places": None}
        arms = as_arms(found[first.name], found[other.name])
        ratios: dict[str, dict[str, Interval]] = {}
        for task in first.pairs:
            for place, (losses, shared) in places_of(task, self.layers).items():
                both = compare(arms, losses, f"{shared}/pairs")
                assert both is not None  # same tokens, same draws
                ratios.setdefault(place, {})[task] = both.between[0].ratio
        return {**head, "places": ratios}

    def _write(self, found: Mapping[str, Arrays], pairs: Pairs) -> Iterator[Path]:
        with needs("run"):
            from safetensors.numpy import save

        if self.output is not None:
            arrays = {f"{name}/{key}": np.array(one) for name, some in found.items() for key, one in some.items()}
            header = {"models": to_json(list(found)), "quadruples": str(self.quadruples), "seed": str(self.seed)}
            write_atomically(self.output, save(arrays, metadata=header))
            yield self.output
        if self.figures is not None:
            with house_style():
                drawn = draw(found, list(pairs), tuple(dict.fromkeys(self.layers)))
            for name, figure in drawn.items():
                path = self.figures / f"{name}.png"
                write_atomically(path, to_png(figure))
                yield path


def tell(show: Callable[[Event], None], place: Event, fraction: float, message: str = "", /) -> None:
    """Tell how far the model at this place is."""
    within = (place.done + fraction) / place.total
    show(replace(place, fraction=within, message=f"{place.message}: {message}" if message else place.message))


def spelt_neighbors(arrays: Arrays, subject: Subject) -> dict[str, np.ndarray]:
    """Keep the neighbors of those of `QUERIES` that are a token, and not only end in one."""
    last = {word: subject.spell(f" {word}")[-1:] for word in embedding.QUERIES}
    kept = [bool(token) and subject.decode(token).strip() == word for word, token in last.items()]
    place = f"{embedding.CENTERS}/neighbors"
    texts = [row for row, keep in zip(embedding.from_text_array(arrays[f"{place}/words"]), kept, strict=True) if keep]
    found = {f"{place}/{what}": arrays[f"{place}/{what}"][kept] for what in ("distances", "tokens")}
    return {**found, f"{place}/words": embedding.to_text_array(texts)}


def places_of(task: str, inside: Sequence[int]) -> dict[str, tuple[str, str]]:
    """Return, by place in a model, where a task's losses are kept, and what its places share."""
    within = {f"layer {layer}": (f"{layers.MEASURE}/{task}/{layer}", f"{layers.MEASURE}/{task}") for layer in inside}
    return {"embedding": (f"{embedding.MEASURE}/{task}", f"{embedding.MEASURE}/{task}"), **within}


def as_arms(*found: Arrays) -> dict[ArmCell, CellResult]:
    """Let the first model stand for the standard arm of an experiment, the second for the harmonic one."""
    return {ArmCell(arm, 0): CellResult(arrays=one) for arm, one in zip((STANDARD, HARMONIC), found, strict=False)}


def summarize(subject: Subject, arrays: Arrays, inside: Sequence[int]) -> dict[str, Any]:
    """Return one model's numbers as plain values and intervals."""
    places: dict[str, dict[str, dict[str, Any]]] = {}
    for task in subject.pairs:
        for place, (losses, shared) in places_of(task, inside).items():
            quadruples, pairs, _ = arrays[f"{shared}/counts"].tolist()
            against = embedding.comparison(arrays[f"{losses}/against_null"])
            numbers = {"word_pairs": pairs, "quadruples": quadruples, "median_loss": against.first}
            numbers |= {"shuffled": against.second, "ratio_to_shuffled": against.ratio}
            if f"{losses}/cosine" in arrays:
                (every, shuffled), (alone, _) = arrays[f"{losses}/cosine"].tolist()
                cosines = {"cosine": every, "cosine_shuffled": shuffled, "cosine_one_token": alone}
                numbers |= {name: Interval(*found) for name, found in cosines.items()}
                one_token = zip(("losses", "null"), arrays[f"{shared}/one_token"], strict=True)
                real, null = (arrays[f"{losses}/{what}"][rows] for what, rows in one_token)
                enough = min(len(real), len(null)) >= layers.FEWEST
                numbers["ratio_one_token"] = np.median(real) / np.median(null) if enough else None
            places.setdefault(place, {})[task] = numbers
    norms, explained, shape = (
        arrays[f"{embedding.CENTERS}/vocabulary/{what}"] for what in ("norms", "explained", "shape")
    )
    counts = [count for count in (2, 10, 100) if count <= len(explained)]
    return {
        "name": subject.name,
        "model": subject.model,
        "vocabulary": subject.vocabulary,
        "tokens": subject.n_vocab,
        "places": places,
        "centers": {
            "median_length": norms[50],
            **{f"length_at_{percent}_percent": norms[percent] for percent in (5, 95)},
            **{f"variance_in_{count}_components": explained[count - 1] for count in counts},
            "participation_ratio": shape[0],
            "effective_rank": shape[1],
            "share_of_common_mean": shape[2],
        },
        # As Python writes them: blanks show, and no text is taken for a number.
        "neighbors": {
            word: list(map(repr, near))
            for word, *near in embedding.from_text_array(arrays[f"{embedding.CENTERS}/neighbors/words"])
        },
    }


ROWS = {
    "median_loss": "{place}: median loss",
    "shuffled": "  of shuffled pairs",
    "ratio_to_shuffled": "  ratio of the two",
    "ratio_one_token": "  ratio among words of one token",
    "cosine": "  mean cosine of steps",
    "cosine_shuffled": "  of shuffled pairs",
    "cosine_one_token": "  of words of one token",
}


def print_tables(summary: Mapping[str, Any]) -> None:
    """Print a table a task, one of the token centers and one of neighbors, models across."""
    models, ratios = summary["models"], [one for one in summary["ratios"] if one["places"] is not None]
    names = [escape(model["name"]) for model in models]
    # A pipe has no width of its own, and a narrower table would lose its numbers.
    console = Console() if sys.stdout.isatty() else Console(width=max(120, 40 * (1 + len(names) + len(ratios))))
    beside = [escape(f"{one['model']} / {one['to']}") for one in ratios]
    for task in summary["tasks"]:
        table = Table("", *names, *beside, title=task, title_justify="left")
        counted = [model["places"]["embedding"][task] for model in models]
        table.add_row("word pairs, quadruples", *(f"{one['word_pairs']}, {one['quadruples']}" for one in counted))
        for place in models[0]["places"]:
            found = [model["places"][place][task] for model in models]
            for key in (key for key in ROWS if key in found[0]):
                label = ROWS[key].format(place=place)
                across = [one["places"][place][task] for one in ratios] if key == "median_loss" else []
                table.add_row(label, *(_shown(one[key]) for one in found), *map(_shown, across))
        console.print(table)
    table = Table("", *names, title="Token centers: the rows of the embedding", title_justify="left")
    table.add_row("vocabulary", *(f"{model['vocabulary']}, {model['tokens']:,} tokens" for model in models))
    for key in dict.fromkeys(key for model in models for key in model["centers"]):
        table.add_row(key.replace("_", " "), *(_shown(model["centers"].get(key)) for model in models))
    console.print(table)
    words = [word for word in embedding.QUERIES if all(word in model["neighbors"] for model in models)][:SHOWN_WORDS]
    if words:
        table = Table("", *names, title="Nearest tokens", title_justify="left")
        for word in words:
            table.add_row(word, *(escape("  ".join(model["neighbors"][word])) for model in models))
        console.print(table)
    if len(models) > 1:
        print("A loss is in units of its own vocabulary's spread; in the ratio to shuffled pairs the unit cancels.")
    for file in summary["files"]:
        print(file)


def _shown(value: Any) -> str:
    if isinstance(value, Interval):
        return str(value) if np.isfinite(value).all() else "unknown"
    return "" if value is None else f"{value:.3g}"


def draw(found: Mapping[str, Arrays], tasks: Sequence[str], inside: tuple[int, ...]) -> "dict[str, Figure]":
    """Draw one or two models in the colors of the experiments' arms, under their own names."""
    with needs("figures"):
        from matplotlib.text import Text

    results = as_arms(*found.values())
    first = {cell.arm: result for cell, result in results.items()}
    figures = {"parallelogram_cdf": parallelogram_figures.draw_distributions(tasks, results)}
    for rank in embedding.RANKS:
        figures[f"parallelogram_{rank}"] = parallelogram_figures.draw_ranked(tasks, first, rank)
    if inside:
        task = layers.PAPERS_TASK if layers.PAPERS_TASK in tasks else tasks[0]
        figures[f"{task}_steps"] = layers.draw_steps(LanguageSpec(layers=inside), task, first)
    names = dict(zip(first, map(_shortened, found), strict=True))
    arms = re.compile(rf"\b({'|'.join(names)})\b")
    for figure in figures.values():
        # Titles and legends say an arm's name; what else is written into a panel are words, which may be one.
        titles = [text for axes in figure.axes for text in axes.get_children() if text not in axes.texts]
        for text in [*titles, *(text for legend in figure.legends for text in legend.get_texts())]:
            if isinstance(text, Text):
                text.set_text(arms.sub(lambda arm: names[arm[0]], text.get_text()))
    return figures


def _shortened(name: str) -> str:
    half = LONGEST // 2
    return name if len(name) <= LONGEST else f"{name[:half]}…{name[-half:]}"
