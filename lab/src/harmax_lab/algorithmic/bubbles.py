"""Dots that carry labels: big enough to read, and moved apart where they would cover each other."""

# K tokens; places are in points of 1/72 inch

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SMALLEST, LARGEST_FONT, SHARE_OF_PANEL = 4.0, 7.5, 0.2
CHARACTER = 0.72  # of the font's size: the width of a bold digit
GOLDEN_ANGLE = np.pi * (3 - 5**0.5)
PULL, GAP = 0.08, 1.06
FIRST_STEPS, STEPS = 100, 40


def radius_of(labels: Sequence[str], panel: tuple[float, float]) -> float:
    """Return the radius of dots that hold these labels; smaller where many of them share a panel (width, height)."""
    wanted = 4.4 + 1.35 * max(map(len, labels))
    room = (SHARE_OF_PANEL * panel[0] * panel[1] / (np.pi * len(labels))) ** 0.5
    return float(max(SMALLEST, min(wanted, room)))


def spread(places_K2: np.ndarray, radius: float, *, before: np.ndarray | None = None) -> np.ndarray:
    """Move dots of a radius apart until none covers another, each as near to its place as it can stay.

    Args:
        places_K2: where they belong.
        radius: of every dot.
        before: where they are in the frame before, relative to their places, so that a film does not jump.

    >>> spread(np.array([[0.0, 0.0], [30.0, 0.0]]), radius=5).tolist()
    [[0.0, 0.0], [30.0, 0.0]]
    >>> moved = spread(np.zeros((8, 2)), radius=5)
    >>> bool(min(np.linalg.norm(a - b) for i, a in enumerate(moved) for b in moved[:i]) > 9)
    True
    """
    count, apart, steps = len(places_K2), 2 * radius * GAP, STEPS
    if not _covered(places_K2, apart):
        return places_K2.copy()
    if before is None or not before.any():
        turn = GOLDEN_ANGLE * np.arange(count)  # dots at one place leave it in different directions
        before, steps = 1e-3 * radius * np.stack([np.cos(turn), np.sin(turn)], axis=1), FIRST_STEPS
    dots = places_K2 + before
    for step in range(steps):
        away = dots[:, None] - dots[None]
        distance = np.linalg.norm(away, axis=2) + np.eye(count) * 2 * apart
        overlap = np.clip(apart - distance, 0, None)
        push = (away / np.maximum(distance, 1e-9)[..., None] * overlap[..., None]).sum(1)
        pull = PULL * (places_K2 - dots) if step < 0.75 * steps else 0  # at the end nothing pulls them together
        dots = dots + 0.45 * push + pull
    return dots


def _covered(places_K2: np.ndarray, apart: float) -> bool:
    distance = np.linalg.norm(places_K2[:, None] - places_K2[None], axis=2) + np.eye(len(places_K2)) * apart
    return bool((distance < apart).any())


def draw_bubbles(
    axes: "Axes",
    places_K2: np.ndarray,
    dots_K2: np.ndarray,
    labels: Sequence[str],
    colors: Sequence[str],
    radius: float,
) -> None:
    """Draw labeled dots; from one that was moved, a line leads to its place."""
    size = min(LARGEST_FONT, 2 * radius / (CHARACTER * max(max(map(len, labels)), 2)))
    font: dict[str, Any] = {"fontsize": size, "fontweight": "bold", "ha": "center", "va": "center_baseline"}
    moved = np.linalg.norm(dots_K2 - places_K2, axis=1) > radius
    for place, dot in zip(places_K2[moved], dots_K2[moved], strict=True):
        axes.plot([place[0], dot[0]], [place[1], dot[1]], color="#9a9a9a", linewidth=0.5, zorder=1.5)
    axes.scatter(places_K2[moved, 0], places_K2[moved, 1], s=5, c="#555555", zorder=1.6)
    for token, (x, y) in enumerate(dots_K2.tolist()):
        above = 2 + token  # a dot in front hides the label behind it, not only its dot
        color = colors[token]
        axes.scatter([x], [y], s=(2 * radius) ** 2, c=[color], edgecolors="white", linewidths=0.7, zorder=above)
        axes.text(x, y, labels[token], color=_ink(color), zorder=above, **font)


def _ink(color: str) -> str:
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 165 else "#222222"
