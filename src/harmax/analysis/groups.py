"""Subgroups of the symmetric group and their cosets.

A permutation is the row of its images, (a(0), ..., a(n - 1)). The elements of S_n are in lexicographic order of these
rows. The product ab applies b first: (ab)(i) = a(b(i)). Names of elements count from 1: (12)(34).
"""

# N = n! elements

from functools import cache
from itertools import permutations as all_permutations
from math import factorial
from typing import Any, NamedTuple

import numpy as np

LARGEST = 5  # S_6 has 1455 subgroups, and this search would take too long


class Subgroup(NamedTuple):
    """A subgroup of S_n."""

    elements: tuple[tuple[int, ...], ...]
    """Images of each element, in lexicographic order, with the identity first."""
    kind: str
    """A name that conjugate subgroups share, for example "S3". For n other than 4 it is the order."""
    name: str
    """The kind, and what distinguishes the subgroup from its conjugates, for example "S3 (stabilizer of 4)"."""
    normal: bool

    @property
    def order(self) -> int:
        """Number of elements."""
        return len(self.elements)


class Cosets(NamedTuple):
    """A partition of S_n into cosets."""

    subgroup: Subgroup
    side: str
    """"left" (gH), "right" (Hg), or "both" for a normal subgroup, where they are equal."""
    labels: np.ndarray
    """(N,), the coset of each element. Cosets are numbered in the order in which they appear."""


def symmetric_group(n: int) -> np.ndarray:
    """Return all permutations of 0 .. n - 1, (n!, n), in lexicographic order.

    >>> symmetric_group(2)
    array([[0, 1],
           [1, 0]])
    """
    if not isinstance(n, int | np.integer) or not 1 <= n <= LARGEST:
        raise ValueError(f"`n` must be a whole number from 1 to {LARGEST}, got {n!r}; larger groups take too long.")
    return np.array(list(all_permutations(range(n))))


def cycles(permutation: Any) -> str:
    """Return a permutation as its cycles, counting from 1; e is the identity.

    >>> cycles((1, 0, 3, 2)), cycles((0, 1)), cycles((1, 2, 0))
    ('(12)(34)', 'e', '(123)')
    """
    images, written, done = [int(image) for image in permutation], "", set()
    for start in range(len(images)):
        cycle, at = [], start
        while at not in done:
            done.add(at)
            cycle.append(str(at + 1))
            at = images[at]
        written += f"({''.join(cycle)})" if len(cycle) > 1 else ""
    return written or "e"


@cache
def subgroups(n: int) -> tuple[Subgroup, ...]:
    """Return every subgroup of S_n, smallest first, including the trivial one and S_n.

    Cyclic subgroups are joined until no new subgroup appears. This is complete, because every subgroup is a join of
    cyclic subgroups of prime power order.

    >>> len(subgroups(3)), len(subgroups(4)), subgroups(4)[-2].name
    (6, 30, 'A4 (normal)')
    """
    table_NN = _products(n)
    cyclic = {_closure(table_NN, [element]) for element in range(len(table_NN))}
    generators = {_generator(table_NN, group) for group in cyclic if _is_prime_power(len(group))}
    found, queue = set(cyclic), list(cyclic)
    while queue:
        group = queue.pop()
        for element in generators - group:
            joined = _closure(table_NN, [*group, element])
            if joined not in found:
                found.add(joined)
                queue.append(joined)
    ordered = sorted((sorted(group) for group in found), key=lambda group: (len(group), group))
    return tuple(_named(n, table_NN, group) for group in ordered)


def left_cosets(elements: Any) -> np.ndarray:
    """Return the left coset gH of each element g of S_n, (n!,), numbered in the order of appearance.

    Args:
        elements: the subgroup H as rows of images, (order, n), for example `subgroup.elements`.

    >>> left_cosets([[0, 1, 2], [0, 2, 1]])
    array([0, 0, 1, 1, 2, 2])
    """
    group, table_NN = _indices(elements)
    return _numbered(table_NN[:, group].min(1))


def right_cosets(elements: Any) -> np.ndarray:
    """Return the right coset Hg of each element g of S_n, (n!,), numbered in the order of appearance.

    Args:
        elements: the subgroup H as rows of images, (order, n).

    >>> right_cosets([[0, 1, 2], [0, 2, 1]])
    array([0, 0, 1, 2, 1, 2])
    """
    group, table_NN = _indices(elements)
    return _numbered(table_NN[group].min(0))


@cache
def coset_partitions(n: int) -> tuple[Cosets, ...]:
    """Return all different partitions of S_n into cosets of a subgroup other than the trivial one and S_n.

    The coset of the identity is the subgroup itself, so two subgroups never have the same partition. The left and the
    right partition of a subgroup are equal if it is normal.

    >>> len(coset_partitions(4)), {len(set(found.labels)) for found in coset_partitions(4)} == {2, 3, 4, 6, 8, 12}
    (54, True)
    """
    found = []
    for subgroup in subgroups(n)[1:-1]:
        sides = {"left": left_cosets(subgroup.elements), "right": right_cosets(subgroup.elements)}
        for side, labels in {"both": sides["left"]}.items() if subgroup.normal else sides.items():
            labels.setflags(write=False)  # the cached result is shared by all callers
            found.append(Cosets(subgroup, side, labels))
    return tuple(found)


@cache
def _products(n: int) -> np.ndarray:
    """Return the index of the product of every two elements of S_n, (N, N)."""
    images = symmetric_group(n)
    table_NN = places(images[:, images].reshape(-1, n)).reshape(len(images), len(images))
    table_NN.setflags(write=False)
    return table_NN


def places(images: np.ndarray) -> np.ndarray:
    """Return the place of each permutation in lexicographic order, counted from 0.

    >>> places(np.array([[0, 1, 2], [2, 1, 0]]))
    array([0, 5])
    """
    later_smaller = np.triu(images[:, None, :] < images[:, :, None], 1).sum(2)
    return later_smaller @ np.array([factorial(left) for left in range(images.shape[1] - 1, -1, -1)])


def _closure(table_NN: np.ndarray, members: list[int]) -> frozenset[int]:
    """Return the subgroup that some elements generate. In a finite group it consists of all their products."""
    inside = np.zeros(len(table_NN), dtype=bool)
    inside[members] = True
    while True:
        at = np.flatnonzero(inside)
        inside[table_NN[at[:, None], at]] = True
        if inside.sum() == len(at):
            return frozenset(at.tolist())


def _generator(table_NN: np.ndarray, group: frozenset[int]) -> int:
    return next(element for element in sorted(group) if _closure(table_NN, [element]) == group)


def _is_prime_power(order: int) -> bool:
    return order > 1 and len({prime for prime in (2, 3, 5) if order % prime == 0}) == 1


def _indices(elements: Any) -> tuple[np.ndarray, np.ndarray]:
    images = checked_images("elements", elements)
    table_NN, group = _products(images.shape[1]), np.unique(places(images))
    if not np.isin(table_NN[group[:, None], group], group).all():
        raise ValueError(
            f"`elements` must be a subgroup, got {len(group)} permutations that are not closed under products; "
            "`subgroups(n)` lists all subgroups."
        )
    return group, table_NN


def checked_images(name: str, permutations: Any) -> np.ndarray:
    """Return permutations as rows of images, (permutations, n); refuse rows that are no permutation."""
    images = np.asarray(permutations)
    if images.ndim != 2 or not images.size or not np.issubdtype(images.dtype, np.integer):
        raise ValueError(
            f"`{name}` must be whole numbers of shape (permutations, n), got {images.dtype} of {images.shape}; pass "
            "the images of 0 .. n - 1, one row per permutation."
        )
    wrong = (np.sort(images, axis=1) != np.arange(images.shape[1])).any(1)
    if wrong.any():
        raise ValueError(
            f"`{name}` must have each of the numbers 0 to {images.shape[1] - 1} once per row, got "
            f"{images[wrong.argmax()].tolist()}; count from 0."
        )
    symmetric_group(images.shape[1])  # raises an error for a group that is too large
    return images


def _numbered(keys: np.ndarray) -> np.ndarray:
    """Number classes in the order of appearance, which is the order of the keys: each is the class's first member."""
    return np.unique(keys, return_inverse=True)[1].reshape(-1)


def _named(n: int, table_NN: np.ndarray, group: list[int]) -> Subgroup:
    images = symmetric_group(n)
    inverse_N = np.argmin(table_NN, axis=1)  # the identity is element 0
    conjugates = table_NN[table_NN[:, group], inverse_N[:, None]]
    normal = bool(np.isin(conjugates, group).all())
    elements = tuple(tuple(row) for row in images[group].tolist())
    kind, name = _names_in_s4(elements) if n == 4 else (f"order {len(group)}",) * 2
    return Subgroup(elements, kind, name, normal)


def _names_in_s4(elements: tuple[tuple[int, ...], ...]) -> tuple[str, str]:
    """Return the kind and the name of a subgroup of S_4. Its order and its swaps and 4-cycles determine both."""
    written = [cycles(element) for element in elements]
    swaps, four_cycles = ([one for one in written if len(one) == length and ")(" not in one] for length in (4, 6))
    match len(written):
        case 2:
            return f"C2 of a {'' if swaps else 'double '}transposition", f"C2 {written[1]}"
        case 3:
            return "C3", f"C3 {written[1]}"
        case 4 if four_cycles:
            return "C4", f"C4 {four_cycles[0]}"
        case 4 if swaps:
            return "C2 x C2", f"C2 x C2 {swaps[1]}, {swaps[0]}"
        case 4:
            return "Klein four V4", "Klein four V4 (normal)"
        case 6:
            fixed = next(at for at in range(4) if all(element[at] == at for element in elements))
            return "S3", f"S3 (stabilizer of {fixed + 1})"
        case 8:
            return "D4", f"D4 with {four_cycles[0]}"
        case 12:
            return "A4", "A4 (normal)"
        case order:
            return ("trivial", "trivial") if order == 1 else ("S4", "S4")
