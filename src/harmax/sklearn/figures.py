"""Pictures of a fitted `HarmonicClassifier`: its centers as a table of colors, and its regions."""

# V classes, C columns, G places of a grid

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from harmax.figures import Picture, class_color, headline, house_style, mark_handle, new_figure
from harmax.sklearn.explanation import short

if TYPE_CHECKING:
    from harmax.sklearn.classifier import HarmonicClassifier

MOST_COLUMNS = 30


def draw_centers(model: "HarmonicClassifier") -> Picture:
    """Draw the centers: one row per column of the table, one column per class, values in the units of the table.

    Colors are standard deviations above or below the average row. Columns in which centers differ most come first.
    """
    check_is_fitted(model)
    if model.hidden is not None:
        raise ValueError(
            "the model must look at columns to draw its centers, got one with a hidden layer; leave `hidden` out."
        )
    encoding = model._columns
    w_VD = model._model.head.centers.numpy()
    units_VD = encoding.in_units(w_VD)
    order = np.argsort(-np.ptp(w_VD, axis=0), kind="stable")[:MOST_COLUMNS]
    names = [encoding.names[place] for place in order]
    with house_style():
        figure = new_figure(2.6 + 0.95 * len(w_VD), 1.3 + 0.3 * len(names))
        axes = figure.subplots()
        limit = max(2.0, float(np.abs(w_VD[:, order]).max()))
        shown = axes.imshow(w_VD[:, order].T, cmap="PuOr_r", vmin=-limit, vmax=limit, aspect="auto")
        axes.set_xticks(range(len(w_VD)), [_cut(str(one)) for one in model.classes_])
        axes.set_yticks(range(len(names)), [_cut(name, 28) for name in names])
        axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
        axes.spines[:].set_visible(False)
        axes.grid(False)
        if len(w_VD) <= 12:
            for row, place in enumerate(order):
                for column, value in enumerate(units_VD[:, place]):
                    color = "white" if abs(w_VD[column, place]) > 0.6 * limit else "black"
                    text = short(value, _spread(model, place))
                    axes.text(column, row, text, ha="center", va="center", color=color)
        figure.colorbar(shown, ax=axes, shrink=min(1.0, 4 / len(names) + 0.2), label="standard deviations")
    left = len(encoding.names) - len(names)
    more = f" The {left} columns in which centers differ least are left out." if left else ""
    return Picture(figure, f"Centers of the classes in the units of the table; colors are standard deviations.{more}")


def draw_regions(model: "HarmonicClassifier", columns: tuple[str | int, str | int] | None = None) -> Picture:
    """Draw which class wins where, over two columns of numbers, with the training rows and the centers.

    All other columns are at their average, so with more than two columns the map is one slice through the regions, and
    a dot may lie outside the region of its class. Paler colors mean less sure.

    Args:
        model: a fitted classifier without a hidden layer.
        columns: names or places of two columns; None means the two in which centers differ most.
    """
    check_is_fitted(model)
    if model.hidden is not None or model.features is not None:
        raise ValueError(
            "the model must look at columns of the table to draw regions, got one with a hidden layer or features; "
            "fit one without."
        )
    across, up = _two_columns(model, columns)
    x_ND, w_VD = model._rows.x_ND.numpy(), model._model.head.centers.numpy()
    ends = [_reach(x_ND[:, place], w_VD[:, place]) for place in (across, up)]
    grids = [np.linspace(low, high, 240) for low, high in ends]
    mesh_GD = np.zeros((grids[0].size * grids[1].size, x_ND.shape[1]))
    mesh_GD[:, across], mesh_GD[:, up] = (one.reshape(-1) for one in np.meshgrid(*grids))
    p_GV = np.exp(model._log_p(mesh_GD))
    with house_style():
        from matplotlib.colors import to_rgb

        figure = new_figure(6.4, 5.2)
        axes = figure.subplots()
        colors_V3 = np.array([to_rgb(class_color(place)) for place in range(len(w_VD))])
        sure_G = p_GV.max(axis=1, keepdims=True) ** 2
        image = 1 - 0.55 * sure_G * (1 - colors_V3[p_GV.argmax(axis=1)])
        to_units = [lambda v, p=place: v * _spread(model, p) + _mean(model, p) for place in (across, up)]
        left, right = (float(one) for one in to_units[0](np.array(ends[0])))
        bottom, top = (float(one) for one in to_units[1](np.array(ends[1])))
        image_HW3 = image.reshape(grids[1].size, grids[0].size, 3)
        axes.imshow(
            image_HW3, origin="lower", extent=(left, right, bottom, top), aspect="auto", interpolation="bilinear"
        )
        for place, color in enumerate(colors_V3):
            own = x_ND[model._rows.y_N.numpy() == place]
            axes.plot(
                to_units[0](own[:, across]), to_units[1](own[:, up]), "o", color=color, ms=3.5, mec="white", mew=0.4
            )
            axes.plot(
                to_units[0](w_VD[place, across]), to_units[1](w_VD[place, up]), "X", color=color, ms=12, mec="black"
            )
        axes.set(xlabel=model._columns.names[across], ylabel=model._columns.names[up])
        axes.grid(False)
        handles = [mark_handle(_cut(str(one)), "o", class_color(place)) for place, one in enumerate(model.classes_)]
        headline(figure, "Which class wins where", [*handles, mark_handle("center", "X", "#444444", size=9)])
    rest = x_ND.shape[1] - 2
    others = f" The {rest} other columns are at their average." if rest else ""
    return Picture(figure, f"Regions of the classes; dots are training rows. Paler means less sure.{others}")


def _two_columns(model: "HarmonicClassifier", columns: Any) -> tuple[int, int]:
    encoding = model._columns
    numbers = [place.start for one, place in zip(encoding.columns, encoding.places, strict=True) if not one.categories]
    if len(numbers) < 2:
        raise ValueError(f"the table must have two columns of numbers for a map, got {len(numbers)}; use draw_centers.")
    if columns is None:
        spread_D = np.ptp(model._model.head.centers.numpy(), axis=0)
        first, second = sorted(numbers, key=lambda place: -spread_D[place])[:2]
        return first, second
    names = encoding.names
    first, second = (names.index(one) if isinstance(one, str) and one in names else one for one in columns)
    if first not in numbers or second not in numbers:
        raise ValueError(
            f"`columns` must be two columns of numbers, got {columns}; they are {', '.join(names[n] for n in numbers)}."
        )
    return first, second


def _reach(rows_N: np.ndarray, centers_V: np.ndarray) -> tuple[float, float]:
    low, high = min(rows_N.min(), centers_V.min()), max(rows_N.max(), centers_V.max())
    edge = 0.06 * (high - low)
    return float(low - edge), float(high + edge)


def _spread(model: "HarmonicClassifier", place: int) -> float:
    both = zip(model._columns.columns, model._columns.places, strict=True)
    return next(one.spread for one, at in both if at.start <= place < at.stop)


def _mean(model: "HarmonicClassifier", place: int) -> float:
    return float(np.concatenate([one.mean for one in model._columns.columns])[place])


def _cut(name: str, most: int = 14) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
