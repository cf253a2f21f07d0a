"""How many principal components an embedding needs (Fig. 3 a): a view of the runs of `algorithmic`.

The explained variance of k components is the share of the embedding's variance that its k widest directions carry. The
paper says that it shows the mean over 20 seeds; the authors' code takes the median. Both stand in the table. A diverged
run has no embedding to measure: it is counted, and left out of means, medians and pairs.
"""

# K shown tokens, D features, R components

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.analysis import PairedDifference, bootstrap_interval, fisher_exact, paired_difference, pca
from harmax.figures import Picture
from harmax_lab.algorithmic import anchors, runs
from harmax_lab.algorithmic.anchors import ALMOST_ALL, HARMONIC_MLP
from harmax_lab.algorithmic.measures import last_embedding, pairs_of, shared_level, yes_or_no
from harmax_lab.algorithmic.protocols import HEADS
from harmax_lab.algorithmic.runs import (
    ARMS,
    LEAST_SEEDS,
    TITLES,
    AlgorithmicSpec,
    Basis,
    Results,
    by_seed,
    conclude_on,
    seeds_in_words,
)
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.experiment import Summary, view
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table
from harmax_lab.tasks import PROTOCOLS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COMPONENTS = 2
MEAN_TOLERANCE = 0.06
ROUNDED = 0.05  # points; the authors' means are known to a tenth
SIGNIFICANT = 0.05
BODIES = {"mlp": "MLPs", "transformer": "transformers"}
OFFSETS = {"authors": -0.22, "matched": 0.22}


def cumulative(result: CellResult) -> np.ndarray | None:
    """Return the variance explained by 1, 2, ... components at the end of training, (R,); None for a diverged run."""
    embedding_KD = last_embedding(result)
    return None if embedding_KD is None else np.minimum(pca(embedding_KD).ratio.cumsum(), 1.0)


def curves_of(results: Results, protocol: str, task: str, arm: tuple[str, str]) -> dict[int, np.ndarray]:
    """Return the cumulative explained variance of one model's runs that stayed finite, by seed."""
    found = {seed: cumulative(result) for seed, result in by_seed(results, protocol, task, arm).items()}
    return {seed: curve for seed, curve in found.items() if curve is not None}


def shares_of(results: Results, protocol: str, task: str, arm: tuple[str, str]) -> dict[int, float]:
    """Return the variance explained by two components, by seed."""
    found = curves_of(results, protocol, task, arm)
    return {seed: float(curve[COMPONENTS - 1]) for seed, curve in found.items()}


def compare(results: Results, protocol: str, task: str, model: str, *, level: float = 0.95) -> PairedDifference | None:
    """Return harmonic minus standard in points, over the seeds on which both stayed finite; None without any."""
    standard, harmonic = (shares_of(results, protocol, task, (model, head)) for head in HEADS)
    both = sorted(standard.keys() & harmonic.keys())
    if not both:
        return None
    one, two = ([100 * shares[seed] for seed in both] for shares in (harmonic, standard))
    return paired_difference(one, two, statistic="mean", level=level)


def direction(found: PairedDifference | None) -> str:
    """Say on which side of 0 the whole interval of a difference lies; too few pairs have no interval to speak of."""
    if found is None or pairs_of(found) < LEAST_SEEDS or found.difference.low <= 0 <= found.difference.high:
        return "undecided"
    return "higher" if found.difference.low > 0 else "lower"


def _authors_difference(task: str, model: str) -> float:
    means = anchors.EXPLAINED_VARIANCE[task]
    return 100 * (means[model, "harmonic"] - means[model, "linear"])


def _claim_beats(protocol: str, model: str) -> Claim:
    theirs = {task: _authors_difference(task, model) for task in anchors.EXPLAINED_VARIANCE}
    return Claim(
        f"harmonic_beats_standard_{model}_{protocol}",
        f"Two components explain more of the harmonic {BODIES[model]}' embeddings than of the standard ones', in every "
        f"task ({protocol} protocol).",
        "Harmonic models need fewer components, up to 100 % of the variance in two. In the authors' stored figures the "
        "difference of the means is "
        + ", ".join(f"{TITLES[t].lower()} {d:+.1f}" for t, d in theirs.items())
        + " points.",
        control=protocol == "matched",
    )


CLAIMS = (
    *(_claim_beats(protocol, model) for protocol in PROTOCOLS for model in BODIES),
    Claim(
        "lattice_in_a_plane",
        "Every harmonic MLP has 99 % or more of its lattice's variance in two components (authors protocol).",
        "20 of 20.",
    ),
    Claim(
        "modular_addition_in_a_plane",
        "Of the harmonic MLPs on modular addition, a share compatible with the authors' has 99 % or more in two "
        "components (authors protocol; Fisher's exact test at 5 %).",
        "14 of 20.",
    ),
    *(
        Claim(
            f"{task}_means",
            f"{TITLES[task]}: the mean of each model lies within 6 points of the authors' (authors protocol).",
            ", ".join(f"{MODEL_STYLES[arm].label} {100 * anchors.EXPLAINED_VARIANCE[task][arm]:.1f}" for arm in ARMS)
            + " %.",
        )
        for task in ("equivalence", "genealogy")
    ),
)


def judge_beats(results: Results) -> Finding:
    """Judge one body's tasks under one protocol: every paired interval must lie above 0.

    That all do needs no correction for the number of tasks. That one does not is a choice among as many, so what
    breaks the claim is an interval whose level is shared out among them.
    """
    protocol, model = next((cell.protocol, cell.model) for cell in results)
    tasks = list(dict.fromkeys(cell.task for cell in results))
    found = {task: compare(results, protocol, task, model) for task in tasks}
    sides = {task: direction(difference) for task, difference in found.items()}
    strict = {direction(compare(results, protocol, t, model, level=shared_level(len(tasks)))) for t in tasks}
    holds = False if "lower" in strict else True if set(sides.values()) == {"higher"} else None
    theirs = {task: _authors_difference(task, model) for task in tasks}
    clear = [task for task, side in sides.items() if side != "undecided"]
    agree = sum((theirs[task] > 0) == (sides[task] == "higher") for task in clear)
    return Finding(
        holds,
        "Harmonic minus standard in points, mean over seeds and 95 % interval: "
        + "; ".join(
            f"{TITLES[task].lower()} {difference.difference if difference else 'no pair'} ({sides[task]})"
            for task, difference in found.items()
        )
        + f". Of the {len(clear)} that are clear, {agree} point where the authors' own do.",
        {f"difference_{task}": d.difference._asdict() for task, d in found.items() if d},
    )


def judge_all_in_plane(results: Results) -> Finding:
    """Judge by the run with the least."""
    found, total = _in_plane(results), len(results)
    return Finding(len(found) == total, f"{len(found)} of {total} runs.", {"runs": total, "in_plane": len(found)})


def judge_some_in_plane(results: Results) -> Finding:
    """Judge by Fisher's exact test against the authors' count."""
    found, total = len(_in_plane(results)), len(results)
    theirs = anchors.AT_ALMOST_ALL["modular_addition", HARMONIC_MLP]
    p = fisher_exact(found, total, theirs, anchors.RUNS)
    # What the test could have told apart: a share that nothing contradicts is worth little where nothing could.
    passing = [k for k in range(total + 1) if fisher_exact(k, total, theirs, anchors.RUNS) >= SIGNIFICANT]
    return Finding(
        p >= SIGNIFICANT,
        f"{found} of {total} runs, against {theirs} of {anchors.RUNS}: p = {p:.2g}. Compatible would be "
        f"{passing[0]} to {passing[-1]}.",
        {"runs": total, "in_plane": found, "p": p},
    )


def judge_means(results: Results) -> Finding:
    """Judge one task by the model whose mean, over the runs that stayed finite, is farthest from the authors'."""
    task = next(cell.task for cell in results)
    lost = sum(cumulative(result) is None for result in results.values())
    means = {arm: np.mean(list(shares_of(results, "authors", task, arm).values()) or [np.nan]) for arm in ARMS}
    off = {arm: float(mean - anchors.EXPLAINED_VARIANCE[task][arm]) for arm, mean in means.items()}
    return Finding(
        all(abs(difference) <= MEAN_TOLERANCE for difference in off.values()),
        "Mean and difference to the authors' in points: "
        + "; ".join(f"{MODEL_STYLES[arm].label} {100 * means[arm]:.1f} ({100 * off[arm]:+.1f})" for arm in ARMS)
        + f".{f' Diverged and left out: {lost}.' if lost else ''}",
        {f"difference_{model}_{head}": off[model, head] for model, head in ARMS},
    )


def _in_plane(results: Results) -> list[RunCell]:
    curves = {cell: cumulative(result) for cell, result in results.items()}
    return [cell for cell, curve in curves.items() if curve is not None and curve[COMPONENTS - 1] >= ALMOST_ALL]


JUDGES: dict[str, Basis] = {
    **{
        f"harmonic_beats_standard_{model}_{protocol}": Basis(
            protocol, tuple((model, head) for head in HEADS), tuple(TITLES), judge_beats
        )
        for protocol in PROTOCOLS
        for model in BODIES
    },
    "lattice_in_a_plane": Basis("authors", (HARMONIC_MLP,), ("lattice",), judge_all_in_plane),
    "modular_addition_in_a_plane": Basis("authors", (HARMONIC_MLP,), ("modular_addition",), judge_some_in_plane),
    **{f"{task}_means": Basis("authors", ARMS, (task,), judge_means) for task in ("equivalence", "genealogy")},
}


def summarize(spec: AlgorithmicSpec, results: Results) -> Summary:
    """Judge every claim, and tabulate every model beside the authors'."""
    rows = [(protocol, task) for protocol in spec.protocols for task in spec.tasks]
    shares = Table(
        "Variance explained by two components, %",
        tuple(_share_row(results, protocol, task, arm) for protocol, task in rows for arm in ARMS),
    )
    differences = Table(
        "Harmonic minus standard, points, paired over seeds",
        tuple(_difference_row(results, protocol, task, model) for protocol, task in rows for model in BODIES),
    )
    verdicts = tuple(conclude_on(JUDGES[claim.id], claim.id, spec, results) for claim in CLAIMS)
    return Summary(verdicts, (shares, differences))


def _share_row(results: Results, protocol: str, task: str, arm: tuple[str, str]) -> dict[str, Any]:
    shares = [100 * share for share in shares_of(results, protocol, task, arm).values()]
    mean = bootstrap_interval(shares, statistic="mean") if shares else None
    # Under the matched protocol there is no number of theirs to be held against.
    own = protocol == "authors"
    theirs, full = 100 * anchors.EXPLAINED_VARIANCE[task][arm], anchors.AT_ALMOST_ALL.get((task, arm))
    return {
        "protocol": protocol,
        "task": TITLES[task],
        "model": MODEL_STYLES[arm].label,
        "runs": len(shares),
        "diverged": len(by_seed(results, protocol, task, arm)) - len(shares),
        "mean [95 %]": str(mean) if mean else None,
        "authors' mean": theirs if own else "",
        "ours - authors'": round(mean.estimate - theirs, 1) + 0.0 if own and mean else "",
        "in our interval": yes_or_no(mean.low - ROUNDED <= theirs <= mean.high + ROUNDED) if own and mean else "",
        "median [95 %]": str(bootstrap_interval(shares)) if shares else None,
        "runs at 99 % or more": sum(share >= 100 * ALMOST_ALL for share in shares),
        "authors' runs": f"{full} of {anchors.RUNS}" if own and full is not None else "",
    }


def _difference_row(results: Results, protocol: str, task: str, model: str) -> dict[str, Any]:
    found = compare(results, protocol, task, model)
    return {
        "protocol": protocol,
        "task": TITLES[task],
        "models": BODIES[model],
        "pairs": pairs_of(found) if found else 0,
        "mean [95 %]": str(found.difference) if found else None,
        "authors'": _authors_difference(task, model) if protocol == "authors" else "",
        "higher on": found.greater if found else None,
        "lower on": found.less if found else None,
        "p, sign test": found.sign_p if found else None,
        "p, signed ranks": found.rank_p if found else None,
        "harmonic is": direction(found),
    }


def figures(spec: AlgorithmicSpec, results: Results) -> dict[str, Picture]:
    """Draw the cumulative curves, one figure a protocol, and all runs at two components."""
    drawn = {}
    for protocol in spec.protocols:
        if any(cell.protocol == protocol for cell in results):
            seeds = seeds_in_words(spec, results, protocol=protocol)
            drawn[f"explained_variance_{protocol}"] = Picture(
                draw_curves(spec, protocol, results),
                f"Explained variance against the number of components, protocol {protocol}, {seeds}. Lines are "
                "medians over seeds, as the authors' code draws them, and bands reach from the lower to the upper "
                "quartile; a mark stands at two components. The means, which the paper's text speaks of, are in the "
                "next figure.",
            )
    if results:
        drawn["explained_variance_runs"] = Picture(
            draw_runs(spec, results),
            f"Variance explained by two components: a dot is a run ({seeds_in_words(spec, results)}), left under the "
            "authors protocol, right and hollow under the matched one. Short lines are our means, black diamonds the "
            "authors' means over "
            "their 20 seeds.",
        )
    return drawn


def draw_curves(spec: AlgorithmicSpec, protocol: str, results: Results) -> "Figure":
    """Draw a panel a task, with the four models in each, and the legend in the panel that is left."""
    figure = drawing.new_figure(10, 6.4)
    panels = list(figure.subplots(2, 3, sharey=True).flat)
    for axes, task in zip(panels, spec.tasks, strict=False):
        for arm in ARMS:
            _draw_model(axes, arm, list(curves_of(results, protocol, task, arm).values()))
        axes.set(title=TITLES[task], ylim=(0, 103), xticks=(1, 2, 4, 8, 12, 16), xlabel="components")
    for axes in panels[::3]:
        axes.set_ylabel("explained variance, %")
    for axes in panels[len(spec.tasks) :]:
        axes.axis("off")
    handles = [drawing.model_handle(*arm) for arm in ARMS]
    panels[-1].legend(handles=handles, loc="center", fontsize=10, title=f"{protocol} protocol", title_fontsize=10)
    return figure


def _draw_model(axes: "Axes", arm: tuple[str, str], curves: Sequence[np.ndarray]) -> None:
    if not curves:
        return
    style, percent = MODEL_STYLES[arm], 100 * np.stack(curves)
    components = 1 + np.arange(percent.shape[1])
    low, middle, high = np.percentile(percent, [25, 50, 75], axis=0)
    axes.plot(components, middle, color=style.color, linestyle=style.line)
    axes.fill_between(components, low, high, color=style.color, alpha=0.14, linewidth=0)
    mark = COMPONENTS - 1
    axes.plot(components[mark], middle[mark], style.marker, color=style.color, markersize=6, markeredgecolor="white")


def draw_runs(spec: AlgorithmicSpec, results: Results) -> "Figure":
    """Draw a panel a task, a column a model, a dot a run, the protocols side by side."""
    figure = drawing.new_figure(10, 6.6)
    panels = list(figure.subplots(2, 3, sharey=True).flat)
    short = [MODEL_STYLES[arm].label.replace(" ", "\n") for arm in ARMS]
    for axes, task in zip(panels, spec.tasks, strict=False):
        for column, arm in enumerate(ARMS):
            for protocol in spec.protocols:
                shares = 100 * np.array(list(shares_of(results, protocol, task, arm).values()))
                _draw_strip(axes, column + OFFSETS[protocol], shares, MODEL_STYLES[arm].color, protocol == "authors")
            axes.plot(column, 100 * anchors.EXPLAINED_VARIANCE[task][arm], "D", color="black", markersize=5, zorder=5)
        axes.set_xticks(range(len(ARMS)), labels=short, fontsize=8)
        axes.set(title=TITLES[task], ylim=(0, 103), xlim=(-0.6, len(ARMS) - 0.4))
        axes.grid(False, axis="x")
    for axes in panels[::3]:
        axes.set_ylabel("variance in two components, %")
    for axes in panels[len(spec.tasks) :]:
        axes.axis("off")
    gray = "#666666"
    panels[-1].legend(
        handles=[
            drawing.mark_handle("a run, authors protocol", "o", gray),
            drawing.mark_handle("a run, matched protocol", "o", gray, face="white"),
            drawing.mark_handle("mean of our runs", "_", gray, size=11),
            drawing.mark_handle("authors' mean", "D", "black"),
        ],
        loc="center",
        fontsize=10,
    )
    return figure


def _draw_strip(axes: "Axes", x: float, shares: np.ndarray, color: str, filled: bool) -> None:
    if not len(shares):
        return
    # Spread in a fixed order instead of at random: the same runs give the same picture.
    beside = x + 0.09 * np.linspace(-1, 1, max(len(shares), 2))[: len(shares)]
    face = color if filled else "white"
    axes.plot(beside, shares, "o", color=color, markersize=3, markerfacecolor=face, markeredgewidth=0.7, alpha=0.75)
    axes.plot(x, shares.mean(), "_", color=color, markersize=11, markeredgewidth=2.2, zorder=4)


EXPERIMENT = view(
    runs.EXPERIMENT,
    name="explained_variance",
    title="How many components an embedding needs",
    figure="Fig. 3 a",
    claims=CLAIMS,
    old_summarize=summarize,
    old_figures=figures,
)
