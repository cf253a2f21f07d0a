"""Quadruples of tokens a : b = c : d from pairs of one relation, a null for them, and what two embeddings make of them.

Quadruples share words: of 200 pairs, each is in a hundred of 10,000 quadruples. Intervals here therefore draw *pairs*
anew, not quadruples; an interval over quadruples is several times too narrow. Where a pair is in a few quadruples only,
those over pairs are on the wide side, by a factor of sqrt(3) at most.
"""

# P pairs, Q quadruples, B draws of the bootstrap, N numbers

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from harmax.analysis.statistics import Interval
from harmax.errors import unknown

LEVEL = 0.95  # of the intervals
BATCH = 2**21  # weights in memory at a time
TRIES = 1000  # draws of a partner before a null is given up


class Quadruples(NamedTuple):
    """Quadruples of tokens, and the pairs that they come from."""

    tokens: np.ndarray
    """(Q, 4) int64: a, b, c, d, where a : b and c : d are pairs of one relation; in a null, d belongs to a third."""
    pairs: np.ndarray
    """(Q, 2) int64: places of the pairs of a and of c; quadruples with a place in common share words."""


def _nontrivial(tokens: np.ndarray) -> np.ndarray:
    a, b, c, d = tokens.T
    return ~((a == b) & (c == d)) & ~((a == c) & (b == d))


def _distinct(tokens: np.ndarray) -> np.ndarray:
    return np.asarray((np.diff(np.sort(tokens, axis=1)) > 0).all(1))


KEEP: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "distinct": _distinct,
    "nontrivial": _nontrivial,
    "all": lambda tokens: np.ones(len(tokens), dtype=bool),
}
"""Which quadruples count.

- distinct: of four different tokens. Only these can be held against a null: with a = b the gap is |c - d|, small in any
  embedding, and a null that takes d away seems worse even where nothing was learned.
- nontrivial: the authors', who drop scores of zero. With a = b and c = d, or a = c and b = d, the gap is 0 in any
  embedding; that is a third of `capitalize`, whose pairs mostly end in one and the same token.
- all."""


def sample_quadruples(pairs: Any, count: int = 10000, seed: int = 0, *, keep: str = "distinct") -> Quadruples:
    """Draw quadruples of two different pairs, none twice; all there are, in random order, where they are fewer.

    a : b = c : d and c : d = a : b are one quadruple here. The authors draw with replacement, from all.

    Args:
        pairs: tokens of both words of each pair, (P, 2), P at least 2.
        count: how many at most.
        seed: of the draws.
        keep: one of `KEEP`.

    >>> pairs = [[1, 2], [3, 4], [5, 5], [6, 6]]
    >>> sample_quadruples(pairs).tokens
    array([[1, 2, 3, 4]])
    >>> {keep: len(sample_quadruples(pairs, keep=keep).tokens) for keep in KEEP}
    {'distinct': 1, 'nontrivial': 5, 'all': 6}
    """
    pairs_P2, kept = _checked_pairs(pairs), _kept(keep)
    if count < 1:
        raise ValueError(f"`count` must be at least 1, got {count}; the paper has 10000.")
    # Pair i meets the pairs i + 1, ..., P - 1, so that one number names a pair of pairs.
    ends_P = np.cumsum(np.arange(len(pairs_P2) - 1, -1, -1))
    possible = int(ends_P[-1])
    tried = count
    while True:
        tried = min(tried, possible)
        generator = np.random.default_rng(seed)
        codes = generator.choice(possible, size=tried, replace=False)
        first = np.searchsorted(ends_P, codes, side="right")
        second = len(pairs_P2) - (ends_P[first] - codes)
        # Either of the two may come first, or a null would always replace words from the end of the list.
        places = generator.permuted(np.stack([first, second], axis=1), axis=1)
        tokens = pairs_P2[places].reshape(-1, 4)
        counted = np.flatnonzero(kept(tokens))[:count]
        if len(counted) == count or tried == possible:
            break
        tried *= 2
    if not len(counted):
        raise ValueError(
            f"`pairs` must form at least one quadruple that is {keep}, got none of {len(pairs_P2)} pairs; "
            "pass pairs of more different tokens."
        )
    return Quadruples(tokens[counted], places[counted])


def null_quadruples(quadruples: Quadruples, pairs: Any, seed: int = 0, *, keep: str = "distinct") -> Quadruples:
    """Replace each d by the partner of another pair: what a loss would be if the relation did not matter.

    The partners are drawn from all pairs, so that the words on each side stay the same; neither of the two pairs of the
    quadruple and no other pair that ends in d is taken. Row for row, only d differs from the quadruples.

    Args:
        quadruples: as drawn from the pairs.
        pairs: the same (P, 2).
        seed: of the draws.
        keep: as the quadruples were drawn.

    >>> pairs = [[1, 2], [3, 4], [5, 6]]
    >>> null_quadruples(sample_quadruples(pairs, 1), pairs).tokens[:, 3] != sample_quadruples(pairs, 1).tokens[:, 3]
    array([ True])
    """
    pairs_P2, kept = _checked_pairs(pairs), _kept(keep)
    if quadruples.pairs.max() >= len(pairs_P2):
        raise ValueError(
            f"`pairs` must be those that the quadruples were drawn from, got {len(pairs_P2)} where a quadruple names "
            f"pair {quadruples.pairs.max()}; pass the same ones."
        )
    generator = np.random.default_rng(seed)
    tokens = quadruples.tokens.copy()
    left = np.arange(len(tokens))
    for _ in range(TRIES):
        third = generator.integers(len(pairs_P2), size=len(left))
        tokens[left, 3] = pairs_P2[third, 1]
        other = (third[:, None] != quadruples.pairs[left]).all(1) & (tokens[left, 3] != quadruples.tokens[left, 3])
        left = left[~(other & kept(tokens[left]))]
        if not len(left):
            return Quadruples(tokens, quadruples.pairs)
    raise ValueError(
        f"`pairs` must have a third pair whose partner makes a quadruple {keep}, got none for {len(left)} of "
        f"{len(tokens)} in {TRIES} draws; pass more pairs."
    )


def empirical_cdf(values: Any, thresholds: Any) -> np.ndarray:
    """Return the share of the values that are at most each threshold.

    The authors' curves leave zeros out of the count but not out of the total: `empirical_cdf(values, thresholds)` minus
    the share of zeros, of quadruples drawn from "all".

    Args:
        values: (N,), numbers; infinity is above every finite threshold.
        thresholds: of any shape.

    >>> empirical_cdf([1.0, 2.0, 4.0, 8.0], [0.5, 2.0, 9.0])
    array([0. , 0.5, 1. ])
    """
    found = np.sort(_checked_numbers("values", values))
    return np.searchsorted(found, np.asarray(thresholds, dtype=np.float64), side="right") / len(found)


def median_interval(losses: Any, quadruples: Quadruples, *, draws: int = 1000, seed: int = 0) -> Interval:
    """Return the median loss and its 95 % bootstrap interval, with the pairs drawn anew.

    A draw counts a quadruple as often as the product of how often its two pairs came up.

    Args:
        losses: one a quadruple, (Q,).
        quadruples: those.
        draws: how many.
        seed: of the draws.

    >>> quadruples = sample_quadruples([[1, 2], [3, 4], [5, 6], [7, 8]])
    >>> print(median_interval([1.0, 1.0, 1.0, 1.0, 1.0, 1.0], quadruples))
    1 [1, 1]
    """
    found = _checked_losses("losses", losses, quadruples)
    order = _sorted(found)
    medians = [_weighted_medians(weights, *order) for weights in _weights(quadruples, draws, seed)]
    return _interval(float(np.median(found)), np.concatenate(medians))


class LossComparison(NamedTuple):
    """How two embeddings, or quadruples and their null, differ on the same rows; 95 % intervals over pairs."""

    first: Interval
    """The median of the first losses."""
    second: Interval
    difference: Interval
    """The median of first - second, quadruple by quadruple."""
    ratio: Interval
    """The first median by the second; NaN where both are 0."""
    share: Interval
    """Share of the quadruples on which the first loss is smaller, a tie counting one half."""


def compare_losses(
    first: Any, second: Any, quadruples: Quadruples, *, draws: int = 1000, seed: int = 0
) -> LossComparison:
    """Compare two losses of each quadruple: of two embeddings, or of one on the quadruples and on their null.

    Within one embedding and setting the scale cancels in the ratio to the null; between embeddings it does not, and a
    loss may differ only because the few widest components hold more or less of the words' spread.

    Args:
        first: one a quadruple, (Q,).
        second: of the same quadruples (or of their null, row for row), (Q,).
        quadruples: those; for a null too.
        draws: of the bootstrap, the same ones for all five numbers.
        seed: of the draws.

    >>> quadruples = sample_quadruples([[1, 2], [3, 4], [5, 6], [7, 8]])
    >>> found = compare_losses([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2.0, 4.0, 6.0, 8.0, 10.0, 12.0], quadruples)
    >>> found.ratio, found.share
    (Interval(estimate=0.5, low=0.5, high=0.5), Interval(estimate=1.0, low=1.0, high=1.0))
    """
    one, two = _checked_losses("first", first, quadruples), _checked_losses("second", second, quadruples)
    wins = (one < two) + 0.5 * (one == two)
    orders = [_sorted(values) for values in (one, two, one - two)]
    drawn: list[np.ndarray] = []
    for weights in _weights(quadruples, draws, seed):
        medians = [_weighted_medians(weights, *order) for order in orders]
        drawn.append(np.stack([*medians, _ratio(medians[0], medians[1]), weights @ wins / weights.sum(1)]))
    estimates = [float(np.median(values)) for values in (one, two, one - two)]
    estimates += [float(_ratio(np.array(estimates[0]), np.array(estimates[1]))), float(wins.mean())]
    return LossComparison(*map(_interval, estimates, np.concatenate(drawn, axis=1)))


def _weights(quadruples: Quadruples, draws: int, seed: int) -> Iterator[np.ndarray]:
    """Yield how often each quadruple counts in each draw, (B, Q), in batches; draws that leave none are left out."""
    if draws < 1:
        raise ValueError(f"`draws` must be at least 1, got {draws}; 1000 are a good number.")
    used, places = np.unique(quadruples.pairs, return_inverse=True)
    places_Q2 = places.reshape(-1, 2)
    generator = np.random.default_rng(seed)
    done, pairs, batch = 0, len(used), max(1, BATCH // max(len(places_Q2), len(used)))
    while done < draws:
        size = min(batch, draws - done)
        picked = generator.integers(pairs, size=(size, pairs)) + pairs * np.arange(size)[:, None]
        counts_BP = np.bincount(picked.ravel(), minlength=size * pairs).reshape(size, pairs)
        weights_BQ = counts_BP[:, places_Q2[:, 0]] * counts_BP[:, places_Q2[:, 1]]
        weights_BQ = weights_BQ[weights_BQ.any(1)]
        done += len(weights_BQ)
        yield weights_BQ


def _sorted(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(values, kind="stable")
    return order, values[order]


def _weighted_medians(weights_BQ: np.ndarray, order: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Return the median of each draw, the mean of the middle two where the middle falls between two values."""
    up_to_BQ = np.cumsum(weights_BQ[:, order], axis=1)
    twice_BQ, total_B1 = 2 * up_to_BQ, up_to_BQ[:, -1:]
    low, high = (twice_BQ < total_B1).sum(1), (twice_BQ <= total_B1).sum(1)
    return (ordered[low] + ordered[high]) / 2


def _ratio(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):  # a perfect embedding has a median of 0
        return one / two


def _interval(estimate: float, drawn: np.ndarray) -> Interval:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], method="nearest")
    return Interval(estimate, float(low), float(high))


def _kept(keep: str) -> Callable[[np.ndarray], np.ndarray]:
    if keep not in KEEP:
        raise ValueError(unknown("keep", keep, KEEP))
    return KEEP[keep]


def _checked_pairs(pairs: Any) -> np.ndarray:
    found = np.asarray(pairs)
    if found.ndim != 2 or found.shape[1] != 2 or len(found) < 2:
        raise ValueError(f"`pairs` must have shape (pairs, 2) with 2 or more, got {found.shape}; pass one row a pair.")
    if not np.issubdtype(found.dtype, np.integer):
        raise ValueError(f"`pairs` must be tokens, got {found.dtype}; encode the words first.")
    return found.astype(np.int64)


def _checked_numbers(name: str, values: Any) -> np.ndarray:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not len(found):
        raise ValueError(f"`{name}` must have shape (numbers,), one or more, got {found.shape}; flatten them.")
    if np.isnan(found).any():
        raise ValueError(f"`{name}` must be numbers, got {int(np.isnan(found).sum())} NaN; leave these out.")
    return found


def _checked_losses(name: str, losses: Any, quadruples: Quadruples) -> np.ndarray:
    found = _checked_numbers(name, losses)
    if len(found) != len(quadruples.tokens) or not np.isfinite(found).all():
        raise ValueError(
            f"`{name}` must be {len(quadruples.tokens)} finite numbers, one a quadruple, got {len(found)}, "
            f"{int(np.isinf(found).sum())} of them infinite; pass them in the quadruples' order."
        )
    return found
