"""What the paper states beside its theorems: a fact about its measure, and beliefs that no run can test."""

import numpy as np

from harmax.analysis import parallelogram_loss
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.results import Results

FACTORS = (1e-3, 0.1, 3.0, 1e3)
SAME = 1e-12
"""Relative difference up to which two losses are the same."""


def scaled_losses(points_VR: np.ndarray, factor: float) -> np.ndarray:
    """Return the parallelogram losses of the first points, in fours, after all points are multiplied by a factor."""
    points_VR = factor * points_VR
    sigma = float(np.sqrt(np.square(points_VR).sum(1).mean()))
    a, b, c, d = points_VR[:400].reshape(4, 100, -1)
    return parallelogram_loss(a, b, c, d, sigma)


def _judge_scale(results: Results) -> Finding:
    points_VR = np.random.default_rng(0).normal(size=(1000, 2))
    plain = scaled_losses(points_VR, 1.0)
    apart = max(float(np.abs(scaled_losses(points_VR, factor) / plain - 1).max()) for factor in FACTORS)
    return Finding(
        apart < SAME,
        f"The losses of {len(plain)} drawn quadruples change by at most {apart:.1g} of themselves.",
        {"largest_change": apart},
    )


CLAIMS = (
    Claim(
        "parallelogram_loss_has_no_scale",
        "The parallelogram loss does not change when all embeddings are multiplied by a factor. Tried on drawn points "
        f"with the factors {', '.join(f'{factor:g}' for factor in FACTORS)}. Exact.",
        sentences=("5/22",),
        judge=_judge_scale,
        exact=True,
    ),
    Claim(
        "softmax_is_to_blame",
        "The three challenges (interpretability, data efficiency, grokking) are due in part to SoftMax.",
        sentences=("1/16",),
        not_run="The paper attributes them to SoftMax and tests it nowhere. The experiment ablation replaces SoftMax "
        "and the inner product one at a time.",
    ),
    Claim(
        "compression_is_interpretable",
        "Sparse embeddings of few dimensions are easier to interpret, so explained variance is a measure of it.",
        sentences=("2/38",),
        not_run="The paper chooses this measure and tests it nowhere; people who read embeddings would have to. Our "
        "evidence: classes that gather more tightly have less variance in two components, as the experiment "
        "representations shows of equivalence classes.",
    ),
    Claim(
        "parallelograms_help",
        "Embeddings in parallelograms make it possible to compose meanings, to calculate with words, and to attribute "
        "answers to features.",
        sentences=("2/40",),
        not_run="A hypothesis, which the paper tests nowhere. How good parallelograms are is measured in the "
        "experiment parallelograms.",
    ),
    Claim(
        "valuable_tool",
        "Harmonic loss may become valuable where data are few, or where much depends on reliable answers.",
        sentences=("Abstract/7",),
        not_run="A hope, which the paper tests nowhere. Our evidence: the experiment little_data has few labeled "
        "images, and trust has calibration and foreign images.",
    ),
)
