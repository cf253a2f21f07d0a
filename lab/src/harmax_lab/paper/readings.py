"""How the paper's vague words are read, with the numbers that judges use. One reading for all experiments."""

from typing import NamedTuple

PASSED = 0.9
"""Test accuracy from which a run counts as having learned its task."""
PERFECT = 0.99
"""Share of the variance, or of the structure, that counts as all of it."""
NEAR_PERFECT = 0.95
CLEAR = 0.9
"""Share of the plane of two components that a circle explains, or of the generations' order that rows explain. Random
embeddings of the same size show 0.2 and 0.05. In the authors' own figure of all runs, 16 of 20 harmonic MLPs show a
tower by this measure, and none of 60 other runs."""
NEAT = 0.5
"""Silhouette of clusters from which they are "a reasonable structure" (Kaufman and Rousseeuw, 1990)."""
ALMOST_ALL_RUNS = 0.9
OFTEN = 0.25
SOME_RUNS = 2
COMMON = 0.25
SIMILAR_RATE = 0.2
MUCH_HIGHER_SHARE = 0.10
FAR_LESS = 0.8
MUCH_LESS = 0.5
SEVERE_FACTOR, SEVERE_EPOCHS = 2.0, 100
MOST = 0.5
AT_ONCE_FRACTION = 0.1
ALIGNED = 0.95
SMALL_VALUE = 0.01
SMALL_SHARE = 0.9
SIMILAR_LOSS = 0.02
REPLICATES = 0.05
CRISP = 0.05
MINOR = 0.10
HIGHEST = 0.01
AT_FIRST = 0.1
MACHINE_PRECISION = 2.0**-23
NEGLIGIBLE = 0.05
OVERLAP = 0.25
PLATEAU = 0.01
ON_POINT = 0.01
AS_REPORTED = 0.003
FEW_CLOSER = 0.05
IN_HULL = 0.01


class Reading(NamedTuple):
    """A word of the paper, and what must be measured for a sentence with it to hold."""

    words: str
    meaning: str


READINGS: tuple[Reading, ...] = (
    Reading(
        "tends to, generally, typically, overall",
        "The mean over seeds lies on that side with its 95 % interval. Where a sentence "
        "is about several tasks or models, the mean over them does.",
    ),
    Reading(
        "usually, in many practical settings",
        "In every setting that was run. Where settings differ, nothing is decided.",
    ),
    Reading(
        "in a share of the runs",
        "The share among our runs is as large. The claim fails if the whole 95 % interval of the share is smaller; in "
        "between it is not decided.",
    ),
    Reading("almost always, almost all runs, consistently", f"In at least {100 * ALMOST_ALL_RUNS:.0f} % of the runs."),
    Reading("often fails", f"In at least {100 * OFTEN:.0f} % of the runs."),
    Reading("commonly", f"It is the most frequent kind, and in at least {100 * COMMON:.0f} % of the runs."),
    Reading("appears multiple times", f"In at least {SOME_RUNS} runs, and more often than by chance."),
    Reading("we found", "In the run whose measure is the median."),
    Reading("only", "The named arm does, and no other arm does."),
    Reading("perfect, perfectly, 100 %", f"At least {100 * PERFECT:.0f} %."),
    Reading("near-perfect", f"At least {100 * NEAR_PERFECT:.0f} %."),
    Reading(
        "clear (circle, tower)", f"In the plane of two components, the shape explains at least {100 * CLEAR:.0f} %."
    ),
    Reading(
        "neat, particularly clean (clusters)",
        f"In the plane of two components, a silhouette of at least {NEAT:g}, and larger than in 95 % of random orders "
        "of the same points.",
    ),
    Reading(
        "recovers, identifies",
        "The measure of the structure is closer to the ideal than in 95 % of random embeddings of the same size. Of an "
        f"arm: in at least {100 * MOST:.0f} % of its runs. The tree: a clear tower, as the paper draws it.",
    ),
    Reading(
        "successfully recovers both (Fig. 6)",
        f"The run whose structure is the median has at least {100 * PERFECT:.0f} % of it on both tasks.",
    ),
    Reading(
        "similar success rate",
        f"The shares of runs differ by at most {100 * SIMILAR_RATE:.0f} %, and a test of the counts does not tell them "
        "apart.",
    ),
    Reading(
        "much higher (a share)",
        f"The difference is at least {100 * MUCH_HIGHER_SHARE:.0f} points, with its interval above 0.",
    ),
    Reading("far less than all", f"Less than {100 * FAR_LESS:.0f} %."),
    Reading("comparable or much less (data)", "In no task clearly more, and in some task at most half as much."),
    Reading("nearly immediately", f"At the smallest train fraction, {AT_ONCE_FRACTION:g}."),
    Reading("generalizes, learns", f"Test accuracy {PASSED:g} or more."),
    Reading(
        "significant or severe grokking",
        f"The test passes {PASSED:g} at least {SEVERE_EPOCHS} epochs after the training does, "
        f"and at least {SEVERE_FACTOR:g} times as late, or never, in at least {100 * MOST:.0f} % of the runs.",
    ),
    Reading("without grokking", "Most runs generalize, and fewer than half of them show significant grokking."),
    Reading(
        "generalizes quickly",
        "Soon after it has fitted the training set: it waits for fewer epochs than the model that it is compared with.",
    ),
    Reading("particularly evident, especially notable", "More than in the other tasks on average."),
    Reading(
        "much closer to y = x",
        "In most of the runs the gap between the two epochs is at most half of the other model's median gap.",
    ),
    Reading("almost perfectly align", f"Mean correlation of at least {ALIGNED:g}."),
    Reading("near zero", f"At most {SMALL_VALUE:g} in size, for at least {100 * SMALL_SHARE:.0f} % of the values."),
    Reading("similar performance, comparable performance", f"Validation losses differ by at most {SIMILAR_LOSS:g}."),
    Reading(
        "achieving (a reported accuracy)",
        f"The mean over seeds lies within {100 * AS_REPORTED:g} points of it, with its interval.",
    ),
    Reading(
        "plateaus, comes to a plateau",
        f"In the second half of the training it changes by less than {100 * PLATEAU:g} % on average.",
    ),
    Reading("weights correspond to points", f"The farthest weight ends within {ON_POINT:g} of its point on average."),
    Reading(
        "class center, average direction of a class",
        f"At most {100 * FEW_CLOSER:.0f} % of the points of the class lie closer to their mean, or to its direction, "
        "than the weight.",
    ),
    Reading(
        "convex combination of points",
        f"The distance from their convex hull is below {IN_HULL:g} of the spread of the class.",
    ),
    Reading("machine precision", f"Below {MACHINE_PRECISION:.1e}, the spacing of float32 at 1."),
    Reading("negligible", f"At most {100 * NEGLIGIBLE:.0f} % of the whole."),
    Reading(
        "replicates the full performance, is sufficient",
        f"Explained variance and test accuracy are each at most {100 * REPLICATES:.0f} points lower. What is essential "
        "is not replicated without.",
    ),
    Reading("crisp", f"One lattice, or one circle, leaves at most {100 * CRISP:.0f} % of the variance in the plane."),
    Reading("stable (over settings)", f"In at least {100 * ALMOST_ALL_RUNS:.0f} % of the runs of every setting."),
    Reading("more sensitive (to seeds)", "The distance of a run from the mean of its setting is larger on average."),
    Reading("minor impact (on a share)", f"The mean changes by less than {100 * MINOR:.0f} points."),
    Reading(
        "highest, prefers",
        f"The mean of no other setting is higher by more than {100 * HIGHEST:.0f} point, and that of some is lower by "
        "more.",
    ),
    Reading("may improve, may benefit", "At some of the named settings the mean is higher."),
    Reading("slightly larger exponent", "n = 2 or n = 3 in place of n = 1."),
    Reading("at first, initially", f"At the end of the first {100 * AT_FIRST:.0f} % of the steps."),
    Reading(
        "overlap, collapse (pairs of words)",
        f"In the median the words of a pair lie at most {OVERLAP:g} times as far apart as words of different pairs.",
    ),
)
