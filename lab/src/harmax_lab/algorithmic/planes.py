"""Tokens in a plane, drawn by what they mean: the part that every picture of an embedding shares."""

# K shown tokens, D features, E edges

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.analysis import explained_variance, project
from harmax.figures import CLASS_COLORS
from harmax_lab.algorithmic.measures import fit, last_embedding, middle_seed
from harmax_lab.kit.store import CellResult
from harmax_lab.tasks import Structure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Seven muted colors and five more of the same scheme's author, for the twelve cosets of a subgroup of two.
GROUP_COLORS = (*CLASS_COLORS, "#DDCC77", "#117733", "#EE8866", "#777777", "#77AADD")
DEPTH_COLORS = ("#440154", "#443983", "#31688e", "#21918c", "#35b779", "#90d743", "#d8b419")  # viridis, the end darker
CORNERS = ("#332288", "#88CCEE", "#CC6677", "#DDCC77")
EDGE_COLOR, NOTHING = "#b4b4b4", "#8a8a8a"
COARSE_HUES = 8
SHEET_COLUMNS = 10
CELL_SIDES = ((0, 0, 1, 0), (0, -1, 1, -1), (0, 0, 0, -1), (1, 0, 1, -1))  # from (x, y) to (x, y)


@dataclass(frozen=True, eq=False)
class Look:
    """How tokens are drawn: a color each, faint edges between some, a shaded hull around each group."""

    colors: tuple[str, ...]
    edges: np.ndarray
    """Pairs of tokens, (E, 2)."""
    groups: tuple[np.ndarray, ...] = ()


def look_of(
    structure: Structure, *, frequency: int = 1, partition: np.ndarray | None = None, coarse: bool = False
) -> Look:
    """Choose colors and edges that show whether an embedding has a structure.

    Lattice: neighbors are joined, and colors blend between four corners. Circle: residue r has color number
    frequency * r, and residues with neighboring colors are joined. So a circle of that frequency shows the rainbow in
    order. Classes: one color each. Tree: one color per depth, with lines from children to parents. Group: one color and
    one hull for each part of the partition.

    Args:
        structure: of the shown tokens.
        frequency: of the circle, coprime to the modulus.
        partition: the part of each token, (K,); None leaves a group in one color.
        coarse: few colors and no branches, for pictures of many runs.
    """
    values, none = structure.values, np.empty((0, 2), dtype=int)
    if structure.kind == "lattice":
        edges = np.argwhere(np.triu(np.abs(values[:, None] - values[None]).sum(-1) == 1))
        return Look((CORNERS[0],) * len(values) if coarse else _blend(values), edges)
    if structure.kind == "circle":
        size = len(values)
        place = values * frequency % size
        # A frequency that shares a factor with the modulus puts residues on top of one another: no round trip.
        trip = np.argsort(place) if math.gcd(frequency, size) == 1 else np.arange(size)
        hues = np.floor(place * COARSE_HUES / size) / COARSE_HUES if coarse else place / size
        return Look(tuple(map(hue_color, hues)), np.stack([trip, np.roll(trip, -1)], axis=1))
    if structure.kind == "classes":
        return Look(_cycle(GROUP_COLORS, values), none)
    if structure.kind == "tree":
        assert structure.parents is not None
        children = np.flatnonzero(structure.parents >= 0)
        edges = none if coarse else np.stack([structure.parents[children], children], axis=1)
        return Look(_cycle(DEPTH_COLORS, values), edges)
    if partition is None:
        return Look((GROUP_COLORS[0],) * len(values), none)
    parts, labels = np.unique(partition, return_inverse=True)
    return Look(_cycle(GROUP_COLORS, labels), none, tuple(np.flatnonzero(partition == part) for part in parts))


def hue_color(turn: float) -> str:
    """Return a color of the wheel; all have the same sum of red, green and blue.

    >>> hue_color(0.0), hue_color(1 / 3)
    ('#d64141', '#41d641')
    """
    return _hex(0.45 + 0.39 * math.cos(2 * math.pi * (turn - third / 3)) for third in range(3))


def plane_of(structure: Structure, embedding_KD: np.ndarray, *, coarse: bool = False) -> tuple[np.ndarray, Look]:
    """Return the tokens in the plane of two components (K, 2), and the look that fits what is found there."""
    found: dict[str, Any] = {}
    if structure.kind == "circle":
        found = {"frequency": fit(structure, embedding_KD).frequency}
    elif structure.kind == "group":
        found = {"partition": fit(structure, embedding_KD).labels}
    return project(embedding_KD), look_of(structure, coarse=coarse, **found)


def percent(share: float) -> str:
    """Write a share as a percentage that only says 100 where it is.

    >>> percent(0.87654), percent(0.99951), percent(0.99999)
    ('87.7 %', '99.9 %', '100 %')
    """
    return f"{min(100 * share, 99.9):.1f} %" if share < 0.9999 else "100 %"


def draw_tokens(axes: "Axes", xy_K2: np.ndarray, look: Look, *, size: float = 4.0) -> None:
    """Draw tokens at points of a plane, with one scale for both axes; `size` is a dot's diameter in points."""
    _prepare(axes)
    middle, reach = (xy_K2.min(0) + xy_K2.max(0)) / 2, 0.56 * _width(xy_K2)
    axes.set(xlim=(middle[0] - reach, middle[0] + reach), ylim=(middle[1] - reach, middle[1] + reach))
    draw_backdrop(axes, xy_K2, look)
    axes.scatter(xy_K2[:, 0], xy_K2[:, 1], s=size**2, c=list(look.colors), linewidths=0.3, edgecolors="white", zorder=3)


def draw_backdrop(axes: "Axes", xy_K2: np.ndarray, look: Look) -> None:
    """Draw what lies behind the tokens: the lines between some of them, and the hulls of groups."""
    crowded = len(look.edges) > 60  # a tree's branches would hide its nodes
    _strokes(axes, xy_K2[look.edges], color=EDGE_COLOR, linewidth=0.35 if crowded else 0.6, zorder=1)
    _fill_groups(axes, xy_K2, look, width=1.0)


def draw_sheet(axes: "Axes", panels: Sequence[tuple[np.ndarray, Look] | None], words: Sequence[str]) -> None:
    """Draw the tokens of many runs as the cells of one panel, with a few words in each corner; None is an empty cell.

    Cells share their axes, and all dots of a color are one path, so that a page of a hundred runs stays a small file.
    """
    axes.axis("off")
    columns = min(len(panels), SHEET_COLUMNS)
    corners = [np.array([index % columns, -(index // columns)], dtype=float) for index in range(len(panels))]
    axes.set(xlim=(0, columns), ylim=(corners[-1][1] - 1, 0), aspect="equal")
    placed: list[np.ndarray] = []
    colors: list[str] = []
    edges: list[np.ndarray] = []
    for corner, panel, text in zip(corners, panels, words, strict=True):
        axes.text(corner[0] + 0.05, corner[1] - 0.05, text, fontsize=6, va="top", color="#666666")
        if panel is None:
            continue
        xy_K2, look = panel
        shrunk = (xy_K2 - (xy_K2.min(0) + xy_K2.max(0)) / 2) * 0.78 / _width(xy_K2) + corner + (0.5, -0.54)
        edges.append(look.edges + sum(map(len, placed)))
        placed.append(shrunk)
        colors.extend(look.colors)
        _fill_groups(axes, shrunk, look, width=0.4)
    sides = [[corner + side[:2], corner + side[2:]] for corner in corners for side in CELL_SIDES]
    _strokes(axes, np.array(sides), color="#d4d4d4", linewidth=0.5, zorder=0, clip_on=False)
    if placed:
        everything, hair = np.concatenate(placed), np.array([[-5e-4, 0], [5e-4, 0]])
        _strokes(axes, everything[np.concatenate(edges)], color=EDGE_COLOR, linewidth=0.3, zorder=1)
        for color in dict.fromkeys(colors):
            # A stroke of almost no length with round ends is a dot, and many of them are one path.
            ends = everything[np.array(colors) == color][:, None] + hair
            _strokes(axes, ends, color=color, linewidth=2.0, solid_capstyle="round", zorder=3)


def draw_run(axes: "Axes", structure: Structure, result: CellResult | None, *, size: float = 4.0) -> np.ndarray | None:
    """Draw a run's last embedding and return it; where there is none, leave the panel empty but for the reason."""
    embedding = None if result is None else last_embedding(result)
    if embedding is None:
        words = "no run finished" if result is None else f"diverged at epoch {result.metrics['diverged_at']}"
        _prepare(axes)
        place: Any = {"transform": axes.transAxes, "ha": "center", "va": "center"}
        axes.text(0.5, 0.5, words, color=NOTHING, fontsize="small", **place)
    else:
        draw_tokens(axes, *plane_of(structure, embedding), size=size)
    return embedding


def draw_middle(axes: "Axes", structure: Structure, found: Mapping[int, CellResult], *, size: float = 4.0) -> str:
    """Draw, of runs by seed, the one whose share of variance in the plane is the median; return that share in words."""
    ends = {seed: last_embedding(result) for seed, result in found.items()}
    shares = {seed: None if end is None else explained_variance(end) for seed, end in ends.items()}
    embedding = draw_run(axes, structure, found[middle_seed(shares)] if shares else None, size=size)
    return "" if embedding is None else percent(explained_variance(embedding))


def convex_hull(points: np.ndarray) -> np.ndarray:
    """Return the corners of the convex hull of points (K, 2), counterclockwise.

    >>> convex_hull(np.array([[0, 0], [2, 0], [1, 1], [0, 2], [2, 2]])).tolist()
    [[0, 0], [2, 0], [2, 2], [0, 2]]
    """
    from scipy.spatial import ConvexHull, QhullError  # slow to import, and only figures of permutations need it

    ordered = np.unique(points, axis=0)
    try:
        corners = ConvexHull(ordered).vertices
    except (QhullError, ValueError):  # fewer than three points, or all on a line
        return ordered
    return ordered[np.roll(corners, -corners.argmin())]


def _prepare(axes: "Axes") -> None:
    """Make a square panel without numbers: principal components have no unit worth reading."""
    axes.grid(False)
    axes.set(xticks=[], yticks=[], box_aspect=1)
    for spine in axes.spines.values():
        spine.set(visible=True, color="#cccccc", linewidth=0.6)


def _width(xy_K2: np.ndarray) -> float:
    return float(np.ptp(xy_K2, axis=0).max()) or 1.0  # tokens that all coincide still need a frame


def _fill_groups(axes: "Axes", xy_K2: np.ndarray, look: Look, *, width: float) -> None:
    for members in look.groups:
        color = look.colors[members[0]]
        axes.fill(*convex_hull(xy_K2[members]).T, color=color, alpha=0.22, linewidth=width, zorder=2)


def _strokes(axes: "Axes", ends_E22: np.ndarray, **style: Any) -> None:
    if len(ends_E22):
        gap = np.full((len(ends_E22), 1, 2), np.nan)
        (line,) = axes.plot(*np.concatenate([ends_E22, gap], axis=1).reshape(-1, 2).T, **style)
        # Both would drop strokes shorter than a pixel.
        line.get_path().should_simplify = False
        line.set_snap(False)


def _cycle(colors: Sequence[str], values: np.ndarray) -> tuple[str, ...]:
    return tuple(colors[int(value) % len(colors)] for value in values)


def _blend(values: np.ndarray) -> tuple[str, ...]:
    low, high = values.min(0), values.max(0)
    share = (values - low) / np.maximum(high - low, 1)
    x, y = share[:, :1], share[:, -1:]
    corners = [np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]) for color in CORNERS]
    mixed = (1 - x) * ((1 - y) * corners[0] + y * corners[1]) + x * ((1 - y) * corners[2] + y * corners[3])
    return tuple(map(_hex, mixed))


def _hex(channels: Iterable[float]) -> str:
    return "#" + "".join(f"{round(255 * float(channel)):02x}" for channel in channels)
