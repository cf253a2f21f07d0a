"""Quadruples of tokens a : b = c : d from pairs of one relation, a null for them, and comparisons of two losses.

Quadruples share words: with 200 pairs, each pair is in a hundred of 10,000 quadruples. Intervals here therefore
resample *pairs*. An interval over quadruples would be several times too narrow. If each pair is in only a few
quadruples, an interval over pairs is too wide, by a factor of at most sqrt(3).
"""

# P pairs, Q quadruples, B draws of the bootstrap, N numbers

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from harmax.analysis.statistics import Interval
from harmax.errors import unknown

LEVEL = 0.95  # level of the intervals
BATCH = 2**21  # weights in memory at a time
TRIES = 1000  # attempts to draw a partner before the null gives up


class Quadruples(NamedTuple):
    """Quadruples of tokens, and the pairs that they are made of."""

    tokens: np.ndarray
    """(Q, 4) int64: a, b, c, d, where a : b and c : d are pairs of one relation. In a null, d is from a third pair."""
    pairs: np.ndarray
    """(Q, 2) int64: row numbers of the pairs of a and of c. Quadruples with a common pair share words."""


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
"""Which quadruples are used.

- distinct: four different tokens. Only these can be compared with a null. With a = b the gap is |c - d|, which is small
  in any embedding. A null that replaces d then looks worse even if nothing was learned.
- nontrivial: the authors' choice, which drops losses of zero. With a = b and c = d, or a = c and b = d, the gap is 0 in
  any embedding. This concerns a third of `capitalize`, where most pairs end in the same token.
- all: every quadruple."""


def sample_quadruples(pairs: Any, count: int = 10000, seed: int = 0, *, keep: str = "distinct") -> Quadruples:
    """Draw quadruples of two different pairs without replacement; if there are fewer, return all in random order.

    a : b = c : d and c : d = a : b are the same quadruple. The authors draw from all quadruples with replacement.

    Args:
        pairs: tokens of both words of each pair, (P, 2), P at least 2.
        count: largest number of quadruples.
        seed: seed of the draws.
        keep: one of `KEEP`.

    >>> pairs = [[1, 2], [3, 4], [5, 5], [6, 6]]
    >>> sample_quadruples(pairs).tokens
    array([[1, 2, 3, 4]])
    >>> {keep: len(sample_quadruples(pairs, keep=keep).tokens) for keep in KEEP}
    {'distinct': 1, 'nontrivial': 5, 'all': 6}
    """
    pairs_P2, kept = _checked_pairs(pairs), _kept(keep)
    if count < 1:
        raise ValueError(f"`count` must be at least 1, got {count}; the paper uses 10000.")
    # Pair i is combined with the pairs i + 1, ..., P - 1, so that one number identifies two pairs.
    ends_P = np.cumsum(np.arange(len(pairs_P2) - 1, -1, -1))
    possible = int(ends_P[-1])
    tried = count
    while True:
        tried = min(tried, possible)
        generator = np.random.default_rng(seed)
        codes = generator.choice(possible, size=tried, replace=False)
        first = np.searchsorted(ends_P, codes, side="right")
        second = len(pairs_P2) - (ends_P[first] - codes)
        # The order of the two pairs is random. Otherwise a null would always replace words from the end of the list.
        places = generator.permuted(np.stack([first, second], axis=1), axis=1)
        tokens = pairs_P2[places].reshape(-1, 4)
        counted = np.flatnonzero(kept(tokens))[:count]
        if len(counted) == count or tried == possible:
            break
        tried *= 2
    if not len(counted):
        raise ValueError(
            f"`pairs` must form at least one {keep} quadruple, got none from {len(pairs_P2)} pairs; "
            "pass pairs of more different tokens."
        )
    return Quadruples(tokens[counted], places[counted])


def null_quadruples(quadruples: Quadruples, pairs: Any, seed: int = 0, *, keep: str = "distinct") -> Quadruples:
    """Replace each d by the second word of another pair. The loss of these shows the case without a relation.

    The words are drawn from all pairs, so that both sides keep their words. Neither of the quadruple's own two pairs is
    used, nor any other pair that ends in d. Each row differs from its quadruple only in d.

    Args:
        quadruples: quadruples that were drawn from the pairs.
        pairs: the same pairs, (P, 2).
        seed: seed of the draws.
        keep: as for the quadruples.

    >>> pairs = [[1, 2], [3, 4], [5, 6]]
    >>> null_quadruples(sample_quadruples(pairs, 1), pairs).tokens[:, 3] != sample_quadruples(pairs, 1).tokens[:, 3]
    array([ True])
    """
    pairs_P2, kept = _checked_pairs(pairs), _kept(keep)
    if quadruples.pairs.max() >= len(pairs_P2):
        raise ValueError(
            f"`pairs` must be the pairs that the quadruples were drawn from, got {len(pairs_P2)} pairs although a "
            f"quadruple uses pair {quadruples.pairs.max()}; pass the same pairs."
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
        f"`pairs` must have a third pair that makes a {keep} quadruple, got none for {len(left)} of {len(tokens)} in "
        f"{TRIES} draws; pass more pairs."
    )


def empirical_cdf(values: Any, thresholds: Any) -> np.ndarray:
    """Return, for each threshold, the share of the values that are not above it.

    The authors' curves omit zeros from the count but not from the total. They are `empirical_cdf(values, thresholds)`
    minus the share of zeros, with the quadruples "all".

    Args:
        values: (N,), numbers; infinity is above every finite threshold.
        thresholds: an array of any shape.

    >>> empirical_cdf([1.0, 2.0, 4.0, 8.0], [0.5, 2.0, 9.0])
    array([0. , 0.5, 1. ])
    """
    found = np.sort(_checked_numbers("values", values))
    return np.searchsorted(found, np.asarray(thresholds, dtype=np.float64), side="right") / len(found)


def median_interval(losses: Any, quadruples: Quadruples, *, draws: int = 1000, seed: int = 0) -> Interval:
    """Return the median loss and its 95 % bootstrap interval, which resamples the pairs.

    In a draw, the weight of a quadruple is the product of the counts of its two pairs.

    Args:
        losses: one loss per quadruple, (Q,).
        quadruples: the quadruples.
        draws: number of bootstrap draws.
        seed: seed of the draws.

    >>> quadruples = sample_quadruples([[1, 2], [3, 4], [5, 6], [7, 8]])
    >>> print(median_interval([1.0, 1.0, 1.0, 1.0, 1.0, 1.0], quadruples))
    1 [1, 1]
    """
    order = _sorted(_checked_losses("losses", losses, quadruples))
    return interval_over_pairs(lambda weights: _weighted_medians(weights, *order), quadruples, draws=draws, seed=seed)


def interval_over_pairs(
    statistic: Callable[[np.ndarray], np.ndarray], quadruples: Quadruples, *, draws: int = 1000, seed: int = 0
) -> Interval:
    """Return a statistic of quadruples and its 95 % bootstrap interval, which resamples the pairs.

    Args:
        statistic: returns one number per draw, (B,), from the weight of each quadruple in each draw, (B, Q).
        quadruples: the quadruples.
        draws: number of bootstrap draws.
        seed: seed of the draws.

    >>> quadruples = sample_quadruples([[1, 2], [3, 4], [5, 6], [7, 8]])
    >>> losses = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    >>> interval_over_pairs(lambda weights: weighted_quantiles(weights, losses, 0.5), quadruples).estimate
    3.0
    """
    drawn = [statistic(weights) for weights in _weights(quadruples, draws, seed)]
    return _interval(float(statistic(np.ones((1, len(quadruples.tokens))))[0]), np.concatenate(drawn))


def weighted_quantiles(weights_BQ: np.ndarray, values_Q: np.ndarray, level: float) -> np.ndarray:
    """Return, for each row of weights, the least value up to which at least a share `level` of the weight lies, (B,).

    >>> weighted_quantiles(np.array([[1, 1, 1, 1], [0, 0, 0, 1]]), np.array([3.0, 1.0, 2.0, 9.0]), 0.5)
    array([2., 9.])
    """
    order, ordered = _sorted(values_Q)
    up_to_BQ = np.cumsum(weights_BQ[:, order], axis=1)
    places_B = (up_to_BQ < level * up_to_BQ[:, -1:]).sum(1)
    return ordered[np.minimum(places_B, len(ordered) - 1)]


class LossComparison(NamedTuple):
    """A comparison of two losses on the same quadruples, with 95 % intervals over pairs."""

    first: Interval
    """Median of the first losses."""
    second: Interval
    """Median of the second losses."""
    difference: Interval
    """Median of first - second per quadruple."""
    ratio: Interval
    """First median divided by second median; NaN if both are 0."""
    share: Interval
    """Share of the quadruples with a smaller first loss. A tie counts one half."""


def compare_losses(
    first: Any, second: Any, quadruples: Quadruples, *, draws: int = 1000, seed: int = 0
) -> LossComparison:
    """Compare two losses per quadruple: those of two embeddings, or those of quadruples and of their null.

    Within one embedding and setting, the scale cancels in the ratio to the null. Between embeddings it does not cancel.
    Their losses may differ only because the widest components hold another share of the words' variance.

    Args:
        first: one loss per quadruple, (Q,).
        second: losses of the same quadruples, or of their null in the same order, (Q,).
        quadruples: the quadruples, also for a null.
        draws: number of bootstrap draws, which all five numbers share.
        seed: seed of the draws.

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
    """Yield the weight of each quadruple in each draw, (B, Q), in batches; draws without any quadruple are repeated."""
    if draws < 1:
        raise ValueError(f"`draws` must be at least 1, got {draws}; 1000 is usual.")
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
    """Return the median of each draw; it is the mean of two values if the middle is between them."""
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
        raise ValueError(
            f"`pairs` must have shape (pairs, 2) with 2 pairs or more, got {found.shape}; pass one row per pair."
        )
    if not np.issubdtype(found.dtype, np.integer):
        raise ValueError(f"`pairs` must be tokens, got {found.dtype}; encode the words first.")
    return found.astype(np.int64)


def _checked_numbers(name: str, values: Any) -> np.ndarray:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not len(found):
        raise ValueError(f"`{name}` must have one dimension and at least one number, got {found.shape}; flatten it.")
    if np.isnan(found).any():
        raise ValueError(f"`{name}` must be numbers, got {int(np.isnan(found).sum())} NaN; leave them out.")
    return found


def _checked_losses(name: str, losses: Any, quadruples: Quadruples) -> np.ndarray:
    found = _checked_numbers(name, losses)
    if len(found) != len(quadruples.tokens) or not np.isfinite(found).all():
        raise ValueError(
            f"`{name}` must be {len(quadruples.tokens)} finite numbers, one per quadruple, got {len(found)}, "
            f"{int(np.isinf(found).sum())} of them infinite; pass them in the order of the quadruples."
        )
    return found
