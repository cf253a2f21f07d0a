"""How an embedding grew: its tokens along three axes at each stored epoch, small enough for a page."""

# T snapshots, K tokens, D features, E edges

from collections.abc import Sequence
from typing import Any

import numpy as np

from harmax.analysis import pca, project
from harmax.analysis.arrays import checked_points
from harmax.figures import spaced
from harmax.inspect.explorer.document import GrownRun, pack

AXES = 3
STEPS = 32767
"""A coordinate is stored in so many steps of its snapshot's largest one: it is wrong by at most 1/65534 of that."""
MOST_OF_A_CURVE = 160


def grown_run(
    embedding: Any,
    epochs: Sequence[int],
    curves: tuple[Any, Any],
    *,
    colors: Sequence[str],
    edges: Any = (),
    **named: Any,
) -> GrownRun:
    """Return a run as a page shows it.

    All snapshots are seen along the principal axes of the last one. Axes found anew for each would flip and turn.

    Args:
        embedding: (T, K, D), the tokens at each snapshot.
        epochs: finished at each snapshot, (T,).
        curves: accuracies on training and test data after each epoch.
        colors: of the tokens, (K,).
        edges: pairs of tokens to join, (E, 2).
        named: the other fields of `GrownRun`.
    """
    found_TKD = np.asarray(embedding, dtype=np.float64)
    if found_TKD.ndim != 3 or len(found_TKD) != len(epochs):
        raise ValueError(
            f"`embedding` must have shape ({len(epochs)} snapshots, tokens, features), got {found_TKD.shape}; pass one "
            "snapshot per epoch."
        )
    axes = pca(checked_points(found_TKD[-1]))
    points_TK3 = np.stack([project(one, AXES, fitted=axes) for one in found_TKD])
    units_T = np.abs(points_TK3).max((1, 2)) / STEPS
    steps = np.divide(
        points_TK3, units_T[:, None, None], out=np.zeros_like(points_TK3), where=units_T[:, None, None] > 0
    )
    return GrownRun(
        colors=tuple(colors),
        edges=pack(np.asarray(edges, dtype=np.int32).reshape(-1, 2), "int32"),
        epochs=tuple(int(epoch) for epoch in epochs),
        points=pack(np.rint(steps), "int16"),
        units=pack(units_T),
        shares=tuple(round(float(share), 6) for share in axes.ratio[:AXES]),
        **_short(curves),
        **named,
    )


def broken_run(note: str, curves: tuple[Any, Any], **named: Any) -> GrownRun:
    """Return a run without tokens to show, and why. Its accuracies are kept."""
    nothing = pack(np.zeros((0, 0, AXES)), "int16")
    empty: dict[str, Any] = {"colors": (), "edges": pack(np.zeros((0, 2)), "int32"), "epochs": (), "shares": ()}
    return GrownRun(points=nothing, units=pack([]), note=note, **empty, **_short(curves), **named)


def _short(curves: tuple[Any, Any]) -> dict[str, Any]:
    train, test = (np.asarray(curve, dtype=np.float32) for curve in curves)
    count = len(train)
    kept = spaced(count, MOST_OF_A_CURVE) if count > MOST_OF_A_CURVE else np.arange(count)
    # After the first epoch, which is number 0 of a curve, one epoch is finished.
    return {
        "curve_epochs": pack(kept + 1, "int32"),
        "train_accuracy": pack(train[kept]),
        "test_accuracy": pack(test[kept]),
    }
