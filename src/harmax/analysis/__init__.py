"""Measures of learned representations and classifiers: numpy arrays in, numbers out, without a model.

    pca.py             principal components and their share of the variance
    geometry.py        circles, lattices, family trees, classes
    groups.py          subgroups of S_n and their cosets
    clusters.py        silhouettes, and the cosets that points cluster by
    quadruples.py      quadruples of word pairs, a null for them, and intervals that allow for shared words
    parallelograms.py  whether quadruples are parallelograms, under 32 settings, and their shape
    centers.py         token centers: neighbors, lengths, directions
    calibration.py     whether the confidence of a classifier matches its accuracy
    outliers.py        whether a classifier recognizes unknown images, and what abstaining gains
    collapse.py        how close features and weights are to neural collapse
    curves.py          when accuracy rises and stays high
    statistics.py      intervals and tests over seeds

Measures of points use the first two principal components by default; `components=None` uses the whole space.
"""

from harmax.analysis.calibration import (
    Calibration,
    Reliability,
    brier_score,
    expected_calibration_error,
    fit_temperature,
    negative_log_likelihood,
    reliability_curve,
    summarize_calibration,
)
from harmax.analysis.centers import CentersSummary, Neighbors, nearest_tokens, summarize_centers, token_norms
from harmax.analysis.clusters import BestCosets, best_cosets, silhouette
from harmax.analysis.collapse import (
    NeuralCollapse,
    class_means,
    nearest_mean,
    neural_collapse,
)
from harmax.analysis.curves import grokking_epoch, grokking_epochs, grokking_gap, grokking_gaps
from harmax.analysis.geometry import (
    CircleFit,
    Grouping,
    LatticeFit,
    TreeFit,
    circle_fit,
    grouping,
    lattice_fit,
    roundness,
    tree_distances,
    tree_fit,
)
from harmax.analysis.groups import (
    Cosets,
    Subgroup,
    coset_partitions,
    cycles,
    left_cosets,
    right_cosets,
    subgroups,
    symmetric_group,
)
from harmax.analysis.outliers import (
    DISTANCE_SCORES,
    LOGIT_SCORES,
    Abstention,
    Detection,
    abstention_curve,
    aupr,
    auroc,
    detection,
    distance_ratio,
    energy,
    fpr_at_tpr,
    max_softmax,
    nearest_distance,
)
from harmax.analysis.parallelograms import (
    PAPER_SETTING,
    SETTINGS,
    ParallelogramSetting,
    ParallelogramShape,
    ParallelogramSpace,
    RankedQuadruples,
    parallelogram_loss,
    parallelogram_shape,
    parallelogram_space,
    ranked_quadruples,
)
from harmax.analysis.pca import PCA, explained_variance, participation_ratio, pca, project
from harmax.analysis.quadruples import (
    LossComparison,
    Quadruples,
    compare_losses,
    empirical_cdf,
    interval_over_pairs,
    median_interval,
    null_quadruples,
    sample_quadruples,
    weighted_quantiles,
)
from harmax.analysis.statistics import (
    Interval,
    PairedDifference,
    bootstrap_interval,
    fisher_exact,
    holm,
    mean_interval,
    paired_difference,
    share_interval,
)

__all__ = [
    "DISTANCE_SCORES",
    "LOGIT_SCORES",
    "PAPER_SETTING",
    "PCA",
    "SETTINGS",
    "Abstention",
    "BestCosets",
    "Calibration",
    "CentersSummary",
    "CircleFit",
    "Cosets",
    "Detection",
    "Grouping",
    "Interval",
    "LatticeFit",
    "LossComparison",
    "Neighbors",
    "NeuralCollapse",
    "PairedDifference",
    "ParallelogramSetting",
    "ParallelogramShape",
    "ParallelogramSpace",
    "Quadruples",
    "RankedQuadruples",
    "Reliability",
    "Subgroup",
    "TreeFit",
    "abstention_curve",
    "aupr",
    "auroc",
    "best_cosets",
    "bootstrap_interval",
    "brier_score",
    "circle_fit",
    "class_means",
    "compare_losses",
    "coset_partitions",
    "cycles",
    "detection",
    "distance_ratio",
    "empirical_cdf",
    "energy",
    "expected_calibration_error",
    "explained_variance",
    "fisher_exact",
    "fit_temperature",
    "fpr_at_tpr",
    "grokking_epoch",
    "grokking_epochs",
    "grokking_gap",
    "grokking_gaps",
    "grouping",
    "holm",
    "interval_over_pairs",
    "lattice_fit",
    "left_cosets",
    "max_softmax",
    "mean_interval",
    "median_interval",
    "nearest_distance",
    "nearest_mean",
    "nearest_tokens",
    "negative_log_likelihood",
    "neural_collapse",
    "null_quadruples",
    "paired_difference",
    "parallelogram_loss",
    "parallelogram_shape",
    "parallelogram_space",
    "participation_ratio",
    "pca",
    "project",
    "ranked_quadruples",
    "reliability_curve",
    "right_cosets",
    "roundness",
    "sample_quadruples",
    "share_interval",
    "silhouette",
    "subgroups",
    "summarize_calibration",
    "summarize_centers",
    "symmetric_group",
    "token_norms",
    "tree_distances",
    "tree_fit",
    "weighted_quantiles",
]
