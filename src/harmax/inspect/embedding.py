"""Geometry of a token embedding: parallelograms of word pairs, and the cloud of all token centers.

`measure_embedding` measures an embedding once and returns plain arrays. Figures and summaries need nothing else.

    parallelograms/<task>/losses        (Q,) float32, in the paper's setting, in the order of the draws
    parallelograms/<task>/null          (Q,) float32, the same for shuffled pairs, row by row
    parallelograms/<task>/pairs         (Q, 2) int32, indices of the two word pairs; intervals resample these
    parallelograms/<task>/counts        (3,) int32: number of quadruples, of distinct word pairs, of distinct tokens
    parallelograms/<task>/against_null  (5, 3) float32: `LossComparison` of losses and null
    parallelograms/<task>/quantiles     (2, 32, 101) float32: losses and null under each of `SETTINGS`
    parallelograms/<task>/shapes        (Q, 2) float16: `ParallelogramShape` of each quadruple, in the paper's plane
    parallelograms/<task>/ranked_losses (3, N) float32: of the best, the median and the worst quadruples
    parallelograms/<task>/ranked_plane  (3, N, 4, 2) float32: their corners along two components, in units of sigma
    parallelograms/<task>/ranked_tokens (3, N, 4) int32
    parallelograms/<task>/ranked_words  their words, as text
    centers/vocabulary/norms            (101,) float32, quantiles of the tokens' lengths
    centers/vocabulary/explained        (R,) float32, share of the variance in 1, 2, ... components
    centers/vocabulary/shape            (3,) float32: participation ratio, effective rank, share of the common mean
    centers/neighbors/distances         (24, 5) float32, of the tokens nearest to each of `QUERIES`
    centers/neighbors/tokens            (24, 5) int32
    centers/neighbors/words             each query and the texts of those tokens

Twelve tasks of 10,000 quadruples take less than 2.7 MiB.
"""

# V tokens, D features, R components, P word pairs, Q quadruples, N shown ones

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from harmax.analysis import (
    PCA,
    SETTINGS,
    Interval,
    LossComparison,
    ParallelogramSpace,
    Quadruples,
    compare_losses,
    nearest_tokens,
    null_quadruples,
    parallelogram_space,
    pca,
    ranked_quadruples,
    sample_quadruples,
    summarize_centers,
    token_norms,
)
from harmax.data.words import Encoding, encode_pairs, encode_words

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Arrays = Mapping[str, np.ndarray]
"""Measured arrays by key, as a measuring function returns them."""

Pairs = Mapping[str, Sequence[tuple[str, str]]]
"""Word pairs by task."""

MEASURE, CENTERS = "parallelograms", "centers"
RANKS = {"best": 0.0, "median": 0.5, "worst": 1.0}
"""Which quadruples are kept for figures: names, and quantiles in the ranking by loss."""
SHOWN = 5  # quadruples per rank
LEVELS = np.linspace(0, 1, 101)
NEIGHBORS = 5
_ASKED = """
king woman Paris Germany England dog water house red three Monday July
he his is was ran good bigger quickly not because without scientist"""
QUERIES = tuple(_ASKED.split())
"""Words whose nearest tokens are listed. A space precedes each, as within a sentence."""


class Progress(Protocol):
    """A function that is called with the fraction of the work that is done, and a few words."""

    def __call__(self, fraction: float, message: str = "", /) -> None:
        """Report progress."""


def silent(fraction: float, message: str = "", /) -> None:
    """Report nothing."""


def embedding_of(model: "PreTrainedModel", *, tokens: int | None = None) -> np.ndarray:
    """Return the input embedding of a causal language model of transformers, (V, D) float32.

    Args:
        model: on any device, in any precision.
        tokens: V, if the model's `vocab_size` also counts padding rows. None: `vocab_size`.
    """
    weight: Any = model.get_input_embeddings().weight
    rows = model.config.vocab_size if tokens is None else tokens
    return np.asarray(weight[:rows].detach().float().cpu().numpy())


def measure_embedding(
    embedding_VD: np.ndarray,
    pairs: Pairs,
    encoding: Encoding,
    *,
    quadruples: int = 10_000,
    seed: int = 0,
    progress: Progress = silent,
) -> dict[str, np.ndarray]:
    """Measure an embedding: the parallelograms of every task, and the cloud of all tokens.

    Args:
        embedding_VD: one row per token, without padding rows.
        pairs: word pairs by task.
        encoding: the model's tokenizer. If it has `decode`, the texts of neighboring tokens are kept.
        quadruples: at most this many per task. The paper has 10,000.
        seed: of the draws. With one vocabulary and one seed, two embeddings are measured on the same quadruples.
        progress: called with the fraction that is done.

    Returns:
        Arrays by key, as listed at the top of this module.
    """
    x_VD = np.asarray(embedding_VD)
    progress(0.0, "principal components of the embedding")
    fitted = pca(x_VD)
    arrays = _under(CENTERS, _measure_centers(x_VD, fitted, encoding))
    for done, (task, words) in enumerate(pairs.items()):
        progress((1 + done) / (1 + len(pairs)), f"parallelograms of {task}")
        drawn = draw_quadruples(encode_pairs(words, encoding), quadruples, seed)
        space = parallelogram_space(x_VD, drawn.real.tokens, fitted=fitted)
        found = {**count_quadruples(drawn.real), **measure_losses(space, drawn), **_rank(space, drawn.real, words)}
        found["quantiles"] = _quantiles(space, drawn)
        found["shapes"] = np.stack(space.shapes(drawn.real), axis=1).astype(np.float16)
        arrays |= _under(f"{MEASURE}/{task}", found)
    progress(1.0)
    return arrays


class Drawn(NamedTuple):
    """Quadruples of a task, and the same quadruples with shuffled partners."""

    real: Quadruples
    null: Quadruples


def draw_quadruples(pairs_P2: np.ndarray, count: int, seed: int) -> Drawn:
    """Draw quadruples of four different points from pairs of points, and their null."""
    real = sample_quadruples(pairs_P2, count, seed)
    return Drawn(real, null_quadruples(real, pairs_P2, seed))


def count_quadruples(real: Quadruples) -> dict[str, np.ndarray]:
    """Return the word pairs of each quadruple, and the numbers of quadruples, pairs and points."""
    counts = [len(real.tokens), len(np.unique(real.pairs)), len(np.unique(real.tokens))]
    return {"pairs": real.pairs.astype(np.int32), "counts": np.array(counts, dtype=np.int32)}


def measure_losses(space: ParallelogramSpace, drawn: Drawn) -> dict[str, np.ndarray]:
    """Return the losses of the quadruples and of their null in the paper's setting, and their comparison."""
    losses, null = (space.losses(one).astype(np.float32) for one in drawn)
    return {
        "losses": losses,
        "null": null,
        "against_null": np.array(compare_losses(losses, null, drawn.real), dtype=np.float32),
    }


def comparison(array: np.ndarray) -> LossComparison:
    """Read a comparison back, as `against_null` holds it."""
    return LossComparison(*(Interval(*map(float, row)) for row in array))


def to_text_array(texts: Any) -> np.ndarray:
    """Return (nested) lists of texts as an array of bytes, which can be stored like any other array.

    >>> from_text_array(to_text_array([["naïve", "a b"]]))
    [['naïve', 'a b']]
    """
    return np.frombuffer(json.dumps(texts).encode(), dtype=np.uint8)


def from_text_array(array: np.ndarray) -> Any:
    """Read the texts of `to_text_array` back."""
    return json.loads(array.tobytes())


def compare_models(first: Arrays, second: Arrays, place: str, pairs: str, *, draws: int = 500) -> LossComparison | None:
    """Compare the losses of two measured models on the same quadruples; None if their quadruples differ.

    Args:
        first: arrays of one model; the ratio has its median above.
        second: arrays of the other model.
        place: where the losses are, for example "parallelograms/antonym" or "layers/antonym/6".
        pairs: the key of the quadruples' word pairs, for example "layers/antonym/pairs".
        draws: of the bootstrap over word pairs.
    """
    if not np.array_equal(first[pairs], second[pairs]):
        return None
    # The comparison needs no tokens, only which quadruples share a word pair.
    quadruples = Quadruples(np.zeros((len(first[pairs]), 4), dtype=np.int64), first[pairs])
    return compare_losses(first[f"{place}/losses"], second[f"{place}/losses"], quadruples, draws=draws)


def measured_tasks(arrays: Arrays, measure: str = MEASURE) -> list[str]:
    """Return the tasks of which the arrays hold losses, in their order.

    >>> measured_tasks({"parallelograms/antonym/losses": np.ones(3), "centers/vocabulary/norms": np.ones(101)})
    ['antonym']
    """
    keys = (key.split("/") for key in arrays)
    return list(dict.fromkeys(parts[1] for parts in keys if parts[0] == measure and parts[-1] == "losses"))


def _quantiles(space: ParallelogramSpace, drawn: Drawn) -> np.ndarray:
    found = [[np.quantile(space.losses(one, setting), LEVELS) for setting in SETTINGS] for one in drawn]
    return np.array(found, dtype=np.float32)


def _rank(space: ParallelogramSpace, real: Quadruples, words: Sequence[tuple[str, str]]) -> dict[str, np.ndarray]:
    ranked = [ranked_quadruples(space, real, count=SHOWN, quantile=quantile) for quantile in RANKS.values()]
    # In these units the gap of a drawn quadrilateral is its loss, and figures of two embeddings are comparable.
    sigma = np.sqrt(space.squares["vocabulary", "vocabulary"][:2].sum())
    texts = [[[*words[first], *words[second]] for first, second in real.pairs[one.rows]] for one in ranked]
    return {
        "ranked_losses": np.stack([one.losses for one in ranked]).astype(np.float32),
        "ranked_plane": np.stack([one.plane / sigma for one in ranked]).astype(np.float32),
        "ranked_tokens": np.stack([one.tokens for one in ranked]).astype(np.int32),
        "ranked_words": to_text_array(texts),
    }


def _measure_centers(x_VD: np.ndarray, fitted: PCA, encoding: Encoding) -> dict[str, np.ndarray]:
    cloud = summarize_centers(x_VD, fitted=fitted)
    near = nearest_tokens(x_VD, encode_words([f" {word}" for word in QUERIES], encoding), NEIGHBORS)
    decode = getattr(encoding, "decode", None)
    texts = [[decode([token]) if decode else str(token) for token in row] for row in near.tokens.tolist()]
    shape = [cloud.participation_ratio, cloud.effective_rank, cloud.mean_share]
    return {
        "vocabulary/norms": np.quantile(token_norms(x_VD), LEVELS).astype(np.float32),
        "vocabulary/explained": cloud.explained.astype(np.float32),
        "vocabulary/shape": np.array(shape, dtype=np.float32),
        "neighbors/distances": near.distances.astype(np.float32),
        "neighbors/tokens": near.tokens.astype(np.int32),
        "neighbors/words": to_text_array([[word, *row] for word, row in zip(QUERIES, texts, strict=True)]),
    }


def _under(place: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{place}/{what}": array for what, array in arrays.items()}
