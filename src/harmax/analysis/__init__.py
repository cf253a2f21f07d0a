"""Measures of what was learnt: numpy in, numpy out, no model needed.

    pca.py         principal components and how much they carry
    geometry.py    circles, lattices, family trees, classes
    groups.py      subgroups of S_n and their cosets
    clusters.py    silhouettes, and the cosets that points cluster by
    curves.py      when accuracy rises for good
    statistics.py  intervals and tests over seeds

Measures of points look along the first two principal components unless they are told `components=None`.
"""

from harmax.analysis.clusters import BestCosets, best_cosets, silhouette
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
from harmax.analysis.pca import PCA, explained_variance, participation_ratio, pca, project
from harmax.analysis.statistics import (
    Interval,
    PairedDifference,
    bootstrap_interval,
    fisher_exact,
    paired_difference,
    share_interval,
)

__all__ = [
    "PCA",
    "BestCosets",
    "CircleFit",
    "Cosets",
    "Grouping",
    "Interval",
    "LatticeFit",
    "PairedDifference",
    "Subgroup",
    "TreeFit",
    "best_cosets",
    "bootstrap_interval",
    "circle_fit",
    "coset_partitions",
    "cycles",
    "explained_variance",
    "fisher_exact",
    "grokking_epoch",
    "grokking_epochs",
    "grokking_gap",
    "grokking_gaps",
    "grouping",
    "lattice_fit",
    "left_cosets",
    "paired_difference",
    "participation_ratio",
    "pca",
    "project",
    "right_cosets",
    "roundness",
    "share_interval",
    "silhouette",
    "subgroups",
    "symmetric_group",
    "tree_distances",
    "tree_fit",
]
