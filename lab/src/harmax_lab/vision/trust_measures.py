"""How far a classifier's answers can be trusted, as numbers: calibration, and separating outliers from known images."""

# N images, M images of an outside set, C classes

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from harmax.analysis import (
    DISTANCE_SCORES,
    LOGIT_SCORES,
    auroc,
    brier_score,
    expected_calibration_error,
    fpr_at_tpr,
    negative_log_likelihood,
    reliability_curve,
)

BINS, SPACING = 15, "mass"
"""Of the calibration error: bins with equal numbers of images, so that a few images cannot decide it."""
SCORES = {
    "max_softmax": "largest probability",
    "energy": "energy",
    "nearest_distance": "nearest distance",
    "distance_ratio": "nearest over second distance",
}
"""Titles of the scores that may separate outliers, in the order of tables and figures."""


class Answers(NamedTuple):
    """What a classifier makes of some images."""

    logits_NC: np.ndarray
    distances_NC: np.ndarray | None = None
    """To every center, where the head has centers."""


def measure_trust(known: Answers, labels_N: np.ndarray, outside: Mapping[str, Answers]) -> dict[str, float]:
    """Return the calibration of a classifier, and how well its scores separate outside sets from known images.

    Args:
        known: to images that were not trained on.
        labels_N: their true classes, (N,).
        outside: to each outside set, by its name.

    Returns:
        `measure_calibration`, and for every outside set and score, by `detection_key`, the area under the ROC curve
        ("auroc"), and the share of outside images that pass where 95 % of the known ones do ("fpr95").

    >>> inside, far = np.log([[0.9, 0.1], [0.2, 0.8]]), np.log([[0.5, 0.5], [0.4, 0.6]])
    >>> found = measure_trust(Answers(inside), np.array([0, 1]), {"noise": Answers(far)})
    >>> found["accuracy"], found["noise.max_softmax.auroc"], found["noise.max_softmax.fpr95"]
    (1.0, 1.0, 0.0)
    """
    found = measure_calibration(known.logits_NC, labels_N)
    for part, scores in enumerate((LOGIT_SCORES, DISTANCE_SCORES)):
        for score, of in scores.items() if known[part] is not None else ():
            inside_N = of(known[part])
            for name, answers in outside.items():
                outside_M = of(answers[part])
                found[detection_key(name, score, "auroc")] = auroc(inside_N, outside_M)
                found[detection_key(name, score, "fpr95")] = fpr_at_tpr(inside_N, outside_M, 0.95)
    return found


def measure_calibration(logits_NC: np.ndarray, labels_N: np.ndarray) -> dict[str, float]:
    """Return accuracy, mean negative log-likelihood, Brier's score, and the calibration error in 15 bins of equal mass.

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
    """Return the key of one outside set, score and measure ("auroc" or "fpr95") in what `measure_trust` returns."""
    return f"{outside}.{score}.{measure}"


def reliability(logits_NC: np.ndarray, labels_N: np.ndarray) -> dict[str, np.ndarray]:
    """Return mean confidence, accuracy and number of images of each of 15 bins, and the edges of the bins."""
    return reliability_curve(logits_NC, labels_N, bins=BINS, spacing=SPACING)._asdict()
