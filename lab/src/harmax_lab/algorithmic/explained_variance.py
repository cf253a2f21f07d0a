"""How many principal components an embedding needs (Fig. 3 a): a view of the runs of `algorithmic`.

The explained variance of k components is the share of the embedding's variance that its k widest directions carry. The
paper's text reports means over 20 seeds, the authors' code draws medians; the table has both. A diverged run explains
nothing: it counts as 0.
"""

# K shown tokens, D features, R components

from typing import Any

import numpy as np

from harmax.analysis import Interval, PairedDifference, fisher_exact, pca
from harmax.figures import Picture
from harmax_lab.algorithmic import anchors, runs
from harmax_lab.algorithmic.anchors import ALMOST_ALL, HARMONIC_MLP
from harmax_lab.algorithmic.measures import last_embedding, snapshot
from harmax_lab.algorithmic.runs import ARMS, BODIES, TITLES, AlgorithmicSpec
from harmax_lab.algorithmic.sentences import over_seeds, said
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.judges import SIGNIFICANT, both, listed, pairs_of, percent, side, signed
from harmax_lab.kit.results import Results, interval, where
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table, entries, paired_columns, yes_or_no
from harmax_lab.paper.readings import PERFECT

SHARE = "explained_variance"  # of two components
THEIRS = "explained_variance_theirs"  # the same at the epoch at which the authors' code ends
COMPONENTS = 2
MEAN_TOLERANCE = 0.06
ROUNDED = 0.05  # points; the authors' means are known to a tenth
DIRECTION = {1: "higher", -1: "lower", 0: "undecided"}
OFFSETS = {"authors": -0.22, "matched": 0.22}
COLORS, MARKS = {"mlp": "#0072B2", "transformer": "#009E73"}, {"mlp": "o", "transformer": "^"}


def cumulative(embedding_KD: np.ndarray | None) -> np.ndarray | None:
    """Return the variance explained by 1, 2, ... components of an embedding, (R,); None for that of a diverged run."""
    return None if embedding_KD is None else np.minimum(pca(embedding_KD).ratio.cumsum(), 1.0)


def measure(spec: AlgorithmicSpec, cell: RunCell, result: CellResult) -> dict[str, float]:
    """Return the test accuracy, and the share of the variance that two components explain."""
    theirs = snapshot(result, anchors.authors_epochs(cell.task, cell.model))
    return {
        "test_accuracy": runs.measure(spec, cell, result)["test_accuracy"],
        SHARE: _of_two(last_embedding(result)),
        THEIRS: _of_two(theirs),
    }


def _of_two(embedding_KD: np.ndarray | None) -> float:
    curve = cumulative(embedding_KD)
    return 0.0 if curve is None else float(curve[COMPONENTS - 1])


def _in_plane(results: Results) -> int:
    return sum(share >= ALMOST_ALL for share in results.metric(SHARE))


def _compare(results: Results) -> PairedDifference | None:
    return results.paired(SHARE, "head", "harmonic", "linear", scale=100)


def _points(results: Results) -> Interval | None:
    """Return harmonic minus standard in points: the mean over tasks and models, with its interval over seeds."""
    found = over_seeds(results, SHARE, lambda harmonic, standard: 100 * (harmonic - standard))
    return interval(found) if found else None


def _authors_difference(task: str, model: str) -> float:
    means = anchors.EXPLAINED_VARIANCE[task]
    return round(100 * (means[model, "harmonic"] - means[model, "linear"]), 1)


def _judge_compact(results: Results) -> Finding:
    found = _points(results)
    if found is None:
        return Finding(None, "No pair.", {})
    own = results.groups("task", "model")
    parts = {key: _compare(one) for key, one in own.items()}
    less = {
        f"{TITLES[task].lower()}, {model}": str(one.difference)
        for (task, model), one in parts.items()
        if one and side(one) == -1
    }
    more = sum(side(one) == 1 for one in parts.values())
    return Finding(
        found.above(0),
        f"Harmonic minus standard in points: {signed(found, 1)}. Of {len(parts)} tasks and models harmonic is clearly "
        f"higher in {more} and clearly lower in {len(less)}{': ' * bool(less)}{listed(less)}.",
        {
            "difference": found._asdict(),
            **{f"difference_{'_'.join(key)}": one.difference._asdict() for key, one in parts.items() if one},
        },
    )


def _judge_perfect(results: Results) -> Finding:
    means = {arm: own.metric(SHARE).mean(scale=100) for arm, own in results.groups("arm").items()}
    wanted = dict.fromkeys(cell.arm for cell in results.wanted)
    return Finding(
        both(*(_is_perfect(means.get(arm)) for arm in wanted)),
        f"Means in %: {listed({MODEL_STYLES[arm].label: str(mean) for arm, mean in means.items()})}.",
        {f"mean_{'_'.join(arm)}": mean.estimate for arm, mean in means.items() if mean},
    )


def _is_perfect(mean: Interval | None) -> bool | None:
    if mean is None:
        return None
    return True if mean.estimate >= 100 * PERFECT else False if mean.high < 100 * PERFECT else None


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
    means = {arm: float(np.mean(results.where(arm=arm).metric(THEIRS).values)) for arm in ARMS}
    off = {arm: mean - anchors.EXPLAINED_VARIANCE[task][arm] for arm, mean in means.items()}
    words = {MODEL_STYLES[arm].label: f"{100 * means[arm]:.1f} ({100 * off[arm]:+.1f})" for arm in ARMS}
    return Finding(
        all(abs(difference) <= MEAN_TOLERANCE for difference in off.values()),
        f"Mean and difference to the authors' in points: {listed(words)}.",
        {f"difference_{model}_{head}": off[model, head] for model, head in ARMS},
    )


def _claim_means(task: str) -> Claim:
    theirs = ", ".join(f"{MODEL_STYLES[arm].label} {100 * anchors.EXPLAINED_VARIANCE[task][arm]:.1f}" for arm in ARMS)
    return runs.claim(
        f"{task}_means",
        f"{TITLES[task]}: the mean of each model lies within 6 points of that in the authors' stored figures, after as "
        "many epochs as there (authors protocol).",
        f"Not in the paper's text. Authors' figures: {theirs} %.",
        where(protocol="authors", task=task),
        _judge_means,
    )


DIFFERENCES = listed(
    {
        TITLES[task].lower(): " and ".join(f"{_authors_difference(task, model):+.1f}" for model in BODIES)
        for task in TITLES
    }
)
CLAIMS = (
    *said(
        "more_compact",
        ("3.2/15",),
        "Harmonic embeddings tend to be more compact than standard ones. Holds if two components explain more of the "
        "variance, in the mean over tasks and models with its interval over seeds",
        _judge_compact,
        paper=f"Differences of the means in the authors' stored figures, MLPs and transformers: {DIFFERENCES} points.",
    ),
    *said(
        "lattice_in_two",
        ("3.2/16",),
        "On the lattice two components explain 100 % of the variance of harmonic models. Holds if the mean over seeds "
        f"is at least {percent(PERFECT, 0)}, for MLPs and for transformers",
        _judge_perfect,
        task="lattice",
        head="harmonic",
    ),
    runs.claim(
        "lattice_in_a_plane",
        "Every harmonic MLP has 99 % or more of its lattice's variance in two components, as in the authors' stored "
        "figures (authors protocol).",
        "Not in the paper's text. Authors' figures: 20 of 20.",
        where(arm=HARMONIC_MLP, protocol="authors", task="lattice"),
        _judge_all_in_plane,
    ),
    runs.claim(
        "modular_addition_in_a_plane",
        "The share of harmonic MLPs on modular addition with 99 % or more in two components is compatible with that in "
        "the authors' stored figures (authors protocol; Fisher's exact test at 5 %).",
        "Not in the paper's text. Authors' figures: 14 of 20.",
        where(arm=HARMONIC_MLP, protocol="authors", task="modular_addition"),
        _judge_some_in_plane,
    ),
    *(_claim_means(task) for task in ("equivalence", "genealogy")),
)


def _row(at: Any) -> dict[str, Any]:
    found, theirs = at.own.metric(SHARE), at.own.metric(THEIRS)
    mean, median = found.mean(scale=100), found.median(scale=100)
    # The matched protocol has no numbers of the authors' to compare with.
    known, full = at.protocol == "authors", anchors.AT_ALMOST_ALL.get((at.task, at.arm))
    anchor, ours = (
        round(100 * anchors.EXPLAINED_VARIANCE[at.task][at.arm], 1),
        theirs.mean(scale=100) if known else None,
    )
    return {
        **runs.place(at),
        "runs": len(found),
        "diverged": len(at.own.metric("diverged_at").present),
        "mean [95 %]": str(mean) if mean else None,
        "median [95 %]": str(median) if median else None,
        "runs at 99 % or more": _in_plane(at.own),
        "authors' runs": f"{full} of {anchors.RUNS}" if known and full is not None else "",
        "authors' mean": anchor if known else "",
        "ours after as many epochs": str(ours) if ours else "",
        "ours - authors'": round(ours.estimate - anchor, 1) + 0.0 if ours else "",
        "in our interval": yes_or_no(ours.low - ROUNDED <= anchor <= ours.high + ROUNDED) if ours else "",
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
    """Draw the differences of the heads, the cumulative curves, one figure per protocol, and all runs."""
    drawn = {}
    if results:
        drawn = {"explained_variance_differences": _draw_differences(results)}
        drawn["explained_variance_runs"] = _draw_runs(results)
    groups = results.groups("protocol")
    return drawn | {f"explained_variance_{protocol}": _draw_curves(own, protocol) for protocol, own in groups.items()}


def _draw_differences(results: Results) -> Picture:
    """Draw, per task and for all together, how much more of the harmonic embedding two components explain."""
    protocols, tasks = results.spec.protocols, results.spec.tasks
    titles = {protocol: f"{protocol} protocol" for protocol in protocols}
    words = "harmonic minus standard, points"
    figure, panels = drawing.panels_in_a_row(titles, size=(10, 5), xlabel=words, sharex=True, sharey=True)
    figure.suptitle("How much more variance two components explain with the harmonic head")
    handles = [drawing.mark_handle(words, MARKS[model], COLORS[model]) for model, words in BODIES.items()]
    handles.append(drawing.mark_handle("authors' stored figures", "D", "black", face="white"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    for protocol, axes in panels.items():
        axes.axvline(0, color="#777777", linewidth=1, zorder=1)
        axes.axhline(len(tasks) - 0.5, color="#bbbbbb", linewidth=0.8)
        for row, task in enumerate((*tasks, None)):
            for model, place in zip(BODIES, (row - 0.16, row + 0.16), strict=True):
                own = results.where(protocol=protocol, model=model, task=tuple(tasks) if task is None else task)
                found = _points(own)
                if found is not None:
                    drawing.draw_interval(axes, found, place, COLORS[model], marker=MARKS[model], markersize=6)
                if protocol == "authors":
                    known = [_authors_difference(one, model) for one in (tasks if task is None else (task,))]
                    axes.plot(
                        np.mean(known), place, "D", color="black", markerfacecolor="white", markersize=5, zorder=5
                    )
        axes.set(ylim=(len(tasks) + 0.5, -0.5))
        axes.set_yticks(range(len(tasks) + 1), labels=[*(TITLES[task] for task in tasks), "mean over tasks"])
        axes.grid(False, axis="y")
    return Picture(
        figure,
        "Right of the line two components explain more of the harmonic embedding than of the standard one. Marks are "
        f"means over paired seeds, bars 95 % intervals ({runs.budget(results)}). Diamonds: the same difference in the "
        "authors' stored figures. Their transformers were trained for 7000 epochs, except on permutations.",
    )


def _draw_curves(results: Results, protocol: str) -> Picture:
    figure, panels = runs.task_panels(
        results, (10, 6.6), ylabel="explained variance, %", handles=[drawing.model_handle(*arm) for arm in ARMS]
    )
    figure.suptitle(f"How many components carry the variance of an embedding, {protocol} protocol")
    for task, axes in panels.items():
        for arm, style in MODEL_STYLES.items():
            ends = results.where(task=task, arm=arm).take(lambda cell, result: cumulative(last_embedding(result)))
            curves = ends.present.values
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
        f"Explained variance against the number of components, {protocol} protocol ({runs.budget(results)}). The "
        "higher a curve at few components, the more compact is the embedding. Lines: medians over seeds, as in the "
        "authors' code. Bands: lower to upper quartile. Marks: two components. Runs that diverged are not drawn.",
    )


def _draw_runs(results: Results) -> Picture:
    gray = "#666666"
    figure, panels = runs.task_panels(
        results,
        (10, 6.8),
        ylabel="variance in two components, %",
        handles=[
            drawing.mark_handle("a run, authors protocol", "o", gray),
            drawing.mark_handle("a run, matched protocol", "o", gray, face="white"),
            drawing.mark_handle("mean of our runs", "_", gray, size=11),
            drawing.mark_handle("authors' mean", "D", "black"),
        ],
    )
    figure.suptitle("Variance in two components: every run")
    for task, axes in panels.items():
        for column, (arm, style) in enumerate(MODEL_STYLES.items()):
            for protocol in results.spec.protocols:
                own = results.where(protocol=protocol, task=task, arm=arm)
                shares, hollow = 100 * np.array(own.metric(SHARE).values), [protocol == "matched"] * len(own)
                look: Any = {"hollow": hollow, "reach": 0.11, "middle": np.mean}
                runs.draw_strip(axes, column + OFFSETS[protocol], shares, style.color, **look)
            axes.plot(column, 100 * anchors.EXPLAINED_VARIANCE[task][arm], "D", color="black", markersize=5, zorder=5)
        axes.set_xticks(range(len(ARMS)), labels=runs.TICKS, fontsize=8)
        axes.set(ylim=(0, 103), xlim=(-0.6, len(ARMS) - 0.4))
        axes.grid(False, axis="x")
    return Picture(
        figure,
        f"Variance explained by two components, one dot per run ({runs.budget(results)}): left and filled under the "
        "authors protocol, right and hollow under the matched one. Short lines: our means. Black diamonds: the "
        "authors' means over their 20 seeds.",
    )


EXPERIMENT = runs.view(
    "explained_variance", "How many components an embedding needs", "Fig. 3 a", CLAIMS, measure, tables, figures
)
