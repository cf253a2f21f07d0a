"""How many principal components an embedding needs (Fig. 3 a): a view of the runs of `algorithmic`.

The explained variance of k components is the share of the embedding's variance that its k widest directions carry. The
paper's text reports means over 20 seeds, the authors' code draws medians; the table has both. A diverged run has no
embedding to measure: it is counted, and left out of means, medians and pairs.
"""

# K shown tokens, D features, R components

from typing import Any

import numpy as np

from harmax.analysis import PairedDifference, fisher_exact, pca
from harmax.figures import Picture
from harmax_lab.algorithmic import anchors, runs
from harmax_lab.algorithmic.anchors import ALMOST_ALL, HARMONIC_MLP
from harmax_lab.algorithmic.measures import last_embedding
from harmax_lab.algorithmic.runs import ARMS, BODIES, TITLES, AlgorithmicSpec
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.judges import SIGNIFICANT, everywhere, listed, pairs_of, side
from harmax_lab.kit.results import Results, where
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table, entries, paired_columns, yes_or_no
from harmax_lab.tasks import PROTOCOLS

SHARE = "explained_variance"  # of two components
COMPONENTS = 2
MEAN_TOLERANCE = 0.06
ROUNDED = 0.05  # points; the authors' means are known to a tenth
DIRECTION = {1: "higher", -1: "lower", 0: "undecided"}
OFFSETS = {"authors": -0.22, "matched": 0.22}


def cumulative(result: CellResult) -> np.ndarray | None:
    """Return the variance explained by 1, 2, ... components at the end of training, (R,); None for a diverged run."""
    embedding_KD = last_embedding(result)
    return None if embedding_KD is None else np.minimum(pca(embedding_KD).ratio.cumsum(), 1.0)


def measure(spec: AlgorithmicSpec, cell: RunCell, result: CellResult) -> dict[str, float | None]:
    """Return the share of the variance that two components explain."""
    curve = cumulative(result)
    return {SHARE: None if curve is None else float(curve[COMPONENTS - 1])}


def _in_plane(results: Results) -> int:
    return sum(share >= ALMOST_ALL for share in results.metric(SHARE).present)


def _compare(results: Results, level: float = 0.95) -> PairedDifference | None:
    return results.paired(SHARE, "head", "harmonic", "linear", scale=100, level=level)


def _authors_difference(task: str, model: str) -> float:
    means = anchors.EXPLAINED_VARIANCE[task]
    return 100 * (means[model, "harmonic"] - means[model, "linear"])


def _judge_beats(results: Results) -> Finding:
    tasks, (model,) = results.groups("task"), results.distinct("model")
    answer = everywhere(tasks, lambda task, level: _compare(tasks[task], level))
    clear = {task: one for task, one in answer.sides.items() if one}
    agree = sum((_authors_difference(task, model) > 0) == (one > 0) for task, one in clear.items())
    found = {task: one.difference for task, one in answer.found.items() if one}
    words = {TITLES[task].lower(): f"{found.get(task, 'no pair')} ({DIRECTION[answer.sides[task]]})" for task in tasks}
    return Finding(
        answer.holds,
        f"Harmonic minus standard in points, mean over seeds and 95 % interval: {listed(words)}. Of the {len(clear)} "
        f"clear differences, {agree} have the same sign as the authors'.",
        {f"difference_{task}": one._asdict() for task, one in found.items()},
    )


def _judge_all_in_plane(results: Results) -> Finding:
    found, total = _in_plane(results), len(results)
    return Finding(found == total, f"{found} of {total} runs.", {"runs": total, "in_plane": found})


def _judge_some_in_plane(results: Results) -> Finding:
    found, total = _in_plane(results), len(results)
    theirs, runs_ = anchors.AT_ALMOST_ALL["modular_addition", HARMONIC_MLP], anchors.RUNS
    chances = [fisher_exact(count, total, theirs, runs_) for count in range(total + 1)]
    # Which counts the test could tell apart: a share that nothing contradicts is worth little where nothing could.
    passing, p = [count for count, chance in enumerate(chances) if chance >= SIGNIFICANT], chances[found]
    words = f"{found} of {total} runs, against {theirs} of {runs_}: p = {p:.2g}."
    compatible = f"Counts from {passing[0]} to {passing[-1]} would be compatible."
    return Finding(p >= SIGNIFICANT, f"{words} {compatible}", {"runs": total, "in_plane": found, "p": p})


def _judge_means(results: Results) -> Finding:
    (task,) = results.distinct("task")
    shares = {arm: results.where(arm=arm).metric(SHARE).present.values for arm in ARMS}
    lost = len(results) - sum(map(len, shares.values()))
    means = {arm: np.mean(found or [np.nan]) for arm, found in shares.items()}
    off = {arm: float(mean - anchors.EXPLAINED_VARIANCE[task][arm]) for arm, mean in means.items()}
    words = {MODEL_STYLES[arm].label: f"{100 * means[arm]:.1f} ({100 * off[arm]:+.1f})" for arm in ARMS}
    without = f" Diverged and left out: {lost}." * bool(lost)
    return Finding(
        all(abs(difference) <= MEAN_TOLERANCE for difference in off.values()),
        f"Mean and difference to the authors' in points: {listed(words)}.{without}",
        {f"difference_{model}_{head}": off[model, head] for model, head in ARMS},
    )


def _claim_beats(protocol: str, model: str) -> Claim:
    theirs = ", ".join(f"{TITLES[task].lower()} {_authors_difference(task, model):+.1f}" for task in TITLES)
    return runs.claim(
        f"harmonic_beats_standard_{model}_{protocol}",
        f"In every task two components explain more of the harmonic {BODIES[model]}' embeddings than of the standard "
        f"ones' ({protocol} protocol).",
        "Harmonic models need fewer components, up to 100 % of the variance in two. In the authors' stored figures the "
        f"difference of the means is {theirs} points.",
        where(protocol=protocol, model=model),
        _judge_beats,
        control=protocol == "matched",
    )


def _claim_means(task: str) -> Claim:
    theirs = ", ".join(f"{MODEL_STYLES[arm].label} {100 * anchors.EXPLAINED_VARIANCE[task][arm]:.1f}" for arm in ARMS)
    statement = f"{TITLES[task]}: the mean of each model lies within 6 points of the authors' (authors protocol)."
    return runs.claim(f"{task}_means", statement, f"{theirs} %.", where(protocol="authors", task=task), _judge_means)


CLAIMS = (
    *(_claim_beats(protocol, model) for protocol in PROTOCOLS for model in BODIES),
    runs.claim(
        "lattice_in_a_plane",
        "Every harmonic MLP has 99 % or more of its lattice's variance in two components (authors protocol).",
        "20 of 20.",
        where(arm=HARMONIC_MLP, protocol="authors", task="lattice"),
        _judge_all_in_plane,
    ),
    runs.claim(
        "modular_addition_in_a_plane",
        "The share of harmonic MLPs on modular addition with 99 % or more in two components is compatible with the "
        "authors' (authors protocol; Fisher's exact test at 5 %).",
        "14 of 20.",
        where(arm=HARMONIC_MLP, protocol="authors", task="modular_addition"),
        _judge_some_in_plane,
    ),
    *(_claim_means(task) for task in ("equivalence", "genealogy")),
)


def _row(at: Any) -> dict[str, Any]:
    found = at.own.metric(SHARE).present
    mean, median, shares = found.mean(scale=100), found.median(scale=100), found.values
    # The matched protocol has no numbers of the authors' to compare with.
    known, full = at.protocol == "authors", anchors.AT_ALMOST_ALL.get((at.task, at.arm))
    theirs, ours = 100 * anchors.EXPLAINED_VARIANCE[at.task][at.arm], mean if known else None
    return {
        **runs.place(at),
        "runs": len(shares),
        "diverged": len(at.own) - len(shares),
        "mean [95 %]": str(mean) if mean else None,
        "authors' mean": theirs if known else "",
        "ours - authors'": round(ours.estimate - theirs, 1) + 0.0 if ours else "",
        "in our interval": yes_or_no(ours.low - ROUNDED <= theirs <= ours.high + ROUNDED) if ours else "",
        "median [95 %]": str(median) if median else None,
        "runs at 99 % or more": _in_plane(at.own),
        "authors' runs": f"{full} of {anchors.RUNS}" if known and full is not None else "",
    }


def _difference_row(at: Any) -> dict[str, Any]:
    found = _compare(at.own)
    return {
        **runs.place(at),
        "pairs": pairs_of(found),
        "mean [95 %]": str(found.difference) if found else None,
        "authors'": _authors_difference(at.task, at.model) if at.protocol == "authors" else "",
        **entries(found, paired_columns(lambda found: found)),
        "harmonic is": DIRECTION[side(found)],
    }


def tables(results: Results) -> list[Table]:
    """Tabulate every model beside the authors', and the paired differences."""
    models, bodies = runs.places(results, arm=ARMS), runs.places(results, model=BODIES)
    return [
        Table("Variance explained by two components, %", tuple(map(_row, models))),
        Table("Harmonic minus standard, points, paired over seeds", tuple(map(_difference_row, bodies))),
    ]


def figures(results: Results) -> dict[str, Picture]:
    """Draw the cumulative curves, one figure per protocol, and all runs at two components."""
    groups = results.groups("protocol")
    drawn = {f"explained_variance_{protocol}": _draw_curves(own, protocol) for protocol, own in groups.items()}
    return drawn | ({"explained_variance_runs": _draw_runs(results)} if results else {})


def _draw_curves(results: Results, protocol: str) -> Picture:
    figure, panels = runs.task_panels(
        results,
        (10, 6.4),
        ylabel="explained variance, %",
        handles=[drawing.model_handle(*arm) for arm in ARMS],
        title=f"{protocol} protocol",
    )
    for task, axes in panels.items():
        for arm, style in MODEL_STYLES.items():
            curves = results.where(task=task, arm=arm).take(lambda cell, result: cumulative(result)).present.values
            if curves:
                low, middle, high = np.percentile(100 * np.stack(curves), [25, 50, 75], axis=0)
                components, mark = 1 + np.arange(len(middle)), COMPONENTS - 1
                axes.plot(components, middle, color=style.color, linestyle=style.line)
                axes.fill_between(components, low, high, color=style.color, alpha=0.14, linewidth=0)
                dot: Any = {"color": style.color, "markersize": 6, "markeredgecolor": "white"}
                axes.plot(components[mark], middle[mark], style.marker, **dot)
        axes.set(ylim=(0, 103), xticks=(1, 2, 4, 8, 12, 16), xlabel="components")
    return Picture(
        figure,
        f"Explained variance against the number of components, {protocol} protocol, {runs.seeds_of(results)}. Lines: "
        "medians over seeds, as in the authors' code. Bands: lower to upper quartile. Marks: two components. The next "
        "figure shows the means, which the paper's text reports.",
    )


def _draw_runs(results: Results) -> Picture:
    gray = "#666666"
    figure, panels = runs.task_panels(
        results,
        (10, 6.6),
        ylabel="variance in two components, %",
        handles=[
            drawing.mark_handle("a run, authors protocol", "o", gray),
            drawing.mark_handle("a run, matched protocol", "o", gray, face="white"),
            drawing.mark_handle("mean of our runs", "_", gray, size=11),
            drawing.mark_handle("authors' mean", "D", "black"),
        ],
    )
    for task, axes in panels.items():
        for column, (arm, style) in enumerate(MODEL_STYLES.items()):
            for protocol in results.spec.protocols:
                own = results.where(protocol=protocol, task=task, arm=arm)
                shares, x, color = (
                    100 * np.array(own.metric(SHARE).present.values),
                    column + OFFSETS[protocol],
                    style.color,
                )
                if len(shares):
                    face = color if protocol == "authors" else "white"
                    look: Any = {"markersize": 3, "markerfacecolor": face, "markeredgewidth": 0.7, "alpha": 0.75}
                    axes.plot(drawing.beside(x, len(shares), 0.09), shares, "o", color=color, **look)
                    axes.plot(x, shares.mean(), "_", color=color, markersize=11, markeredgewidth=2.2, zorder=4)
            axes.plot(column, 100 * anchors.EXPLAINED_VARIANCE[task][arm], "D", color="black", markersize=5, zorder=5)
        axes.set_xticks(range(len(ARMS)), labels=runs.TICKS, fontsize=8)
        axes.set(ylim=(0, 103), xlim=(-0.6, len(ARMS) - 0.4))
        axes.grid(False, axis="x")
    return Picture(
        figure,
        f"Variance explained by two components, one dot per run ({runs.seeds_of(results)}): left and filled under the "
        "authors protocol, right and hollow under the matched one. Short lines: our means. Black diamonds: the "
        "authors' means over their 20 seeds.",
    )


EXPERIMENT = runs.view(
    "explained_variance", "How many components an embedding needs", "Fig. 3 a", CLAIMS, measure, tables, figures
)
