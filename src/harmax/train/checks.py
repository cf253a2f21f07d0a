"""Checks that the specifications of all recipes share."""

import math
from collections.abc import Mapping
from typing import Any

from harmax.functional import check_softening, resolve_exponent
from harmax.heads.scale import check_scale


def check_least(spec: Any, least: Mapping[str, int]) -> None:
    """Refuse a field that is smaller than it may be."""
    for name, smallest in least.items():
        if getattr(spec, name) < smallest:
            raise ValueError(f"`{name}` must be at least {smallest}, got {getattr(spec, name)}; give a larger one.")


def check_not_negative(spec: Any, *names: str) -> None:
    """Refuse a field that is negative, infinite or not a number."""
    for name in names:
        if not 0 <= getattr(spec, name) < math.inf:
            raise ValueError(
                f"`{name}` must not be negative and must be finite, got {getattr(spec, name)}; 0 turns it off."
            )


def check_positive(spec: Any, *names: str) -> None:
    """Refuse a field that is not a positive, finite number."""
    for name in names:
        if not 0 < getattr(spec, name) < math.inf:
            raise ValueError(f"`{name}` must be a positive, finite number, got {getattr(spec, name)}; leave it out.")


def check_head(spec: Any, features: int) -> None:
    """Refuse settings of a head that it cannot have, and a scale of logits for a head that has an exponent instead."""
    if not 0 < spec.logit_scale < math.inf:
        raise ValueError(
            f"`logit_scale` must be a positive, finite number, got {spec.logit_scale}; 1 means no scaling."
        )
    if spec.head == "harmonic" and spec.logit_scale != 1:
        raise ValueError(
            "`logit_scale` must be 1 with the harmonic head, whose probabilities have no scale, got "
            f"{spec.logit_scale}; give an `exponent`."
        )
    resolve_exponent(spec.exponent, features)
    check_softening(spec.softening)
    check_scale(spec.scale)


def known_scale(head: str, scale: float | None) -> float | None:
    """Return the factor on the features that decides a run's numbers; heads that are not harmonic have none.

    >>> known_scale("harmonic", None), known_scale("linear", None)
    (None, 1.0)
    """
    return scale if head == "harmonic" else 1.0


def count_micro_batches(name: str, size: int, micro_batch: int, world: int) -> int:
    """Return how many micro-batches each of `world` processes computes per step.

    >>> count_micro_batches("batch", 256, 32, 4)
    2

    Args:
        name: of the field that holds the size of a step.
        size: of a step.
        micro_batch: what a process computes at once.
        world: number of processes.
    """
    if size % (micro_batch * world):
        raise ValueError(
            f"`{name}` ({size}) must be a multiple of `micro_batch` x processes, got {micro_batch} x {world}; give "
            "another `micro_batch`."
        )
    return size // (micro_batch * world)
