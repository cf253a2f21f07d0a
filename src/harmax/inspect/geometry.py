"""The geometry of a language model in one piece: measure it, summarize it, compare two models, draw them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.analysis import Interval
from harmax.figures import HEAD_STYLES
from harmax.inspect import embedding, word_figures
from harmax.inspect.embedding import Arrays, Pairs, Progress, silent
from harmax.inspect.language_models import Vocabulary, load_language_model, loading
from harmax.inspect.layers import FEWEST, measure_layers
from harmax.inspect.layers import MEASURE as LAYERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = tuple(HEAD_STYLES[head].color for head in ("cross_entropy", "harmonic"))
STEPS_OF = "capitalize"  # the task whose steps are drawn, as in the paper, if it was measured
LONGEST = 28  # letters of a model's name in a figure


@dataclass(frozen=True)
class MeasuredModel:
    """A language model after measuring."""

    name: str
    """Short, and different from other models' names."""
    model: str
    """A folder, or a name on the Hugging Face Hub."""
    vocabulary: str
    """Where the tokenizer comes from, in words."""
    tokens: int
    arrays: Arrays
    """What `measure_embedding` and `measure_layers` returned."""
    spelling: Any
    """The tokens of the words. Models are only compared if these are equal."""


def measure_model(
    model: str,
    vocabulary: Vocabulary,
    pairs: Pairs,
    *,
    name: str | None = None,
    layers: Sequence[int] = (),
    quadruples: int = 10_000,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress = silent,
) -> MeasuredModel:
    """Load a causal language model and measure its embedding, and some of its layers.

    Args:
        model: a folder, or a name on the Hugging Face Hub.
        vocabulary: the model's tokenizer, as `load_vocabulary` returns it.
        pairs: word pairs by task; the vocabulary must have every word.
        name: for tables and figures. None: `model`.
        layers: which `hidden_states` to measure as well. Then the whole vocabulary passes through the model.
        quadruples: at most this many per task.
        seed: of the draws.
        device: where the layers are computed.
        progress: called with the fraction that is done.
    """
    progress(0.0, "loading")
    with loading(model):
        loaded = load_language_model(model).float()
    settings: dict[str, Any] = {"quadruples": quadruples, "seed": seed}
    share = 0.5 if layers else 1.0
    arrays = embedding.measure_embedding(
        embedding.embedding_of(loaded, tokens=vocabulary.n_vocab),
        pairs,
        vocabulary,
        progress=lambda fraction, message="", /: progress(share * fraction, message),
        **settings,
    )
    arrays |= _whole_words(arrays, vocabulary)
    if layers:
        arrays |= measure_layers(
            loaded,
            pairs,
            vocabulary,
            layers=layers,
            device=device,
            progress=lambda fraction, message="", /: progress(share + (1 - share) * fraction, message),
            **settings,
        )
    spelling = vocabulary.spell_pairs(pairs)
    return MeasuredModel(name or model, model, vocabulary.origin, vocabulary.n_vocab, arrays, spelling)


def _whole_words(arrays: Arrays, vocabulary: Vocabulary) -> dict[str, np.ndarray]:
    """Keep the neighbors of those queries that are one whole token."""
    last = {word: vocabulary.spell(f" {word}")[-1:] for word in embedding.QUERIES}
    kept = [bool(token) and vocabulary.decode(token).strip() == word for word, token in last.items()]
    place = f"{embedding.CENTERS}/neighbors"
    texts = [row for row, keep in zip(embedding.from_text_array(arrays[f"{place}/words"]), kept, strict=True) if keep]
    found = {f"{place}/{what}": arrays[f"{place}/{what}"][kept] for what in ("distances", "tokens")}
    return {**found, f"{place}/words": embedding.to_text_array(texts)}


def summarize_model(measured: MeasuredModel, tasks: Sequence[str], layers: Sequence[int] = ()) -> dict[str, Any]:
    """Return a measured model's numbers as plain values and intervals (95 %, over word pairs).

    Args:
        measured: the model.
        tasks: those to summarize.
        layers: those to summarize beside the embedding.

    Returns:
        `places` holds the losses by place in the model ("embedding", "layer 6") and task; `centers` describes the
        cloud of token centers; `neighbors` lists the tokens nearest to some words, as Python literals.
    """
    places: dict[str, dict[str, dict[str, Any]]] = {}
    for task in tasks:
        for place, keys in _places(task, layers).items():
            places.setdefault(place, {})[task] = _summarize_losses(measured.arrays, *keys)
    words = embedding.from_text_array(measured.arrays[f"{embedding.CENTERS}/neighbors/words"])
    return {
        "name": measured.name,
        "model": measured.model,
        "vocabulary": measured.vocabulary,
        "tokens": measured.tokens,
        "places": places,
        "centers": _summarize_centers(measured.arrays),
        # Python literals, so that spaces are visible and no text looks like a number.
        "neighbors": {word: list(map(repr, near)) for word, *near in words},
    }


def _places(task: str, inside: Sequence[int]) -> dict[str, tuple[str, str]]:
    """Return, by place in a model, the key of a task's losses and the key that all of a measure's places share."""
    outer, inner = f"{embedding.MEASURE}/{task}", f"{LAYERS}/{task}"
    return {"embedding": (outer, outer), **{f"layer {layer}": (f"{inner}/{layer}", inner) for layer in inside}}


def _summarize_losses(arrays: Arrays, losses: str, shared: str) -> dict[str, Any]:
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
        enough = min(len(real), len(null)) >= FEWEST
        numbers["ratio_one_token"] = np.median(real) / np.median(null) if enough else None
    return numbers


def _summarize_centers(arrays: Arrays) -> dict[str, float]:
    norms, explained, shape = (
        arrays[f"{embedding.CENTERS}/vocabulary/{what}"] for what in ("norms", "explained", "shape")
    )
    counts = [count for count in (2, 10, 100) if count <= len(explained)]
    return {
        "median_length": norms[50],
        **{f"length_at_{percent}_percent": norms[percent] for percent in (5, 95)},
        **{f"variance_in_{count}_components": explained[count - 1] for count in counts},
        "participation_ratio": shape[0],
        "effective_rank": shape[1],
        "share_of_common_mean": shape[2],
    }


def compare_measured(
    first: MeasuredModel, other: MeasuredModel, tasks: Sequence[str], layers: Sequence[int] = ()
) -> dict[str, dict[str, Interval]] | None:
    """Return the ratio of the other model's median loss to the first one's, by place and task.

    None if the two have different vocabularies: then they were measured on different quadruples.
    """
    if first.spelling != other.spelling:
        return None
    ratios: dict[str, dict[str, Interval]] = {}
    for task in tasks:
        for place, (losses, shared) in _places(task, layers).items():
            found = embedding.compare_models(other.arrays, first.arrays, losses, f"{shared}/pairs")
            if found is None:
                return None
            ratios.setdefault(place, {})[task] = found.ratio
    return ratios


def draw_measured(
    models: Sequence[MeasuredModel], tasks: Sequence[str], layers: Sequence[int] = ()
) -> "dict[str, Figure]":
    """Draw one or two measured models: losses, quadrilaterals, token centers, and with `layers` steps and cosines."""
    if not 1 <= len(models) <= len(COLORS):
        raise ValueError(f"`models` must be one or two, got {len(models)}; draw two at a time.")
    shown = [
        word_figures.LabeledModel(_shortened(one.name), color, one.arrays)
        for one, color in zip(models, COLORS, strict=False)
    ]
    figures = {"parallelogram_cdf": word_figures.draw_distributions(shown, tasks)}
    for rank in embedding.RANKS:
        figures[f"parallelogram_{rank}"] = word_figures.draw_ranked(shown, tasks, rank)
    figures["token_centers"] = word_figures.draw_token_centers(shown)
    if layers:
        task = STEPS_OF if STEPS_OF in tasks else tasks[0]
        figures[f"{task}_steps"] = word_figures.draw_steps(shown, task, layers)
        figures["layers_tasks"] = word_figures.draw_layer_tasks(shown, tasks, layers)
    return figures


def _shortened(name: str) -> str:
    half = LONGEST // 2
    return name if len(name) <= LONGEST else f"{name[:half]}…{name[-half:]}"
