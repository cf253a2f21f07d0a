"""Tokens in a plane: edges and colors show the structure, frames have one scale, diverged runs are counted."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from harmax.analysis import project
from harmax.figures import house_style
from harmax_lab.algorithmic import planes
from harmax_lab.algorithmic.measures import middle_seed
from harmax_lab.report.svg import to_svg
from harmax_lab.tasks import TASKS, Structure, find_task
from planted_structures import diverged, ideal, planted


def structure(task: str) -> Structure:
    return find_task(task).structure


def test_neighbors_of_a_lattice_are_joined() -> None:
    grid = structure("lattice")
    edges = planes.look_of(grid).edges
    assert len(edges) == 40
    steps = np.abs(grid.values[edges[:, 0]] - grid.values[edges[:, 1]])
    assert (steps.sum(1) == 1).all()


@pytest.mark.parametrize("frequency", [1, 7, 15])
def test_residues_are_joined_and_colored_in_the_order_of_the_frequency(frequency: int) -> None:
    residues = structure("modular_addition").values
    look = planes.look_of(structure("modular_addition"), frequency=frequency)
    start, end = residues[look.edges].T
    assert set((frequency * (end - start)) % 31) == {1}
    assert len(set(look.colors)) == 31
    assert look.colors[0] == planes.hue_color(0)
    neighbor = int(np.flatnonzero(frequency * residues % 31 == 1)[0])
    assert look.colors[neighbor] == planes.hue_color(1 / 31)


def test_a_frequency_that_is_no_round_trip_is_drawn_all_the_same() -> None:
    look = planes.look_of(Structure("circle", np.arange(6)), frequency=2)
    assert sorted(look.edges[:, 0]) == list(range(6))


def test_children_are_joined_to_their_parents_and_colored_by_depth() -> None:
    tree = structure("genealogy")
    look = planes.look_of(tree)
    assert len(look.edges) == 126
    assert all(tree.parents[child] == parent for parent, child in look.edges)
    assert len(set(look.colors)) == 7
    assert not len(planes.look_of(tree, coarse=True).edges)


def test_each_part_of_a_partition_has_its_color_and_hull() -> None:
    partition = np.arange(24) % 12
    look = planes.look_of(structure("permutation"), partition=partition)
    assert len(look.groups) == len(set(look.colors)) == 12
    for members in look.groups:
        assert len(set(partition[members])) == 1


def test_a_hull_holds_its_points_and_turns_one_way() -> None:
    points = np.random.default_rng(0).normal(size=(50, 2))
    corners = planes.convex_hull(points)
    sides = np.roll(corners, -1, axis=0) - corners
    for point in points:
        away = point - corners
        assert (sides[:, 0] * away[:, 1] - sides[:, 1] * away[:, 0] >= -1e-12).all()
    assert 3 <= len(corners) < 20


@pytest.mark.parametrize("points", [[[0.0, 0]], [[0.0, 0], [1, 1]], [[0.0, 0], [1, 1], [2, 2]], [[1.0, 1]] * 4])
def test_a_hull_of_few_or_collinear_points_is_no_error(points: list[list[float]]) -> None:
    corners = planes.convex_hull(np.array(points))
    assert set(map(tuple, corners.tolist())) <= set(map(tuple, points))


@pytest.mark.parametrize("task", TASKS)
def test_a_panel_shows_every_token_at_one_scale(task: str) -> None:
    points = 1e-6 * ideal(structure(task), np.random.default_rng(0)) + 3
    with house_style():
        axes = Figure().subplots()
        xy, look = planes.plane_of(structure(task), points)
        planes.draw_tokens(axes, xy, look)
    low_x, high_x = axes.get_xlim()
    low_y, high_y = axes.get_ylim()
    assert high_x - low_x == pytest.approx(high_y - low_y)
    assert axes.get_box_aspect() == 1
    assert ((xy > [low_x, low_y]) & (xy < [high_x, high_y])).all()


def test_tokens_that_coincide_are_drawn_without_complaint() -> None:
    axes = Figure().subplots()
    planes.draw_tokens(axes, np.zeros((25, 2)), planes.look_of(structure("lattice")))
    assert axes.get_xlim()[0] < 0 < axes.get_xlim()[1]


def test_the_plane_finds_the_planted_frequency_and_cosets() -> None:
    generator = np.random.default_rng(0)
    residues = structure("modular_addition")
    _, look = planes.plane_of(residues, ideal(residues, generator))
    start, end = residues.values[look.edges].T
    assert set((7 * (end - start)) % 31) in ({1}, {30})
    _, look = planes.plane_of(structure("permutation"), ideal(structure("permutation"), generator))
    assert sorted(map(len, look.groups)) == [4] * 6


def test_a_sheet_of_many_runs_is_a_small_file_that_shows_every_dot() -> None:
    tree = structure("genealogy")
    xy = project(ideal(tree, np.random.default_rng(0)))
    panels = [(xy, planes.look_of(tree, coarse=True))] * 19
    with house_style():
        figure = Figure()
        axes = figure.subplots()
        planes.draw_sheet(axes, [*panels, None], ["50.1 %"] * 19 + ["diverged"])
        svg = to_svg(figure, "sheet")
    assert [text.get_text() for text in axes.texts][-1] == "diverged"
    dots = sum(np.isnan(line.get_xdata()).sum() for line in axes.lines if line.get_solid_capstyle() == "round")
    assert dots == 19 * 127
    assert len(svg) < 150_000


def test_the_middle_seed_counts_diverged_runs_and_takes_the_lower_of_two() -> None:
    assert middle_seed({4: 0.2, 5: 0.9, 6: 0.5}) == 6
    assert middle_seed({4: 0.2, 5: 0.9, 6: 0.5, 7: 0.6}) == 6
    assert middle_seed({4: None, 5: 0.9, 6: None, 7: 0.6}) == 6


def test_the_drawn_run_is_the_median_one_and_a_diverged_median_says_so() -> None:
    lattice = structure("lattice")
    found = {seed: planted("lattice", "matched", noise=noise, seed=seed) for seed, noise in enumerate((0.1, 2.0, 0.7))}
    axes = Figure().subplots()
    share = planes.draw_middle(axes, lattice, found)
    alone = planes.draw_middle(Figure().subplots(), lattice, {2: found[2]})
    assert share == alone
    broken = {seed: diverged(result) if seed else result for seed, result in found.items()}
    axes = Figure().subplots()
    assert planes.draw_middle(axes, lattice, broken) == ""
    assert axes.texts[0].get_text() == "diverged at epoch 3"
    assert planes.draw_middle(Figure().subplots(), lattice, {}) == ""


def test_a_percentage_says_100_only_where_it_is() -> None:
    assert planes.percent(0.9996) == "99.9 %"
    assert planes.percent(1.0) == "100 %"
