r"""Neural collapse: whether features concentrate at their class means, and the means form a regular simplex.

The definitions are those of Papyan, Han and Donoho (2020, "Prevalence of neural collapse during the terminal phase of
deep learning training"). With class means :math:`\mu_c`, their mean :math:`\mu_G` and C classes, every number here is
0 at collapse. In that paper all classes have the same size. Here every class has the same weight, whatever its size.
"""

# N images, D features, C classes, R directions in which class means differ

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from harmax.analysis.arrays import checked_labels, checked_points

BLOCK = 4096  # images that are processed together, to avoid a float64 copy of all features
KINDS = ("linear", "centers")


class NeuralCollapse(NamedTuple):
    """The four measures and their parts; NaN for a measure whose inputs were not given."""

    within_between: float
    """NC1, tr(S_W pinv(S_B)) / C: spread within classes relative to spread between them."""
    equinorm_means: float
    """NC2, standard deviation divided by mean of the lengths of mu_c - mu_G."""
    equinorm_weights: float
    """NC2, the same for the classifier's rows."""
    equiangular_means: float
    """NC2, standard deviation of the cosines between the mu_c - mu_G of two classes."""
    equiangular_weights: float
    """NC2, the same for the classifier's rows."""
    simplex_means: float
    """NC2, mean of |cosine + 1 / (C - 1)|: the distance of the cosines from those of a regular simplex."""
    simplex_weights: float
    """NC2, the same for the classifier's rows."""
    self_duality: float
    """NC3, |W / |W| - M / |M||^2 with Frobenius norms and M the mu_c - mu_G: 0 to 4, 2 for unrelated directions."""
    center_distance: float
    """NC3 of a harmonic head, whose rows are points in feature space: root mean square of |w_c - mu_c| divided by that
    of |mu_c - mu_G|."""
    disagreement: float
    """NC4, the share of images whose nearest class mean is not the predicted class."""


def neural_collapse(
    features: Any, labels: Any, *, weights: Any = None, kind: str = "linear", predicted: Any = None
) -> NeuralCollapse:
    r"""Measure neural collapse on images, usually the training images.

    .. math:: S_W = \mathrm{Avg}_{c, i} (h_{ci} - \mu_c)(h_{ci} - \mu_c)^\top, \qquad
        S_B = \mathrm{Avg}_c (\mu_c - \mu_G)(\mu_c - \mu_G)^\top

    Args:
        features: inputs of the head, (N, D), with every class at least once.
        labels: (N,), classes 0 to C - 1.
        weights: the classifier's rows, (C, D), for the measures that need them.
        kind: "linear" means that rows are directions. "centers" means that rows are points, as in a harmonic head. Then
            their mean is subtracted first, and `center_distance` is computed.
        predicted: the predicted classes, (N,), for NC4. For images outside the training set, compare with
            ``nearest_mean(features, class_means(train_features, train_labels))`` instead.

    >>> corners = np.eye(3)
    >>> found = neural_collapse(corners[[0, 0, 1, 1, 2, 2]], [0, 0, 1, 1, 2, 2], weights=corners, kind="centers")
    >>> round(found.within_between, 6), round(found.simplex_means, 6), round(found.center_distance, 6)
    (0.0, 0.0, 0.0)
    """
    if kind not in KINDS:
        raise ValueError(f"`kind` must be one of {', '.join(KINDS)}, got {kind!r}; choose one of them.")
    means_CD = class_means(features, labels)
    labels_N = np.asarray(labels)
    centered_CD = means_CD - means_CD.mean(0)
    spread = np.linalg.norm(centered_CD)
    if not spread > 0:
        raise ValueError("`features` must have class means that differ, got equal ones; pass the inputs of the head.")
    rows_CD, duality, distance = None, np.nan, np.nan
    if weights is not None:
        w_CD = checked_points(weights)
        if w_CD.shape != means_CD.shape:
            raise ValueError(
                f"`weights` must have shape {means_CD.shape} to match `features` and `labels`, got {w_CD.shape}; "
                "pass one row per class."
            )
        rows_CD = w_CD - w_CD.mean(0) if kind == "centers" else w_CD
        if not rows_CD.any():
            raise ValueError("`weights` must not be all equal or all 0, but they are; train the classifier first.")
        duality = float(np.square(rows_CD / np.linalg.norm(rows_CD) - centered_CD / spread).sum())
        distance = float(np.linalg.norm(w_CD - means_CD) / spread) if kind == "centers" else np.nan
    apart = np.nan
    if predicted is not None:
        apart = float(
            (nearest_mean(features, means_CD) != checked_labels("predicted", predicted, len(labels_N))).mean()
        )
    of_means, of_rows = _directions(centered_CD), _directions(rows_CD)
    return NeuralCollapse(
        within_between=_within_between(features, labels_N, means_CD),
        equinorm_means=of_means[0],
        equinorm_weights=of_rows[0],
        equiangular_means=of_means[1],
        equiangular_weights=of_rows[1],
        simplex_means=of_means[2],
        simplex_weights=of_rows[2],
        self_duality=duality,
        center_distance=distance,
        disagreement=apart,
    )


def class_means(features: Any, labels: Any) -> np.ndarray:
    """Return the mean feature vector of each class, (C, D) float64.

    Args:
        features: (N, D).
        labels: (N,), 0 to C - 1, each at least once, C at least 2.

    >>> class_means([[0.0, 1.0], [2.0, 1.0], [5.0, 5.0]], [0, 0, 1])
    array([[1., 1.],
           [5., 5.]])
    """
    x_ND = _checked_features(features)
    labels_N = checked_labels("labels", labels, len(x_ND))
    if labels_N.min() < 0:
        raise ValueError(f"`labels` must not be negative, got {labels_N.min()}; leave images without a class out.")
    counts_C = np.bincount(labels_N)
    if len(counts_C) < 2 or not counts_C.all():
        raise ValueError(
            f"`labels` must have 2 or more classes without gaps, got {int((counts_C > 0).sum())} of {len(counts_C)}; "
            "number the classes 0, 1, 2, ..."
        )
    sums_CD = np.zeros((len(counts_C), x_ND.shape[1]))
    for rows, block_ND in _blocks(x_ND):
        np.add.at(sums_CD, labels_N[rows], block_ND)
    return sums_CD / counts_C[:, None]


def nearest_mean(features: Any, means: Any) -> np.ndarray:
    """Return the class with the nearest mean for each image, (N,) int64; the first of equally near ones.

    Args:
        features: (N, D).
        means: (C, D).

    >>> nearest_mean([[0.0, 1.0], [4.0, 4.0]], [[1.0, 1.0], [5.0, 5.0]])
    array([0, 1])
    """
    x_ND, means_CD = _checked_features(features), checked_points(means)
    if means_CD.shape[1] != x_ND.shape[1]:
        raise ValueError(
            f"`means` must have the {x_ND.shape[1]} features of `features`, got {means_CD.shape[1]}; compute both from "
            "the same layer."
        )
    middle_D = means_CD.mean(0)  # subtracted everywhere: it leaves distances unchanged and avoids cancellation
    directions_CD = means_CD - middle_D
    lengths_C = np.square(directions_CD).sum(1)
    return np.concatenate(
        [(lengths_C - 2 * (block_ND - middle_D) @ directions_CD.T).argmin(1) for _, block_ND in _blocks(x_ND)]
    )


def _within_between(features: Any, labels_N: np.ndarray, means_CD: np.ndarray) -> float:
    # pinv(S_B) acts only along the singular directions of the centered means, which are fewer than the classes. So no
    # D x D matrix is needed, and nothing is squared before it is inverted.
    x_ND, classes = np.asarray(features), len(means_CD)
    _, singular, directions = np.linalg.svd((means_CD - means_CD.mean(0)) / np.sqrt(classes), full_matrices=False)
    kept = singular > singular[0] * max(means_CD.shape) * np.finfo(np.float64).eps
    kept[classes - 1 :] = False
    whitening_DR = directions[kept].T / singular[kept]
    sums_C = np.zeros(classes)
    for rows, block_ND in _blocks(x_ND):
        squares = np.square((block_ND - means_CD[labels_N[rows]]) @ whitening_DR).sum(1)
        sums_C += np.bincount(labels_N[rows], weights=squares, minlength=classes)
    return float((sums_C / np.bincount(labels_N)).mean() / classes)


def _directions(rows_CD: np.ndarray | None) -> tuple[float, float, float]:
    """Return the spread of the lengths, the spread of the cosines, and their distance from those of a simplex."""
    if rows_CD is None:
        return np.nan, np.nan, np.nan
    lengths_C = np.linalg.norm(rows_CD, axis=1)
    unit_CD = np.divide(rows_CD, lengths_C[:, None], out=np.zeros_like(rows_CD), where=lengths_C[:, None] > 0)
    cosines = (unit_CD @ unit_CD.T)[~np.eye(len(rows_CD), dtype=bool)]
    widest = -1 / (len(rows_CD) - 1)
    return float(lengths_C.std() / lengths_C.mean()), float(cosines.std()), float(np.abs(cosines - widest).mean())


def _blocks(x_ND: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    for start in range(0, len(x_ND), BLOCK):
        rows = slice(start, start + BLOCK)
        yield rows, checked_points(x_ND[rows], least=1)


def _checked_features(features: Any) -> np.ndarray:
    """Return features in their own precision. Shapes are checked here, numbers later in blocks."""
    found = np.asarray(features)
    if found.ndim != 2 or not found.size:
        raise ValueError(f"`features` must have shape (images, features), got {found.shape}; pass one row per image.")
    return found
