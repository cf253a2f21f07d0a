"""Shapes as shares: the ideal has 1, squeezed and random ones less, and chance is told from structure."""

import numpy as np
import pytest

from harmax_lab.algorithmic import shapes
from harmax_lab.tasks import TASKS, Structure, find_task
from planted_structures import WIDTH, ideal


def structure(task: str) -> Structure:
    return find_task(task).structure


def noise(task: str, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(len(structure(task).values), WIDTH))


@pytest.mark.parametrize("task", TASKS)
def test_every_measure_has_a_value_for_a_diverged_run(task: str) -> None:
    own = structure(task)
    found = shapes.shapes(own, ideal(own, np.random.default_rng(0)))
    assert set(found) <= set(shapes.NOTHING[own.kind])


@pytest.mark.parametrize("squeezed", [1.0, 0.7, 0.2])
def test_an_ellipse_is_less_of_a_circle(squeezed: float) -> None:
    residues = structure("modular_addition").values
    angle = 2 * np.pi * 5 * residues / 31
    points = np.stack([np.cos(angle), squeezed * np.sin(angle)], 1)
    expected = (1 + squeezed) ** 2 / (2 * (1 + squeezed**2))
    turned = 3 * points @ np.linalg.qr(np.random.default_rng(0).normal(size=(WIDTH, WIDTH)))[0][:2] + 7
    for components in (2, None):
        assert shapes.circle_share(turned, residues, components) == pytest.approx(expected)


def test_what_leaves_the_plane_is_not_on_the_circle() -> None:
    residues = structure("modular_addition").values
    circle = ideal(structure("modular_addition"), np.random.default_rng(0))
    both = np.concatenate([circle, 0.5 * noise("modular_addition") / WIDTH**0.5], axis=1)
    assert shapes.circle_share(both, residues) > 0.97
    assert shapes.circle_share(both, residues, None) == pytest.approx(0.8, abs=0.03)
    assert shapes.circle_share(noise("modular_addition"), residues) < 0.3
    assert shapes.circle_share(np.ones((31, 3)), residues) == 0


def test_two_frequencies_in_one_plane_are_no_circle() -> None:
    residues = structure("modular_addition").values
    angle = 2 * np.pi * residues / 31
    assert shapes.circle_share(np.stack([np.cos(3 * angle), np.sin(8 * angle)], 1), residues) < 0.3


def test_a_lattice_on_a_line_has_one_direction() -> None:
    grid = structure("lattice").values
    assert shapes.lattice_of_equal_widths(grid * [1.0, 0.01], grid) == pytest.approx(1)
    assert shapes.lattice_of_equal_widths(grid @ [[1.0], [5.0]] @ [[1.0, 2.0]], grid) == 0
    bow = np.stack([grid @ [1.0, 5.0], 0.01 * np.square(grid @ [1.0, 5.0] - 12)], axis=1)
    assert shapes.lattice_of_equal_widths(bow, grid) < 0.7


def test_rows_of_generations_are_a_tower_and_a_cloud_is_none() -> None:
    tree = structure("genealogy")
    tower = ideal(tree, np.random.default_rng(0), "tower")
    assert shapes.tower_share(tower, tree.values) == pytest.approx(1)
    assert shapes.tower_share(tower[:, ::-1] * 2 - 1, tree.values) == pytest.approx(1)
    assert max(shapes.tower_share(noise("genealogy", seed), tree.values) for seed in range(20)) < 0.15


def test_structure_is_beyond_chance_and_noise_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harmax_lab.algorithmic.measures.DRAWS", 99)
    tree, classes = structure("genealogy"), structure("equivalence")
    generator = np.random.default_rng(0)

    def of_tree(points: np.ndarray) -> float:
        return shapes.tree_by_chance(points, tree.values, tree.parents)

    assert (
        of_tree(ideal(tree, generator)) == shapes.classes_by_chance(ideal(classes, generator), classes.values) == 0.01
    )
    alike = [of_tree(noise("genealogy", seed)) for seed in range(10)]
    mixed = [shapes.classes_by_chance(noise("equivalence", seed), classes.values) for seed in range(40)]
    assert np.mean(np.array(alike) < 0.05) <= 0.2
    assert np.mean(np.array(mixed) < 0.05) <= 0.15
    assert shapes.classes_by_chance(np.ones((40, 3)), classes.values) == 1
