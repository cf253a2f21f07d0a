"""Geometry of word pairs inside a language model: parallelograms and parallel steps in the states of its layers.

Every word is alone in the model, without a space or a token before it. Its state in a layer is the state of its last
token. As in the embedding, the paper's setting projects on the two widest components of the whole vocabulary and
measures in units of its spread. Here the vocabulary is the states of all tokens, each alone in the model. Layer k is
`hidden_states[k]` of transformers: 0 enters the first block, and the last one has passed the final norm.

A token at the first position attends only to itself, and its state lies apart from all others (in GPT-2 far apart).
A word of one token is at the first position; the last token of a longer word is not. So every number is also given
for words of one token only.

    layers/<task>/pairs               (Q, 2) int32, as in embedding.py
    layers/<task>/counts              (3,) int32: number of quadruples, of distinct word pairs, of distinct words
    layers/<task>/one_token           (2, Q) bool: whether all four words have one token, for quadruples and null
    layers/<task>/single              (P,) bool: whether both words of a pair have one token; pairs whose words end in
                                      the same token are left out, because their states are near in any model
    layers/<task>/shown_words         the pairs to draw, as text
    layers/<task>/<k>/losses, null, against_null    as in embedding.py
    layers/<task>/<k>/cosine          (2, 2, 3) float32: all pairs, pairs of one-token words; as they are, shuffled;
                                      mean cosine between the steps of two pairs, and its 95 % interval over pairs
    layers/<task>/<k>/partners        (P, 2) float32: how far a pair's words lie apart in the paper's plane, in units of
                                      sigma; and its first word from the second word of another pair of its kind
    layers/<task>/<k>/shown_plane     (N, 2, 2) float32: both words of the pairs to draw, in units of sigma

A layer of twelve tasks takes about 1.2 MiB. The arrays that all layers share take another 1.2 MiB.
"""

# V tokens, W words, T tokens of a word, D features, P pairs, Q quadruples, N shown pairs, B draws

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from harmax.analysis import PCA, Interval, parallelogram_space, pca
from harmax.data.words import Encoding
from harmax.inspect.embedding import (
    Arrays,
    Pairs,
    Progress,
    count_quadruples,
    draw_quadruples,
    measure_losses,
    silent,
    to_text_array,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MEASURE = "layers"
TOKENS = 8192  # in the model at a time
SHOWN = 16  # pairs to draw
FEWEST = 8  # pairs of one-token words that are enough to draw alone, and to give a number of their own
DRAWS = 1000


def measure_layers(
    model: "PreTrainedModel",
    pairs: Pairs,
    encoding: Encoding,
    *,
    layers: Sequence[int],
    quadruples: int = 10_000,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress = silent,
) -> dict[str, np.ndarray]:
    """Measure the states of word pairs in some layers of a causal language model of transformers.

    The whole vocabulary passes through the model, one token per sequence. This is cheap on a GPU, and on a CPU for
    small models.

    Args:
        model: any model that returns `hidden_states`. It is moved to the device; its training mode stays as it was.
        pairs: word pairs by task.
        encoding: the model's tokenizer. If it has `n_vocab`, rows of the model beyond that are padding.
        layers: which `hidden_states`.
        quadruples: at most this many per task.
        seed: of the draws.
        device: where to compute.
        progress: called with the fraction that is done.

    Returns:
        Arrays by key, as listed at the top of this module.
    """
    deepest = model.config.num_hidden_layers
    if not layers or not all(0 <= layer <= deepest for layer in layers):
        raise ValueError(f"`layers` must be one or more of 0 to {deepest}, got {tuple(layers)}; choose among these.")
    vocabulary = min(model.config.vocab_size, getattr(encoding, "n_vocab", model.config.vocab_size))
    tasks, sequences = _spell(pairs, encoding, vocabulary)
    progress(0.0, "every token, and every word, alone in the model")
    states = {layer: (x, _fit(x, vocabulary)) for layer, x in last_states(model, sequences, layers, device).items()}
    ends = np.array([tokens[-1] for tokens in sequences])
    found: dict[str, np.ndarray] = {}
    for done, (task, pairs_P2) in enumerate(tasks.items()):
        progress((1 + done) / (1 + len(tasks)), f"layers, {task}")
        drawn = draw_quadruples(pairs_P2, quadruples, seed)
        alone_P, different_P = (pairs_P2 < vocabulary).all(1), np.diff(ends[pairs_P2], axis=1)[:, 0] != 0
        shown_N = _choose(pairs_P2, alone_P, seed)
        measured = count_quadruples(drawn.real)
        measured["one_token"] = np.stack([(one.tokens < vocabulary).all(1) for one in drawn])
        measured["single"] = alone_P[different_P]
        measured["shown_words"] = to_text_array([list(pairs[task][row]) for row in shown_N])
        for layer, (x_WD, fitted) in states.items():
            space = parallelogram_space(x_WD, drawn.real.tokens, fitted=fitted)
            sigma = np.sqrt(space.squares["vocabulary", "vocabulary"][:2].sum())
            cosines = [_cosines(x_WD, pairs_P2[kept], seed) for kept in (np.ones_like(alone_P), alone_P)]
            measured |= {f"{layer}/{what}": array for what, array in measure_losses(space, drawn).items()}
            measured[f"{layer}/cosine"] = np.array(cosines)
            plane_P22 = (space.coordinates(pairs_P2) / sigma).astype(np.float32)
            measured[f"{layer}/partners"] = _distances(plane_P22[different_P], alone_P[different_P], seed)
            measured[f"{layer}/shown_plane"] = plane_P22[shown_N]
        found |= {f"{MEASURE}/{task}/{what}": array for what, array in measured.items()}
    progress(1.0)
    return found


def _spell(pairs: Pairs, encoding: Encoding, vocabulary: int) -> tuple[dict[str, np.ndarray], list[tuple[int, ...]]]:
    """Return each task's pairs as rows (P, 2), and the tokens of each row: all single tokens, then longer words."""
    spelled = {word: tuple(encoding.encode(word)) for both in pairs.values() for pair in both for word in pair}
    for word, tokens in spelled.items():
        if not tokens or max(tokens) >= vocabulary:
            raise ValueError(
                f"words must have one or more tokens below {vocabulary}, got {tokens} for {word!r}; pass the encoding "
                "of this model."
            )
    longer = dict.fromkeys(tokens for tokens in spelled.values() if len(tokens) > 1)
    sequences = [*((token,) for token in range(vocabulary)), *longer]
    row = {tokens: place for place, tokens in enumerate(sequences)}
    return {
        task: np.array([[row[spelled[w]] for w in pair] for pair in both]) for task, both in pairs.items()
    }, sequences


@torch.no_grad()
def last_states(
    model: "PreTrainedModel", sequences: Sequence[tuple[int, ...]], layers: Sequence[int], device: str
) -> dict[int, np.ndarray]:
    """Return the state of each sequence's last token in some layers, by layer (W, D) float32.

    Sequences of equal length form a batch, so nothing is padded.
    """
    by_length: dict[int, list[int]] = {}
    for row, tokens in enumerate(sequences):
        by_length.setdefault(len(tokens), []).append(row)
    body = model.base_model.to(device)
    found = {layer: np.empty((len(sequences), model.config.hidden_size), dtype=np.float32) for layer in layers}
    trained = body.training
    body.eval()
    try:
        for length, rows in sorted(by_length.items()):
            size = max(1, TOKENS // length)
            for part in (rows[start : start + size] for start in range(0, len(rows), size)):
                tokens_BT = torch.tensor([sequences[row] for row in part], device=device)
                states = body(tokens_BT, use_cache=False, output_hidden_states=True).hidden_states
                for layer in layers:
                    found[layer][part] = states[layer][:, -1].float().cpu().numpy()
    finally:
        body.train(trained)
    return found


def _fit(x_WD: np.ndarray, vocabulary: int) -> PCA:
    """Fit the components to the rows that are single tokens."""
    fitted = pca(x_WD[:vocabulary])
    # `parallelogram_space` takes all rows for the vocabulary, but the unit must be the spread of the tokens alone.
    whole = len(x_WD) / (len(x_WD) - 1) * (vocabulary - 1) / vocabulary
    return fitted._replace(variances=fitted.variances * whole)


def mean_cosine(differences_PD: np.ndarray, *, seed: int = 0, draws: int = DRAWS) -> Interval:
    """Return the mean cosine between the steps of two different pairs, with its 95 % interval over pairs.

    Args:
        differences_PD: the steps, one row per pair.
        seed: of the bootstrap.
        draws: of the bootstrap.

    >>> mean_cosine(np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]))
    Interval(estimate=1.0, low=1.0, high=1.0)
    """
    lengths = np.linalg.norm(differences_PD, axis=1, keepdims=True)
    unit_PD = (differences_PD / np.where(lengths > 0, lengths, 1))[lengths[:, 0] > 0].astype(np.float64)
    count = len(unit_PD)
    if count < 3:
        return Interval(np.nan, np.nan, np.nan)
    picked = np.random.default_rng(seed).integers(count, size=(draws, count)) + count * np.arange(draws)[:, None]
    times_BP = np.bincount(picked.ravel(), minlength=draws * count).reshape(draws, count)
    times_BP = np.concatenate([np.ones((1, count)), times_BP[(times_BP > 0).sum(1) > 1]])
    # A pair that is drawn twice has cosine 1 with itself, which tells nothing about two pairs; it is left out.
    itself_B = np.square(times_BP).sum(1)
    cosines_B = (np.square(times_BP @ unit_PD).sum(1) - itself_B) / (np.float64(count) ** 2 - itself_B)
    low, high = np.quantile(cosines_B[1:], [0.025, 0.975], method="nearest")
    return Interval(*(round(float(value), 12) for value in (cosines_B[0], low, high)))


def _cosines(x_WD: np.ndarray, pairs_P2: np.ndarray, seed: int) -> np.ndarray:
    """Return the mean cosine of the pairs' steps, and of steps to shuffled partners, (2, 3)."""
    different_P2 = pairs_P2[pairs_P2[:, 0] != pairs_P2[:, 1]]
    # Partners move on along a circle through all pairs, so no pair keeps its own.
    order = np.random.default_rng(seed).permutation(len(different_P2))
    partners = different_P2[:, 1].copy()
    partners[order] = different_P2[np.roll(order, 1), 1]
    seconds = (different_P2[:, 1], partners)
    return np.array(
        [mean_cosine(x_WD[second] - x_WD[different_P2[:, 0]], seed=seed) for second in seconds], dtype=np.float32
    )


def _distances(plane_P22: np.ndarray, alone_P: np.ndarray, seed: int) -> np.ndarray:
    """Return the distance of each pair's words, and of its first word from the second of another pair, (P, 2).

    Words of one token lie apart from others, so the other pair is of the same kind. Without one there is NaN.
    """
    own_P = np.arange(len(plane_P22))
    other_P = own_P.copy()
    for kind in (alone_P, ~alone_P):
        rows = np.random.default_rng(seed).permutation(own_P[kind])
        other_P[rows] = np.roll(rows, 1)
    apart = np.stack([np.linalg.norm(plane_P22[:, 0] - plane_P22[rows, 1], axis=1) for rows in (own_P, other_P)], 1)
    apart[other_P == own_P, 1] = np.nan
    return apart


def _choose(pairs_P2: np.ndarray, alone_P: np.ndarray, seed: int) -> np.ndarray:
    """Choose pairs to draw, in their order: pairs of one-token words if there are enough of them."""
    different_P = pairs_P2[:, 0] != pairs_P2[:, 1]
    preferred = np.flatnonzero(different_P & alone_P)
    pool = preferred if len(preferred) >= FEWEST else np.flatnonzero(different_P)
    return np.sort(np.random.default_rng(seed).permutation(pool)[:SHOWN])


def measured_layers(arrays: Arrays, task: str) -> list[int]:
    """Return the numbers of the layers for which the arrays contain a task's losses.

    >>> measured_layers({"layers/antonym/6/losses": np.ones(3)}, "antonym")
    [6]
    """
    keys = (key.split("/") for key in arrays)
    return sorted(int(parts[2]) for parts in keys if parts[:2] == [MEASURE, task] and parts[-1] == "losses")
