"""How long the test accuracy waits for the training accuracy (Fig. 3 c): a view of the runs of `algorithmic`.

    harmax run grokking --full     judges the runs of `harmax run algorithmic --full`, and trains them if needed

A run has learned, or generalizes, from the first epoch that starts 20 epochs in a row above 0.9. A run that never does
counts as infinitely late in every median and comparison. The authors' medians are over the runs that reach both
accuracies, so ours over such runs stand beside them.
"""

# S runs

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harmax.analysis import Interval, PairedDifference, fisher_exact, grokking_gap
from harmax.figures import Picture
from harmax_lab.algorithmic import anchors, runs
from harmax_lab.algorithmic.anchors import GROKKING, HARMONIC_MLP, REACHED, STANDARD_MLP
from harmax_lab.algorithmic.measures import grokking
from harmax_lab.algorithmic.protocols import HEADS
from harmax_lab.algorithmic.runs import ARMS, BODIES, TITLES, AlgorithmicSpec
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.judges import SIGNIFICANT, everywhere, listed, pairs_of, side
from harmax_lab.kit.results import Results, where
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table, entries, in_epochs, paired_columns, yes_or_no
from harmax_lab.tasks import PROTOCOLS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIDES = {"train_epoch": "training", "test_epoch": "test"}
WINDOW, NO_GAP = 20, "no gap in either"  # epochs; a gap below the window cannot be told from none
# Our 95 % interval is for our median. The authors' median, from another 20 runs, would fall into it 83 times of 100 if
# the runs were alike. Of 20 such medians fewer than 14 inside then have a chance of 4 % if all are independent, and of
# 7 % if training and test of a model always fall together.
SHARE_INSIDE = 0.7
MODES_APART, LEAST_IN_MODE = 2.0, 3


def measure(spec: AlgorithmicSpec, cell: RunCell, result: CellResult) -> dict[str, float | None]:
    """Return when a run learns and generalizes (infinity: never), and the gap between the two.

    There is no gap, None, where a run generalizes before it learns, which dropout can cause.
    """
    gap = grokking_gap(result.curves["train_accuracy"], result.curves["test_accuracy"])
    return {**grokking(result), "gap": None if np.isnan(gap) else gap}


class Gaps(NamedTuple):
    """How two heads' gaps differ on one task: the medians, harmonic minus standard, and which waits longer."""

    standard: float
    harmonic: float
    paired: PairedDifference
    reaching: PairedDifference | None
    """On the seeds on which both heads reach both accuracies: a run that fails is slow or stuck, which is no gap."""
    outcome: str


def _paired(results: Results, level: float = 0.95) -> PairedDifference | None:
    return results.paired("gap", "head", "harmonic", "linear", statistic="median", level=level)


def compare(results: Results) -> Gaps | None:
    """Compare the gaps of two heads on the seeds on which both have one; None without any."""
    found = _paired(results)
    if found is None:
        return None
    pairs = results.pairs("gap", "head", "harmonic", "linear").values()
    harmonic, standard = map(float, np.median(list(pairs), axis=0))
    small, outcome = max(standard, harmonic) < WINDOW, {1: "larger", -1: "smaller", 0: "undecided"}[side(found)]
    return Gaps(standard, harmonic, found, _paired(reached(results)), NO_GAP if small else outcome)


def _judge_gap(results: Results) -> Finding:
    tasks = results.groups("task")
    found = {task: compare(own) for task, own in tasks.items()}
    flat = [task for task, one in found.items() if one and one.outcome == NO_GAP]
    answer = everywhere(
        tasks, lambda task, level: _paired(tasks[task], level), wanted=-1, ignored=lambda task: task in flat
    )
    words = {
        TITLES[task].lower(): f"{one.standard:g} against {one.harmonic:g} ({one.outcome})" if one else "no pair"
        for task, one in found.items()
    }
    return Finding(
        answer.holds,
        f"Median gaps in epochs, standard against harmonic: {listed(words)}.",
        {f"difference_{task}": one.difference._asdict() for task, one in answer.found.items() if one},
    )


def reached(results: Results) -> Results:
    """Keep the runs that reach both accuracies."""
    return results.having(lambda result: bool(np.isfinite([result.metrics[name] for name in SIDES]).all()))


def medians(results: Results) -> dict[tuple[str, tuple[str, str], str], tuple[Interval | None, float, bool]]:
    """Return our median over the runs that reach both, the authors', and whether theirs lies in our interval."""
    found = {}
    for (task, arm), theirs in GROKKING.items():
        own = reached(results.where(arm=arm, protocol="authors", task=task))
        for name in SIDES:
            ours, known = own.metric(name).median(), getattr(theirs, name)
            found[task, arm, name] = ours, known, ours is not None and ours.low <= known <= ours.high
    return found


def _judge_medians(results: Results) -> Finding:
    found = {key: row for key, row in medians(results).items() if key[0] in results.distinct("task")}
    words = [
        f"{TITLES[task].lower()}, {MODEL_STYLES[arm].label}, {SIDES[name]} {in_epochs(ours)}, authors' {theirs:g}"
        for (task, arm, name), (ours, theirs, inside) in found.items()
        if not inside
    ]
    inside = len(found) - len(words)
    return Finding(
        inside >= SHARE_INSIDE * len(found),
        f"{inside} of {len(found)} do. {'Outside: ' + '; '.join(words) + '.' if words else 'None lies outside.'}",
        {"inside": inside, "medians": len(found)},
    )


def _judge_counts(results: Results) -> Finding:
    numbers, chances, words = {}, [], []
    for (task, arm), own in results.groups("task", "arm").items():
        ours, theirs = len(reached(own)), REACHED[task, arm]
        chances.append(fisher_exact(ours, len(own), theirs, anchors.RUNS))
        numbers[f"reached_{task}_{'_'.join(arm)}"] = ours
        words.append(
            f"{MODEL_STYLES[arm].label} on {TITLES[task].lower()} {ours} of {len(own)}, authors {theirs} of "
            f"{anchors.RUNS} (p = {chances[-1]:.1g})"
        )
    apart = [text for text, p in zip(words, chances, strict=True) if p < SIGNIFICANT / len(chances)]
    alone = sum(p < SIGNIFICANT for p in chances)
    text = f"{len(apart)} of {len(chances)} differ{': ' + '; '.join(apart) if apart else ''}."
    return Finding(not apart, f"{text} Each taken alone, {alone} would.", numbers)


def two_modes(
    epochs: np.ndarray, *, least: int, draws: int = 1999, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Split epochs at the widest empty stretch with at least `least` on either side; return early, late, ratio and p.

    p is how often as many epochs, spread evenly between the first and the last on a logarithmic scale, leave a stretch
    as wide: (1 + times) / (1 + draws).
    """
    ordered = np.sort(epochs)
    logs = np.log(ordered + 1.0)  # one more than the epoch, which may be 0
    inner = np.random.default_rng(seed).uniform(logs[0], logs[-1], size=(draws, len(logs) - 2))
    null = np.sort(np.concatenate([inner, np.broadcast_to(logs[[0, -1]], (draws, 2))], axis=1), axis=1)
    cuts = np.arange(least, len(logs) - least + 1)
    widths = logs[cuts] - logs[cuts - 1]
    as_wide = int(((null[:, cuts] - null[:, cuts - 1]).max(1) >= widths.max() - 1e-12).sum())
    cut = int(cuts[widths.argmax()])
    return ordered[:cut], ordered[cut:], float(np.exp(widths.max())), (1 + as_wide) / (1 + draws)


def _judge_modes(results: Results) -> Finding:
    epochs = np.array(reached(results).metric("test_epoch").values)
    if len(epochs) < 2 * LEAST_IN_MODE:
        return Finding(None, f"Only {len(epochs)} of {len(results)} runs reach both.", {"runs": len(epochs)})
    early, late, ratio, p = two_modes(epochs, least=LEAST_IN_MODE)
    return Finding(
        False if ratio < MODES_APART else True if p < SIGNIFICANT else None,
        f"{len(early)} runs generalize at epochs {early[0]:g} to {early[-1]:g}, {len(late)} at {late[0]:g} to "
        f"{late[-1]:g}, {len(results) - len(epochs)} never. The widest empty stretch with at least {LEAST_IN_MODE} "
        f"runs on either side is a factor of {ratio:.2g} (counted as two modes from {MODES_APART:g}). Evenly spread "
        f"epochs leave one as wide with p = {p:.2g}.",
        {"early": len(early), "late": len(late), "factor": ratio, "p": p},
    )


def _claim_gap(protocol: str, model: str) -> Claim:
    gaps = {key: theirs.test_epoch - theirs.train_epoch for key, theirs in GROKKING.items()}
    known = {
        t.lower(): f"{gaps[task, STANDARD_MLP]:g} against {gaps[task, HARMONIC_MLP]:g}" for task, t in TITLES.items()
    }
    paper = f"Differences of the authors' medians, standard against harmonic MLP, in epochs: {listed(known)}."
    return runs.claim(
        f"gap_smaller_{model}_{protocol}",
        f"From fitting to generalizing the harmonic {BODIES[model]} take fewer epochs than the standard ones, in every "
        f"task that has a gap; never generalizing counts as the longest gap ({protocol} protocol).",
        "Harmonic models grok less. " + (paper if model == "mlp" else "No epochs are known for transformers."),
        where(protocol=protocol, model=model),
        _judge_gap,
        control=protocol == "matched",
    )


CLAIMS = (
    *(_claim_gap(protocol, model) for protocol in PROTOCOLS for model in BODIES),
    runs.claim(
        "authors_medians",
        "The authors' median epochs of the MLPs come back: at least 14 of 20 lie in our 95 % intervals, where 17 "
        "would if the runs were alike (authors protocol).",
        "Medians, over the runs that reach both, of training and test, standard and harmonic, in five tasks.",
        where(protocol="authors", model="mlp"),
        _judge_medians,
    ),
    runs.claim(
        "authors_counts",
        "The numbers of runs that reach both accuracies come back: none of 20 differs (authors protocol; Fisher's "
        "exact test at 5 %, shared among the 20).",
        "Of 20 runs (standard and harmonic MLP, standard and harmonic transformer): "
        + listed({TITLES[task].lower(): ", ".join(str(REACHED[task, arm]) for arm in ARMS) for task in TITLES})
        + ".",
        where(protocol="authors"),
        _judge_counts,
    ),
    runs.claim(
        "genealogy_two_modes",
        "The standard MLP on genealogy generalizes either early or late, with nothing between: a factor of 2 or more, "
        "wider than evenly spread epochs leave by chance (authors protocol).",
        "Not reported: a median hides it.",
        where(arm=STANDARD_MLP, protocol="authors", task="genealogy"),
        _judge_modes,
        control=True,
    ),
)


def _epochs_row(at: Any) -> dict[str, Any]:
    both, theirs = len(reached(at.own)), REACHED[at.task, at.arm]
    known, p = at.protocol == "authors", fisher_exact(both, len(at.own), theirs, anchors.RUNS) if at.own else None
    columns = {name: at.own.metric(name) for name in SIDES}
    finite = [int(np.isfinite(column.values).sum()) if at.own else None for column in columns.values()]
    return {
        **runs.place(at),
        "runs": len(at.own),
        **dict(zip(("learn", "generalize"), finite, strict=True)),
        "reach both": both if at.own else None,
        "authors' of 20": theirs if known else "",
        "p, Fisher": p if known else "",
        **{f"{SIDES[name]} [95 %]": in_epochs(c.median()) if at.own else None for name, c in columns.items()},
    }


def _gap_row(at: Any) -> dict[str, Any]:
    gap = compare(at.own)
    paired, reaching = (gap.paired, gap.reaching) if gap else (None, None)
    words: Any = ("difference [95 %]", "larger on", "smaller on", in_epochs)
    return {
        **runs.place(at),
        "pairs": pairs_of(paired),
        "standard's median": gap and gap.standard,
        "harmonic's median": gap and gap.harmonic,
        **entries(paired, paired_columns(lambda paired: paired, *words, less_first=True)),
        "harmonic's gap is": gap.outcome if gap else "undecided",
        "pairs that reach": pairs_of(reaching),
        "their difference [95 %]": in_epochs(reaching.difference) if reaching else None,
    }


def tables(results: Results) -> list[Table]:
    """Tabulate epochs, gaps and the authors' medians."""
    known = []
    for (task, arm, name), (ours, theirs, inside) in medians(results).items():
        own = results.where(arm=arm, protocol="authors", task=task)
        row: dict[str, Any] = {"task": TITLES[task], "model": MODEL_STYLES[arm].label, "accuracy": SIDES[name]}
        row["our runs"] = f"{len(reached(own))} of {len(own)}" if own else "none"
        row["authors' runs"] = f"{REACHED[task, arm]} of {anchors.RUNS}"
        row |= {"ours [95 %]": in_epochs(ours), "authors'": theirs}
        known.append(row | {"in our interval": "" if ours is None else yes_or_no(inside)})
    models, bodies = runs.places(results, arm=ARMS), runs.places(results, model=BODIES)
    return [
        Table("Median epochs and 95 % intervals; never counts as infinity", tuple(map(_epochs_row, models))),
        Table("Gap in epochs, harmonic minus standard, paired over seeds", tuple(map(_gap_row, bodies))),
        Table("The authors' medians, and ours over the runs that reach both", tuple(known)),
    ]


THEIRS = " Diamonds: the authors' medians, which are over the runs that reach both."
GRAY = "#555555"


def figures(results: Results) -> dict[str, Picture]:
    """Draw two figures per protocol, from whatever is finished."""
    drawn = {}
    for protocol, own in results.groups("protocol").items():
        for name, draw in (("pairs", _draw_pairs), ("epochs", _draw_epochs)):
            drawn[f"grokking_{name}_{protocol}"] = draw(own, protocol, protocol == "authors")
    return drawn


def _draw_pairs(results: Results, protocol: str, authors: bool) -> Picture:
    spec, tasks = results.spec, results.spec.tasks
    handles = [drawing.mark_handle(style.label, style.marker, style.color) for style in MODEL_STYLES.values()]
    handles += [drawing.mark_handle("authors' medians, MLPs", "D", "black", face="white")] * authors
    titles: dict[str, str] = {task: TITLES[task] for task in tasks}
    labels: dict[str, Any] = {"xlabel": "training epoch", "ylabel": "test epoch"}
    figure, panels = drawing.facets(BODIES, titles, size=(11, 5.3), handles=handles, sharex=True, sharey=True, **labels)
    longest = max(spec.epochs(task, model) for task in tasks for model in BODIES)
    for (model, task), axes in panels.items():
        never = _log_axis(axes, longest, "xy")
        axes.plot([1, never], [1, never], ":", color="#999999", linewidth=1.2, zorder=1)
        for place, head in enumerate(HEADS):
            style, own = MODEL_STYLES[model, head], results.where(arm=(model, head), task=task)
            if not own:
                continue
            x, y = (np.array(own.metric(name).values) for name in SIDES)
            look: Any = {"markersize": 5, "markeredgecolor": "white", "markeredgewidth": 0.4, "alpha": 0.8}
            axes.plot(_shown(x, never), _shown(y, never), style.marker, color=style.color, linestyle="none", **look)
            if missing := int(np.isinf(y).sum()):
                # Below the dotted line, where the test would come first, there is room.
                words: Any = {"transform": axes.transAxes, "color": style.color, "fontsize": 8.5, "ha": "right"}
                axes.text(0.82, 0.15 - 0.1 * place, f"never: {missing}", **words)
            if authors and (theirs := GROKKING.get((task, (model, head)))):
                for color, width in (("black", 2.6), (style.color, 1.2)):  # hollow, so that the runs below show
                    edge: Any = {"markerfacecolor": "none", "markeredgecolor": color, "markeredgewidth": width}
                    axes.plot(theirs.train_epoch, theirs.test_epoch, "D", markersize=8, zorder=5, **edge)
        axes.set_box_aspect(1)
    return Picture(
        figure,
        f"Each mark is a run ({protocol} protocol, {runs.seeds_of(results)}): the first of 20 epochs in a row with a "
        "training accuracy above 0.9, against the same of its test accuracy. On the dotted line there is no gap. Runs "
        "that never get there lie in the gray margin; the numbers count those whose test accuracy never does, in the "
        f"color of their head.{THEIRS * authors}",
    )


def _draw_epochs(results: Results, protocol: str, authors: bool) -> Picture:
    handles = [
        drawing.mark_handle("a run, training accuracy", "o", GRAY, face="white"),
        drawing.mark_handle("a run, test accuracy", "o", GRAY),
        drawing.mark_handle("median of our runs", "|", GRAY, size=12),
        *[drawing.mark_handle("authors' median, MLPs", "D", "black")] * authors,
    ]
    figure, panels = runs.task_panels(results, (11, 6.6), handles=handles, title=f"{protocol} protocol")
    for task, axes in panels.items():
        never = _log_axis(axes, max(results.spec.epochs(task, model) for model in BODIES), "x")
        for row, arm in enumerate(ARMS):
            own = results.where(arm=arm, task=task)
            for name, y, hollow in (("train_epoch", row - 0.2, True), ("test_epoch", row + 0.2, False)) if own else ():
                _draw_strip(axes, np.array(own.metric(name).values), y, MODEL_STYLES[arm].color, never, hollow=hollow)
                if authors and (theirs := GROKKING.get((task, arm))):
                    look: Any = {"markerfacecolor": "white" if hollow else "black", "markeredgecolor": "black"}
                    axes.plot(getattr(theirs, name), y, "D", markersize=4.5, zorder=5, **look)
        axes.set(ylim=(len(ARMS) - 0.5, -0.5), xlabel="first of 20 epochs above 0.9")
        axes.set_yticks(range(len(ARMS)), labels=runs.TICKS)
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
        for row in range(1, len(ARMS)):
            axes.axhline(row - 0.5, color="#e4e4e4", linewidth=0.7, zorder=0)
    return Picture(
        figure,
        "The same epochs, one dot per run: hollow for the training accuracy, filled for the test accuracy below. "
        "Upright strokes are medians over all runs. The gray margin counts the runs that never get there, in bold "
        f"where the median run does not.{THEIRS * authors}",
    )


def _draw_strip(axes: "Axes", found: np.ndarray, row: float, color: str, never: float, *, hollow: bool) -> None:
    finite, middle = np.sort(found[np.isfinite(found)]), np.median(found)
    look: Any = {"markerfacecolor": "white" if hollow else color, "markersize": 3.6, "markeredgewidth": 0.8}
    axes.plot(_shown(finite, never), row + 0.07 * (np.arange(len(finite)) % 3 - 1), "o", color=color, alpha=0.8, **look)
    if np.isfinite(middle):
        axes.plot(max(middle, 1), row, "|", color=color, markersize=15, markeredgewidth=2, zorder=4)
    if len(finite) < len(found):
        place: Any = {"ha": "center", "va": "center", "fontsize": 8.5, "color": color}
        weight = "normal" if np.isfinite(middle) else "bold"
        axes.text(never, row, str(len(found) - len(finite)), fontweight=weight, **place)


def _log_axis(axes: "Axes", epochs: int, which: str) -> float:
    """Give an axis logarithmic epochs and a margin for runs that never get there; return where these stand."""
    decades = [10**power for power in range(8) if 10**power <= max(epochs / 2, 1)]
    edge, never = epochs * 1.25, epochs * 2.2
    for axis, span in (("x", axes.axvspan), ("y", axes.axhspan)):
        if axis in which:
            span(edge, edge * 10, color="#f1f1f1", zorder=0, linewidth=0)
            ticks = getattr(axes, f"set_{axis}ticks")
            axes.set(**{f"{axis}scale": "log", f"{axis}lim": (0.8, epochs * 3.8)})
            ticks([*decades, never], labels=[*(f"$10^{len(str(d)) - 1}$" for d in decades), "never"])
            ticks([], minor=True)
    return never


def _shown(epochs: np.ndarray, never: float) -> np.ndarray:
    """Return epochs as drawn on a logarithmic axis, which has no 0."""
    return np.where(np.isfinite(epochs), np.maximum(epochs, 1), never)


EXPERIMENT = runs.view(
    "grokking", "How long the test waits for the training", "Fig. 3 c", CLAIMS, measure, tables, figures
)
