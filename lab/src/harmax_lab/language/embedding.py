"""What an embedding's rows show: parallelograms of word pairs under 32 settings, a null, and the cloud of all tokens.

`measure_embedding` looks at a trained embedding once and leaves plain arrays; figures and summaries see nothing else.

    parallelograms/<task>/losses        (Q,) float32, the paper's setting, in the order in which they were drawn
    parallelograms/<task>/null          (Q,) float32, of the shuffled pairs, row for row
    parallelograms/<task>/pairs         (Q, 2) int32, places of the two word pairs: what an interval draws anew
    parallelograms/<task>/counts        (3,) int32: quadruples, different word pairs and different tokens in them
    parallelograms/<task>/against_null  (5, 3) float32: `LossComparison` of losses and null
    parallelograms/<task>/quantiles     (2, 32, 101) float32: losses and null under each of `SETTINGS`
    parallelograms/<task>/ranked_losses (3, N) float32: of the best, the usual and the worst quadruples
    parallelograms/<task>/ranked_plane  (3, N, 4, 2) float32: their corners along two components, in units of sigma
    parallelograms/<task>/ranked_tokens (3, N, 4) int32
    parallelograms/<task>/ranked_words  their words, as text
    centers/vocabulary/norms            (101,) float32, quantiles of the tokens' lengths
    centers/vocabulary/explained        (R,) float32, share of the variance in 1, 2, ... components
    centers/vocabulary/shape            (3,) float32: participation ratio, effective rank, share of the common mean
    centers/neighbors/distances        (24, 5) float32, of the nearest tokens of `QUERIES`
    centers/neighbors/tokens           (24, 5) int32
    centers/neighbors/words            the words asked for and those tokens, as text

Twelve tasks of 10,000 quadruples take less than 2.2 MiB.
"""

# V tokens, D features, R components, P word pairs, Q quadruples, N shown ones

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

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
from harmax_lab.kit.experiment import Progress
from harmax_lab.kit.store import CellResult
from harmax_lab.language.spec import HARMONIC, STANDARD, ArmCell

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Results = Mapping[ArmCell, CellResult]

MEASURE, CENTERS = "parallelograms", "centers"
RANKS = {"best": 0.0, "median": 0.5, "worst": 1.0}
"""Places in the ranking by loss whose quadruples are kept, and their quantiles."""
SHOWN = 3  # quadruples of each place
LEVELS = np.linspace(0, 1, 101)
NEIGHBOURS = 5
_ASKED = """
king woman Paris Germany England dog water house red three Monday July
he his is was ran good bigger quickly not because without scientist"""
QUERIES = tuple(_ASKED.split())
"""Words whose neighbors are listed, looked up with a blank before them, as they stand within a sentence."""


def embedding_of(model: "PreTrainedModel", *, tokens: int | None = None) -> np.ndarray:
    """Return the input embedding of a causal model of transformers, (V, D) float32.

    Args:
        model: on any device, in any precision.
        tokens: V, where the model's `vocab_size` counts rows that only pad the vocabulary; None: `vocab_size`.
    """
    weight: Any = model.get_input_embeddings().weight
    rows = model.config.vocab_size if tokens is None else tokens
    return np.asarray(weight[:rows].detach().float().cpu().numpy())


def measure_embedding(
    embedding_VD: np.ndarray,
    pairs: Mapping[str, Sequence[tuple[str, str]]],
    encoding: Encoding,
    *,
    quadruples: int,
    seed: int,
    progress: Progress | None = None,
) -> dict[str, np.ndarray]:
    """Measure an embedding: the parallelograms of every task, and the cloud of all tokens.

    Args:
        embedding_VD: one row a token, without rows of padding; of any model.
        pairs: word pairs by task.
        encoding: of the model; texts of tokens are kept where it can `decode` them.
        quadruples: how many a task at most; the paper has 10,000.
        seed: of the draws. Two embeddings of one vocabulary are looked at on the same quadruples if it is the same.
        progress: told how far this is.

    Returns:
        Arrays by key, as listed above.
    """
    x_VD = np.asarray(embedding_VD)
    tell = progress or (lambda fraction, message="", /: None)
    tell(0.0, "principal components of the embedding")
    fitted = pca(x_VD)
    arrays = _under(CENTERS, _measure_centers(x_VD, fitted, encoding))
    for done, (task, words) in enumerate(pairs.items()):
        tell((1 + done) / (1 + len(pairs)), f"parallelograms of {task}")
        drawn = draw_quadruples(encode_pairs(words, encoding), quadruples, seed)
        space = parallelogram_space(x_VD, drawn.real.tokens, fitted=fitted)
        found = {**count_quadruples(drawn.real), **measure_losses(space, drawn), **_rank(space, drawn.real, words)}
        found["quantiles"] = _quantiles(space, drawn)
        arrays |= _under(f"{MEASURE}/{task}", found)
    tell(1.0)
    return arrays


class Drawn(NamedTuple):
    """Quadruples of a task, and the same with shuffled partners."""

    real: Quadruples
    null: Quadruples


def draw_quadruples(pairs_P2: np.ndarray, count: int, seed: int) -> Drawn:
    """Draw quadruples of four different points from pairs of points, and their null."""
    real = sample_quadruples(pairs_P2, count, seed)
    return Drawn(real, null_quadruples(real, pairs_P2, seed))


def count_quadruples(real: Quadruples) -> dict[str, np.ndarray]:
    """Return which pairs each quadruple is of, and how many of each thing there are."""
    counts = [len(real.tokens), len(np.unique(real.pairs)), len(np.unique(real.tokens))]
    return {"pairs": real.pairs.astype(np.int32), "counts": np.array(counts, dtype=np.int32)}


def measure_losses(space: ParallelogramSpace, drawn: Drawn) -> dict[str, np.ndarray]:
    """Return the losses of quadruples and null in the paper's setting, and how they compare."""
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
    """Keep (nested) lists of texts as an array of bytes, which every store can hold.

    >>> from_text_array(to_text_array([["naïve", "a b"]]))
    [['naïve', 'a b']]
    """
    return np.frombuffer(json.dumps(texts).encode(), dtype=np.uint8)


def from_text_array(array: np.ndarray) -> Any:
    """Read the texts of `to_text_array` back."""
    return json.loads(array.tobytes())


def tasks_of(results: Results, measure: str = MEASURE) -> list[str]:
    """Return the tasks that were measured, in their order."""
    keys = (key.split("/") for result in results.values() for key in result.arrays)
    return list(dict.fromkeys(parts[1] for parts in keys if parts[0] == measure and parts[-1] == "losses"))


def by_seed(results: Results, arm: str, key: str) -> dict[int, Mapping[str, np.ndarray]]:
    """Return the arrays of one arm's cells that hold a key, by seed."""
    return {cell.seed: found.arrays for cell, found in results.items() if cell.arm == arm and key in found.arrays}


def settings_ratio(results: Results) -> dict[str, np.ndarray]:
    """Return, by task, (2, 32): harmonic median by standard median in each setting, as it is and by the null's.

    The first row compares losses, the second losses divided by the median of the arm's own null. With several seeds it
    is the geometric mean of the seeds' ratios.
    """
    ratios = {}
    for task in tasks_of(results):
        key = f"{MEASURE}/{task}/quantiles"
        standard, harmonic = (by_seed(results, arm, key) for arm in (STANDARD, HARMONIC))
        both = sorted(standard.keys() & harmonic.keys())
        if not both:
            continue
        medians = [np.stack([arm[seed][key][..., 50] for seed in both]).astype(float) for arm in (harmonic, standard)]
        with np.errstate(divide="ignore", invalid="ignore"):  # an exact parallelogram has a loss of 0
            logs = np.log(medians[0]) - np.log(medians[1])
            ratios[task] = np.exp(np.stack([logs[:, 0], logs[:, 0] - logs[:, 1]], axis=1).mean(0))
    return ratios


def _quantiles(space: ParallelogramSpace, drawn: Drawn) -> np.ndarray:
    found = [[np.quantile(space.losses(one, setting), LEVELS) for setting in SETTINGS] for one in drawn]
    return np.array(found, dtype=np.float32)


def _rank(space: ParallelogramSpace, real: Quadruples, words: Sequence[tuple[str, str]]) -> dict[str, np.ndarray]:
    ranked = [ranked_quadruples(space, real, count=SHOWN, quantile=quantile) for quantile in RANKS.values()]
    # In these units the gap of a drawn quadrilateral is its loss, and two embeddings can be held side by side.
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
    near = nearest_tokens(x_VD, encode_words([f" {word}" for word in QUERIES], encoding), NEIGHBOURS)
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
