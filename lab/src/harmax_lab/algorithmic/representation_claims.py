"""Sec. 3.2 of the paper, sentence by sentence: what the embeddings look like.

What the authors' own figure of all runs shows (App. A) was measured on its points: figures/rep_plots_appendix.pdf in
their repository is a vector graphic. It holds the planes of two components only.
"""

from collections.abc import Callable

from harmax.analysis import fisher_exact
from harmax_lab.algorithmic import anchors
from harmax_lab.algorithmic.anchors import HARMONIC_MLP
from harmax_lab.algorithmic.runs import TITLES
from harmax_lab.algorithmic.sentences import over_seeds, passes, said
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.judges import SIGNIFICANT, Judge, both, listed, opposite, percent, reaches, signed
from harmax_lab.kit.results import Results, interval, where
from harmax_lab.kit.rules import LEAST_RUNS
from harmax_lab.kit.store import CellResult
from harmax_lab.paper.readings import (
    ALMOST_ALL_RUNS,
    CLEAR,
    MOST,
    MUCH_HIGHER_SHARE,
    NEAR_PERFECT,
    NEAT,
    OFTEN,
    PERFECT,
    SIMILAR_RATE,
)

Shows = Callable[[CellResult], bool]


def shows_lattice(result: CellResult) -> bool:
    """Return whether a lattice explains all of the variance, and both directions of the plane."""
    share = 1 - result.metrics["lattice residual"]
    return bool(share >= PERFECT and result.metrics["lattice, both directions"] >= CLEAR)


def at_least(metric: str, least: float) -> Shows:
    """Return whether a metric of a run is at least this large."""
    return lambda result: bool(result.metrics[metric] >= least)


def beyond_chance(metric: str) -> Shows:
    """Return whether a p-value of a run is significant."""
    return lambda result: bool(result.metrics[metric] < SIGNIFICANT)


SHOWS: dict[str, dict[str, Shows]] = {
    "lattice": {"perfect lattices": shows_lattice},
    "circle": {
        "perfect circles": at_least("circle", PERFECT),
        "clear circles in the plane": at_least("circle (plane)", CLEAR),
    },
    "classes": {"classes beyond chance": beyond_chance("classes by chance")},
    "tree": {
        "clear towers": at_least("tower", CLEAR),
        "distances as in the tree": beyond_chance("tree by chance"),
    },
    "group": {"neat clusters": at_least("clusters", NEAT)},
}
"""By kind of structure, what is counted over the runs of a model."""
LATTICE = shows_lattice
CIRCLE, CLEAR_CIRCLE = SHOWS["circle"].values()
TOWER, TREE = SHOWS["tree"].values()
CLASSES = SHOWS["classes"]["classes beyond chance"]


def count(results: Results, shows: Shows) -> dict[tuple[str, str], tuple[int, int]]:
    """Return, for each model that is wanted, how many of its finished runs show something, and how many there are."""
    arms = {arm: results.where(arm=arm) for arm in dict.fromkeys(cell.arm for cell in results.wanted)}
    return {arm: (sum(map(shows, own.values())), len(own)) for arm, own in arms.items()}


def _written(counts: dict[tuple[str, str], tuple[int, int]]) -> str:
    return listed({MODEL_STYLES[arm].label: f"{found} of {total}" for arm, (found, total) in counts.items()})


def _numbers(counts: dict[tuple[str, str], tuple[int, int]]) -> dict[str, int]:
    return {f"runs_{'_'.join(arm)}": found for arm, (found, _) in counts.items()}


def _share(shows: Shows, least: float, words: str) -> Judge:
    """Judge whether at least this share of the runs of every model shows something."""

    def judge(results: Results) -> Finding:
        counts = count(results, shows)
        holds = both(*(reaches(*found, least) for found in counts.values()))
        return Finding(holds, f"{words}: {_written(counts)}.", _numbers(counts))

    return judge


def _lacks(shows: Shows) -> Shows:
    return lambda result: not shows(result)


def _only(shows: Shows, words: str) -> Judge:
    """Judge whether most harmonic MLPs show something, and no other model does in most of its runs."""

    def judge(results: Results) -> Finding:
        counts = count(results, shows)
        answers = {arm: reaches(*found, MOST) for arm, found in counts.items()}
        holds = both(*(answer if arm == HARMONIC_MLP else opposite(answer) for arm, answer in answers.items()))
        return Finding(holds, f"{words}: {_written(counts)}.", _numbers(counts))

    return judge


def _median(metric: str, least: float, words: str) -> Judge:
    """Judge whether a metric is as large in the median run: no if its whole interval is lower."""

    def judge(results: Results) -> Finding:
        found = results.metric(metric).median()
        if found is None:
            return Finding(None, "No run.", {})
        holds = True if found.estimate >= least else False if found.high < least else None
        return Finding(holds, f"{words}: {found} in the median of {len(results)} runs.", {metric: found.estimate})

    return judge


def _closer(harmonic: float, standard: float) -> float:
    return 1.0 if harmonic > standard else 0.0 if harmonic < standard else 0.5


def _judge_overall(results: Results) -> Finding:
    shares = over_seeds(results, "structure", _closer)
    if not shares:
        return Finding(None, "No pair.", {})
    found, words = interval(shares), {}
    for (task, model), own in results.groups("task", "model").items():
        if pairs := own.pairs("structure", "head", "harmonic", "linear"):
            wins = sum(_closer(*pair) for pair in pairs.values())
            words[f"{TITLES[task].lower()}, {model}"] = f"{wins:g} of {len(pairs)}"
    return Finding(
        found.above(0.5),
        f"Harmonic is closer in {percent(found, 0)} of the pairs. By task: {listed(words)}.",
        {"share": found._asdict()},
    )


def _higher(metric: str, words: str) -> Judge:
    """Judge whether a metric is higher with the harmonic head: its mean over models, and then over seeds."""

    def judge(results: Results) -> Finding:
        differences = over_seeds(results, metric, lambda harmonic, standard: harmonic - standard)
        if not differences:
            return Finding(None, "No pair.", {})
        found = interval(differences)
        means = {MODEL_STYLES[arm].label: own.metric(metric).mean() for arm, own in results.groups("arm").items()}
        return Finding(
            found.above(0),
            f"{words}, harmonic minus standard: {signed(found, 3)}. Means: {listed(means)}.",
            {"difference": found._asdict()},
        )

    return judge


def _judge_rate(results: Results) -> Finding:
    counts = count(results, CLEAR_CIRCLE)
    (one, many), (other, more) = counts.values()
    if not many or not more:
        return Finding(None, "A model has no run.", {})
    apart, p = abs(one / many - other / more), fisher_exact(one, many, other, more)
    return Finding(
        False if p < SIGNIFICANT else True if apart <= SIMILAR_RATE else None,
        f"Runs with a clear circle: {_written(counts)}. Fisher's exact test: p = {p:.2g}.",
        {**_numbers(counts), "p": p},
    )


def _judge_variance(results: Results) -> Finding:
    found = results.paired("explained variance", "head", "harmonic", "linear", scale=100)
    if found is None:
        return Finding(None, "No pair.", {})
    difference, least = found.difference, 100 * MUCH_HIGHER_SHARE
    much = difference.estimate >= least and difference.low > 0
    return Finding(
        True if much else False if difference.high < least else None,
        f"Harmonic minus standard, points: {signed(difference, 1)}; higher on {found.greater} seeds, lower on "
        f"{found.less}.",
        {"difference": difference._asdict()},
    )


def _authors_variance() -> str:
    means = anchors.EXPLAINED_VARIANCE["modular_addition"]
    return listed({MODEL_STYLES[arm].label: percent(means[arm], 1) for arm in anchors.ARMS[2:]})


ALL, NEARLY_ALL, MOSTLY = (percent(share, 0) for share in (PERFECT, CLEAR, ALMOST_ALL_RUNS))
LATTICE_RULE = (
    f"A lattice is perfect if it explains at least {ALL} of all the variance, and at least {NEARLY_ALL} of the plane "
    "of two components after both are scaled to the same width"
)
CIRCLE_RULE = f"A circle is perfect if one frequency, with equal half axes, explains at least {ALL} of all the variance"
TOWER_RULE = (
    f"A tower is clear if the place in the plane of two components explains at least {NEARLY_ALL} of the variance of "
    "depth"
)

CLAIMS: tuple[Claim, ...] = (
    *said(
        "overall",
        ("3.2/3",),
        "Overall, harmonic embeddings are cleaner and more organized than standard ones. Holds if they are closer to "
        "their task's shape in more than half of the pairs of runs with the same task, model and seed. Judged by "
        "the mean over tasks and models, and its interval over seeds",
        _judge_overall,
    ),
    *said(
        "circle",
        ("3.2/4",),
        "On modular addition we found near-perfect circles (harmonic MLP). Holds if a circle explains at least "
        f"{percent(NEAR_PERFECT, 0)} of all the variance in the median run",
        _median("circle", NEAR_PERFECT, "Share of the variance that a circle explains"),
        paper="The authors' figure of all runs: more than 99 % in the median of 20.",
        seeds=LEAST_RUNS,
        task="modular_addition",
        arm=HARMONIC_MLP,
    ),
    *said(
        "tower",
        ("3.2/4",),
        "On the family tree we found a clear tower: generations in parallel rows, in order (harmonic MLP). Holds if "
        "the place in the plane of two components explains at least "
        f"{NEARLY_ALL} of the variance of depth in the median run",
        _median("tower", CLEAR, "Share of the variance of depth that the place in the plane explains"),
        paper="The authors' figure of all runs: 97 % in the median of 20.",
        seeds=LEAST_RUNS,
        task="genealogy",
        arm=HARMONIC_MLP,
    ),
    *said(
        "clusters",
        ("3.2/4",),
        "On permutations we found neat clusters (harmonic MLP). Holds if the best cosets have a silhouette of at least "
        f"{NEAT:g} in the plane of two components in the median run; a silhouette that random orders of the same "
        "points reach counts as 0",
        _median("clusters", NEAT, "Silhouette"),
        paper="The authors' figure of all runs: 0.23 in the median of 20; 0.5 or more in 7.",
        seeds=LEAST_RUNS,
        task="permutation",
        arm=HARMONIC_MLP,
    ),
    *said(
        "lattice_harmonic",
        ("3.2/6",),
        "Harmonic models almost always recover the lattice perfectly. Holds if at least "
        f"{MOSTLY} of the runs do, for MLPs and for transformers. {LATTICE_RULE}",
        _share(LATTICE, ALMOST_ALL_RUNS, "Runs with a perfect lattice"),
        paper="The authors' figure of all runs: 20 of 20 MLPs and 20 of 20 transformers, as far as the plane shows.",
        seeds=LEAST_RUNS,
        task="lattice",
        head="harmonic",
    ),
    *said(
        "lattice_standard",
        ("3.2/6",),
        "Standard models form imperfect lattices, or leave variance in higher dimensions. Holds if at least "
        f"{MOSTLY} of the runs have no perfect lattice, for MLPs and for transformers. {LATTICE_RULE}",
        _share(_lacks(LATTICE), ALMOST_ALL_RUNS, "Runs without a perfect lattice"),
        seeds=LEAST_RUNS,
        task="lattice",
        head="linear",
    ),
    *said(
        "circle_harmonic_mlp",
        ("3.2/7",),
        "Harmonic MLPs form a perfect circle in almost all runs. Holds if at least "
        f"{MOSTLY} of the runs do. {CIRCLE_RULE}",
        _share(CIRCLE, ALMOST_ALL_RUNS, "Runs with a perfect circle"),
        paper="The authors' figure of all runs: 14 of 20; in the plane alone 18 of 20.",
        seeds=LEAST_RUNS,
        task="modular_addition",
        arm=HARMONIC_MLP,
    ),
    *said(
        "circle_standard_mlp",
        ("3.2/7",),
        "Standard MLPs often form no perfect circle. Holds if at least "
        f"{percent(OFTEN, 0)} of the runs have none. {CIRCLE_RULE}",
        _share(_lacks(CIRCLE), OFTEN, "Runs without a perfect circle"),
        seeds=LEAST_RUNS,
        task="modular_addition",
        arm=anchors.STANDARD_MLP,
    ),
    *said(
        "circle_transformers",
        ("3.2/8",),
        "Harmonic and standard transformers construct circles at a similar rate. Holds if the shares of runs differ by "
        f"at most {percent(SIMILAR_RATE, 0)} and Fisher's exact test does not tell them apart. A run constructs a "
        f"circle if one explains at least {NEARLY_ALL} of the plane of two components",
        _judge_rate,
        paper="The authors' figure of all runs: 16 of 20 harmonic and 18 of 20 standard transformers.",
        seeds=LEAST_RUNS,
        task="modular_addition",
        model="transformer",
    ),
    *said(
        "variance_transformers",
        ("3.2/8",),
        "On modular addition two components explain generally much more of the harmonic transformers' embeddings. "
        f"Holds if the mean difference is at least {100 * MUCH_HIGHER_SHARE:.0f} points, with its interval above 0",
        _judge_variance,
        paper=f"The authors' means over 20 runs: {_authors_variance()}.",
        task="modular_addition",
        model="transformer",
    ),
    *said(
        "classes_found",
        ("3.2/9",),
        "Both standard and harmonic models identify the equivalence classes. Holds if in at least half of the runs of "
        "each of the four models more of the variance lies between classes than in 95 % of random orders of the same "
        "points",
        _share(CLASSES, MOST, "Runs that identify the classes"),
        seeds=LEAST_RUNS,
        task="equivalence",
    ),
    *said(
        "classes_elongated",
        ("3.2/9",),
        "Standard models' classes tend to be elongated, or not completely grouped, compared with harmonic ones. Holds "
        "if a larger share of the harmonic embedding's variance lies between classes, and so less within them. "
        "Judged by the mean over MLPs and transformers, and its interval over seeds",
        _higher("between classes", "Share of the variance between classes"),
        task="equivalence",
    ),
    Claim(
        "classes_explained",
        "Standard groups are elongated because cross-entropy has no incentive to reduce irrelevant variation to zero.",
        sentences=("3.2/10",),
        not_run="An explanation that the paper tests nowhere. Our evidence that the variation differs is in the claim "
        "`classes_elongated`; no experiment here separates its causes.",
    ),
    *said(
        "tree",
        ("3.2/11",),
        "Only the harmonic MLP recovers the tree. Holds if at least half of its runs show a clear tower, and less than "
        f"half of every other model's. {TOWER_RULE}",
        _only(TOWER, "Runs with a clear tower"),
        paper="The authors' figure of all runs: 16 of 20 harmonic MLPs, and none of 60 other runs.",
        seeds=LEAST_RUNS,
        task="genealogy",
    ),
    Claim(
        "tree_distances",
        "By distances too, only the harmonic MLP recovers the tree. Holds if in at least half of its runs, and in less "
        "than half of every other model's, the rank correlation of distances with steps in the tree is higher than in "
        "95 % of random orders of the same points (authors protocol).",
        needs=where(protocol="authors", task="genealogy"),
        judge=_only(TREE, "Runs whose distances follow the tree"),
        seeds=LEAST_RUNS,
        passing=passes,
    ),
    *said(
        "clusters_separated",
        ("3.2/12",),
        "The harmonic MLP's permutations generally form better-separated clusters than the standard MLP's. Holds if "
        "the best cosets have a higher silhouette in the plane of two components, in the mean over seeds "
        "with its interval",
        _higher("coset silhouette (plane)", "Silhouette of the best cosets"),
        task="permutation",
        model="mlp",
    ),
)
