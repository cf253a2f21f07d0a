"""How far a classifier's answers can be trusted, as numbers: calibration, and telling outliers from known images.

Arrays in, numbers out: whoever trained the model, on whatever images, is measured alike. Nothing here fits anything.
"""

# N known images, M images of an outside set, C classes

from collections.abc import Mapping

import numpy as np

from harmax.analysis import (
    DISTANCE_SCORES,
    LOGIT_SCORES,
    auroc,
    brier_score,
    expected_calibration_error,
    fpr_at_tpr,
    negative_log_likelihood,
)

BINS, SPACING = 15, "mass"
"""Of the calibration error: bins with as many images in each, so that no few of them decide it."""
SCORES = (*LOGIT_SCORES, *DISTANCE_SCORES)
"""Names of what may tell an outlier: max_softmax, energy, nearest_distance, distance_ratio."""


def measure_trust(
    logits_NC: np.ndarray,
    labels_N: np.ndarray,
    *,
    outside: Mapping[str, np.ndarray],
    distances_NC: np.ndarray | None = None,
    outside_distances: Mapping[str, np.ndarray] | None = None,
) -> dict[str, float]:
    """Return the calibration of a classifier on known images, and how well its scores tell the outside sets from them.

    Args:
        logits_NC: of known images that were not trained on; their softmax is the probabilities, (N, C).
        labels_N: their true classes, (N,).
        outside: name of an outside set to its logits, (M, C); the names become part of the keys.
        distances_NC: to every center, (N, C), where the head has centers.
        outside_distances: the same of every outside set, (M, C).

    Returns:
        accuracy, nll, brier and ece as `measure_calibration` gives them, and for every outside set and score what
        `detection_key` names: the area under the ROC curve ("auroc"), and the share of outside images that pass where
        95 % of the known ones do ("fpr95").

    >>> inside, far = np.log([[0.9, 0.1], [0.2, 0.8]]), np.log([[0.5, 0.5], [0.4, 0.6]])
    >>> found = measure_trust(inside, np.array([0, 1]), outside={"noise": far})
    >>> found["accuracy"], found["noise.max_softmax.auroc"], found["noise.max_softmax.fpr95"]
    (1.0, 1.0, 0.0)
    """
    if (distances_NC is None) != (outside_distances is None):
        raise ValueError(
            "`distances_NC` and `outside_distances` must come together, got one of them; pass both or neither."
        )
    far = outside_distances or {}
    if distances_NC is not None and far.keys() != outside.keys():
        raise ValueError(
            f"`outside_distances` must have the sets of `outside` ({', '.join(outside)}), got {', '.join(far)}; "
            "measure the same images."
        )
    found = measure_calibration(logits_NC, labels_N)
    for score, logit_score in LOGIT_SCORES.items():
        inside_N = logit_score(logits_NC)
        for name, logits_MC in outside.items():
            found |= _told(name, score, inside_N, logit_score(logits_MC))
    for score, distance_score in DISTANCE_SCORES.items() if distances_NC is not None else ():
        inside_N = distance_score(distances_NC)
        for name, distances_MC in far.items():
            found |= _told(name, score, inside_N, distance_score(distances_MC))
    return found


def measure_calibration(logits_NC: np.ndarray, labels_N: np.ndarray) -> dict[str, float]:
    """Return accuracy, mean negative log-likelihood, Brier's score, and the calibration error in 15 bins of equal mass.

    Args:
        logits_NC: (N, C).
        labels_N: (N,).

    >>> {name: round(value, 3) for name, value in measure_calibration(np.zeros((2, 2)), np.array([0, 1])).items()}
    {'accuracy': 0.5, 'nll': 0.693, 'brier': 0.5, 'ece': 0.0}
    """
    return {
        "accuracy": float((np.asarray(logits_NC).argmax(1) == labels_N).mean()),
        "nll": negative_log_likelihood(logits_NC, labels_N),
        "brier": brier_score(logits_NC, labels_N),
        "ece": expected_calibration_error(logits_NC, labels_N, bins=BINS, spacing=SPACING),
    }


def detection_key(outside: str, score: str, measure: str) -> str:
    """Return the key of one outside set, score and measure ("auroc" or "fpr95") among the numbers of `measure_trust`.

    >>> detection_key("cifar100", "nearest_distance", "auroc")
    'cifar100.nearest_distance.auroc'
    """
    return f"{outside}.{score}.{measure}"


def _told(outside: str, score: str, inside_N: np.ndarray, outside_M: np.ndarray) -> dict[str, float]:
    return {
        detection_key(outside, score, "auroc"): auroc(inside_N, outside_M),
        detection_key(outside, score, "fpr95"): fpr_at_tpr(inside_N, outside_M, 0.95),
    }
