"""Pictures made of characters: labels in a plane, and a curve in a line."""

from collections.abc import Sequence

import numpy as np

from harmax_lab.ensemble.progress import BARS

ASPECT = 2.1  # a character is so much higher than wide


def labels_in_plane(places_K2: np.ndarray, labels: Sequence[str], *, width: int = 46, height: int = 19) -> list[str]:
    """Write labels where they belong in a plane; one that would cover another is put beside it, or left out.

    >>> labels_in_plane(np.array([[-1, 0], [1, 0], [0, 1], [0, -1]]), "0123", width=9, height=3)
    ['    2    ', '  0   1  ', '    3    ']
    """
    scale = np.minimum((width - max(map(len, labels))) / ASPECT, height - 1) / 2
    centered = places_K2 - (places_K2.min(0) + places_K2.max(0)) / 2
    centered = centered / max(float(np.abs(centered).max()), 1e-12) * scale
    lines = [[" "] * width for _ in range(height)]
    for (x, y), label in zip(centered.tolist(), labels, strict=True):
        column, row = round(width / 2 - 0.5 + x * ASPECT - len(label) / 2 + 0.5), round((height - 1) / 2 - y)
        for across, down in BESIDE:
            start, line = column + across, row + down
            before, after = max(start - 1, 0), start + len(label) + 1
            if 0 <= line < height and 0 <= start <= width - len(label) and set(lines[line][before:after]) == {" "}:
                lines[line][start : start + len(label)] = label
                break
    return ["".join(line) for line in lines]


BESIDE = sorted(((x, y) for x in range(-4, 5) for y in range(-1, 2)), key=lambda at: abs(at[0]) + 3 * abs(at[1]))


def curve_in_line(values: Sequence[float], *, width: int = 24) -> str:
    """Draw values between 0 and 1 as a line of bars.

    >>> curve_in_line([0.0, 0.5, 1.0], width=3)
    '▁▄█'
    """
    taken = np.asarray(values, dtype=float)[np.linspace(0, len(values) - 1, min(width, len(values))).astype(int)]
    return "".join(BARS[min(7, max(0, int(value * 7.999)))] for value in taken)
