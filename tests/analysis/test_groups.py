"""Subgroups and cosets: the counts of algebra, and the laws that make a set a group and a partition one of cosets."""

from collections import Counter
from math import factorial

import numpy as np
import pytest

from harmax.analysis import coset_partitions, cycles, left_cosets, right_cosets, subgroups, symmetric_group

ELEMENTS = [tuple(row) for row in symmetric_group(4).tolist()]


def product(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a[image] for image in b)


def test_elements_stand_in_lexicographic_order() -> None:
    assert sorted(set(ELEMENTS)) == ELEMENTS
    assert len(ELEMENTS) == 24


@pytest.mark.parametrize(("n", "count", "normal"), [(1, 1, 1), (2, 2, 2), (3, 6, 3), (4, 30, 4), (5, 156, 3)])
def test_all_subgroups_are_found(n: int, count: int, normal: int) -> None:
    found = subgroups(n)
    assert len({group.elements for group in found}) == len(found) == count
    assert sum(group.normal for group in found) == normal
    assert (found[0].order, found[-1].order) == (1, factorial(n))
    assert all(factorial(n) % group.order == 0 for group in found)


def test_each_subgroup_of_s4_is_closed() -> None:
    for group in subgroups(4):
        members = set(group.elements)
        assert {product(a, b) for a in members for b in members} == members


def test_subgroups_of_s4_have_the_names_that_books_give_them() -> None:
    found = subgroups(4)
    assert len({group.name for group in found}) == 30
    assert Counter(group.kind for group in found) == {
        "trivial": 1,
        "C2 of a transposition": 6,
        "C2 of a double transposition": 3,
        "C3": 4,
        "C4": 3,
        "C2 x C2": 3,
        "Klein four V4": 1,
        "S3": 4,
        "D4": 3,
        "A4": 1,
        "S4": 1,
    }
    by_name = {group.name: group for group in found}
    klein = by_name["Klein four V4 (normal)"]
    assert [cycles(element) for element in klein.elements] == ["e", "(12)(34)", "(13)(24)", "(14)(23)"]
    assert klein.normal
    assert {element[3] for element in by_name["S3 (stabilizer of 4)"].elements} == {3}
    assert not by_name["S3 (stabilizer of 4)"].normal
    assert {"C2 (12)", "C2 (12)(34)", "C3 (123)", "C4 (1234)", "C2 x C2 (12), (34)", "D4 with (1234)"} <= set(by_name)
    assert (1, 2, 3, 0) in by_name["D4 with (1234)"].elements
    assert by_name["A4 (normal)"].order == 12


def test_subgroups_of_other_sizes_are_named_by_their_order() -> None:
    assert [group.name for group in subgroups(3)] == ["order 1", "order 2", "order 2", "order 2", "order 3", "order 6"]


def test_cosets_are_what_their_definition_says() -> None:
    for group in subgroups(4):
        left, right = left_cosets(group.elements), right_cosets(group.elements)
        for labels, coset in (
            (left, lambda g, h: product(g, h)),
            (right, lambda g, h: product(h, g)),
        ):
            for at, element in enumerate(ELEMENTS):
                members = {coset(element, other) for other in group.elements}
                assert members == {ELEMENTS[other] for other in np.flatnonzero(labels == labels[at])}
            firsts = [int(np.flatnonzero(labels == label)[0]) for label in range(24 // group.order)]
            assert firsts == sorted(firsts)
        assert np.array_equal(left, right) == group.normal


def test_left_cosets_of_a_stabilizer_are_told_by_an_image() -> None:
    stabilizer = next(group for group in subgroups(4) if group.name == "S3 (stabilizer of 4)")
    images = np.array(ELEMENTS)[:, 3]
    labels = left_cosets(stabilizer.elements)
    assert ((labels[:, None] == labels) == (images[:, None] == images)).all()


def test_partitions_are_different_and_leave_out_the_two_that_say_nothing() -> None:
    found = coset_partitions(4)
    assert len({tuple(one.labels) for one in found}) == len(found) == 2 * 26 + 2
    assert {one.subgroup.name for one in found if one.side == "both"} == {"Klein four V4 (normal)", "A4 (normal)"}
    assert len({one.subgroup.elements for one in found}) == 28
    assert all(np.unique(np.bincount(one.labels)).tolist() == [one.subgroup.order] for one in found)
    assert (len(coset_partitions(3)), len(coset_partitions(2))) == (2 * 3 + 1, 0)


def test_shared_labels_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        coset_partitions(4)[0].labels[0] = 1


def test_cycles_are_written_from_one() -> None:
    assert [cycles(p) for p in ((0, 1, 2, 3), (1, 2, 3, 0), (3, 1, 2, 0), (2, 3, 0, 1))] == [
        "e",
        "(1234)",
        "(14)",
        "(13)(24)",
    ]


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        ([[0, 1, 2], [1, 2, 0]], "`elements` must be a subgroup, got 2 permutations"),
        ([[1, 2, 3], [2, 1, 3]], "`elements` must .*0 to 2 once.*got .1, 2, 3.; count from 0"),
        ([0, 1, 2], r"of shape \(permutations, n\)"),
        ([[0.0, 1.0]], "whole numbers"),
        ([list(range(6))], "from 1 to 5, got 6"),
    ],
)
def test_what_is_no_subgroup_is_refused(elements: object, message: str) -> None:
    for cosets in (left_cosets, right_cosets):
        with pytest.raises(ValueError, match=message):
            cosets(elements)


@pytest.mark.parametrize("n", [0, 6, 2.5])
def test_only_small_groups_are_listed(n: int) -> None:
    with pytest.raises(ValueError, match="from 1 to 5"):
        subgroups(n)
