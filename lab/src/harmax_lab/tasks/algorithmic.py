"""The paper's five algorithmic tasks; `TASKS` maps a name to a function of the protocol and of the task's sizes.

The protocols share their facts except in genealogy, where the authors' tokens collide.
"""

# F facts, T question tokens, K shown tokens

import inspect
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from harmax.errors import unknown, whole_number
from harmax_lab.tasks.dataset import PROTOCOLS, Structure, Task, audit, make_split

# Each relation: the first node that has such a relative, and the relative of a node.
RELATIONS: dict[str, tuple[int, Callable[[np.ndarray], np.ndarray]]] = {
    "parent": (2, lambda node: node // 2),
    "grandparent": (4, lambda node: node // 4),
    "sibling": (2, lambda node: node ^ 1),
}


def lattice(*, protocol: str = "matched", size: int = 5, dimension: int = 2) -> Task:
    """Complete a parallelogram of grid points: a is to b as c is to d = b + c - a, where d lies on the grid.

    The token of a point is its place in row-major order, x * size + y in the plane.

    >>> lattice().facts[0]
    array([0, 0, 0, 0])
    """
    size = whole_number("size", size, least=2)
    dimension = whole_number("dimension", dimension, least=1)
    shape = (size,) * dimension
    tokens = np.arange(size**dimension)
    points = np.stack(np.unravel_index(tokens, shape), axis=1)  # (K, dimension)
    a, b, c = _questions(len(tokens), 3)
    d = points[b] + points[c] - points[a]
    on_grid = ((d >= 0) & (d < size)).all(axis=1)
    return Task(
        name="lattice",
        title="Lattice",
        protocol=protocol,
        vocabulary=len(tokens),
        facts=_rows(a[on_grid], b[on_grid], c[on_grid], np.ravel_multi_index(tuple(d[on_grid].T), shape)),
        shown=tokens,
        labels=tuple(f"({','.join(map(str, point))})" for point in points.tolist()),
        structure=Structure("lattice", points),
    )


def modular_addition(*, protocol: str = "matched", modulus: int = 31) -> Task:
    """Add two residues: (a, b) gives (a + b) mod `modulus`.

    >>> modular_addition(modulus=7).facts[-1]
    array([6, 6, 5])
    """
    modulus = whole_number("modulus", modulus, least=2)
    residues = np.arange(modulus)
    a, b = _questions(modulus, 2)
    return Task(
        name="modular_addition",
        title="Modular addition",
        protocol=protocol,
        vocabulary=modulus,
        facts=_rows(a, b, (a + b) % modulus),
        shown=residues,
        labels=_labels(residues),
        structure=Structure("circle", residues.copy()),
    )


def equivalence(*, protocol: str = "matched", numbers: int = 40, modulus: int = 5) -> Task:
    """Say whether two numbers are congruent: (a, b) gives the token `numbers` for yes, `numbers` + 1 for no.

    >>> equivalence().facts[5]
    array([ 0,  5, 40])
    """
    modulus = whole_number("modulus", modulus, least=2)
    numbers = whole_number("numbers", numbers, least=modulus + 1)  # with fewer, a number is congruent to itself only
    shown = np.arange(numbers)
    yes, no = numbers, numbers + 1
    a, b = _questions(numbers, 2)
    return Task(
        name="equivalence",
        title="Equivalence classes",
        protocol=protocol,
        vocabulary=numbers + 2,
        facts=_rows(a, b, np.where((a - b) % modulus == 0, yes, no)),
        shown=shown,
        labels=_labels(shown),
        structure=Structure("classes", shown % modulus),
    )


def genealogy(*, protocol: str = "matched", nodes: int = 127) -> Task:
    """Name a relative in a complete binary tree: (node, relation) gives a node; node i has children 2i and 2i + 1.

    The relations parent, grandparent, sibling are the tokens `nodes`, `nodes` + 1, `nodes` + 2. Node i is token i - 1
    under `matched`. Under `authors` it is token i, the last node is left out, and token 0 is never used; yet the last
    node is asked for once, as a sibling, and so its token doubles as the relation "parent".

    >>> genealogy().facts[-1], genealogy(protocol="authors").facts[-1]
    (array([126, 129, 125]), array([126, 129, 127]))
    """
    nodes = whole_number("nodes", nodes, least=7)  # three generations
    if nodes & (nodes + 1):
        below = 2 ** (nodes.bit_length() - 1) - 1
        raise ValueError(
            f"`nodes` must fill a binary tree (one less than a power of two), got {nodes}; "
            f"take {below} or {2 * below + 1}."
        )
    first_token, last = (1, nodes - 1) if protocol == "authors" else (0, nodes)
    present = np.arange(1, last + 1)  # node numbers; the root is 1
    facts = []
    for relation, (first, relative) in enumerate(RELATIONS.values(), start=nodes):
        asked = present[present >= first]
        facts.append(_rows(asked - 1 + first_token, np.full_like(asked, relation), relative(asked) - 1 + first_token))
    depths = np.frexp(present)[1].astype(np.int64) - 1  # exactly the whole part of the base-2 logarithm
    return Task(
        name="genealogy",
        title="Genealogy",
        protocol=protocol,
        vocabulary=nodes + len(RELATIONS),
        facts=np.concatenate(facts),
        shown=present - 1 + first_token,
        labels=_labels(present),
        structure=Structure("tree", depths, parents=present // 2 - 1),
    )


def permutation(*, protocol: str = "matched", degree: int = 4) -> Task:
    """Compose two permutations: (i, j) gives the token of p_i after p_j, which sends k to p_i[p_j[k]].

    Tokens are the permutations in lexicographic order; a data set is always the whole table.

    >>> task = permutation(degree=3)
    >>> " ".join(task.labels)
    '123 132 213 231 312 321'
    """
    degree = whole_number("degree", degree, least=2)
    images = np.array(list(itertools.permutations(range(degree))))  # (K, degree)
    tokens = np.arange(len(images))
    i, j = _questions(len(images), 2)
    composed = np.take_along_axis(images[i], images[j], axis=1)
    # Read as digits, lexicographic order is numeric order, so that a sorted search finds the token.
    digits = degree ** np.arange(degree)[::-1]
    return Task(
        name="permutation",
        title="Permutation composition",
        protocol=protocol,
        vocabulary=len(images),
        facts=_rows(i, j, np.searchsorted(images @ digits, composed @ digits)),
        shown=tokens,
        labels=tuple("".join(map(str, image)) for image in (images + 1).tolist()),
        structure=Structure("group", images),
        exhaustive=True,
    )


TASKS: dict[str, Callable[..., Task]] = {
    "lattice": lattice,
    "modular_addition": modular_addition,
    "equivalence": equivalence,
    "genealogy": genealogy,
    "permutation": permutation,
}


def find_task(name: str, *, protocol: str = "matched", **sizes: int) -> Task:
    """Build a task by its name, under a protocol, at the paper's sizes or others. A name may hold sizes, as `sized`.

    >>> find_task("modular_addition", modulus=7).facts.shape
    (49, 3)
    >>> find_task("modular_addition+modulus=7").facts.shape
    (49, 3)
    """
    plain, *words = name.split("+")
    if plain not in TASKS:
        raise ValueError(unknown("task", plain, TASKS))
    known = [size for size in inspect.signature(TASKS[plain]).parameters if size != "protocol"]
    for word in words:
        size, _, value = word.partition("=")
        if not value.isdecimal():
            raise ValueError(f"`task` must be NAME+SIZE=NUMBER, got {name!r}; write {sized(plain, **{known[0]: 7})}.")
        sizes[size] = int(value)
    for size in sizes:
        if size not in known:
            raise ValueError(unknown("size", size, known))
    return TASKS[plain](protocol=protocol, **sizes)


def sized(name: str, **sizes: int) -> str:
    """Return the name of a task at other sizes than the paper's.

    >>> sized("modular_addition", modulus=59)
    'modular_addition+modulus=59'
    """
    return "+".join([name, *(f"{size}={value}" for size, value in sizes.items())])


def audit_table(seeds: Iterable[int], *, train_fraction: float = 0.8) -> list[dict[str, Any]]:
    """Audit every task under both protocols: one row each, the fields of `Audit` as means over the seeds.

    >>> {row["leak"] for row in audit_table([0, 1]) if row["protocol"] == "matched"}
    {0.0}
    """
    seeds = list(seeds)
    if not seeds:
        raise ValueError("`seeds` must hold at least one seed, got none; pass range(20), say.")
    table = []
    for protocol, name in itertools.product(PROTOCOLS, TASKS):
        task = find_task(name, protocol=protocol)
        audits = [audit(make_split(task, seed, train_fraction=train_fraction)) for seed in seeds]
        means = {key: float(np.mean([getattr(one, key) for one in audits])) for key in vars(audits[0])}
        table.append({"task": name, "protocol": protocol, "seeds": len(seeds), **means})
    return table


def _questions(count: int, length: int) -> np.ndarray:
    """Return every sequence of `length` tokens out of `count`, the last running fastest, (length, count ** length)."""
    return np.indices((count,) * length).reshape(length, -1)


def _rows(*columns_F: np.ndarray) -> np.ndarray:
    return np.stack(columns_F, axis=1).astype(np.int64)


def _labels(numbers: np.ndarray) -> tuple[str, ...]:
    return tuple(map(str, numbers.tolist()))
