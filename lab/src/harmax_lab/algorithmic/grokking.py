"""How long the test accuracy waits for the training accuracy (Fig. 3 c): a view of the runs of `algorithmic`.

    harmax run grokking --full     judges the runs of `harmax run algorithmic --full`, which it makes where they lack

A run has learned, or generalizes, from the first epoch that starts 20 epochs in a row above 0.9. A run that never does
counts as infinitely late in every median and every comparison. The authors' medians are over the runs that reach both,
so beside them stand ours over such runs.
"""

# S runs

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harmax.analysis import Interval, PairedDifference, fisher_exact, grokking_epochs, grokking_gap, paired_difference
from harmax.figures import Picture
from harmax_lab.algorithmic import anchors, runs
from harmax_lab.algorithmic.anchors import HARMONIC_MLP, STANDARD_MLP
from harmax_lab.algorithmic.protocols import HEADS
from harmax_lab.algorithmic.runs import ARMS, BODIES, TITLES, AlgorithmicSpec, trained_as_long
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.experiment import view
from harmax_lab.kit.judges import SIGNIFICANT, everywhere, listed, pairs_of, side
from harmax_lab.kit.results import Results, where
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Column, Table, in_epochs, paired_columns, tabulate, yes_or_no
from harmax_lab.tasks import PROTOCOLS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WINDOW = 20  # epochs; a gap below it cannot be told from none
# Our 95 % interval is for our median. The authors' median, from another 20 runs, would fall into it 83 times of 100 if
# the runs were alike. Of 20 such medians fewer than 14 inside then have a chance of 4 % if all are independent, and of
# 7 % if training and test of a model always fall together.
SHARE_INSIDE = 0.7
MODES_APART, LEAST_IN_MODE = 2.0, 3


def measure(spec: AlgorithmicSpec, cell: RunCell, result: CellResult) -> dict[str, float | None]:
    """Return when a run learns and generalizes (infinity: never), and the gap between the two.

    There is no gap, None, where a run generalizes before it learns, which dropout can cause.
    """
    train, test = result.curves["train_accuracy"], result.curves["test_accuracy"]
    gap = grokking_gap(train, test)
    epochs = {
        f"{name}_epoch": float(grokking_epochs(curve[None])[0]) for name, curve in (("train", train), ("test", test))
    }
    return {**epochs, "gap": None if np.isnan(gap) else gap}


class Gaps(NamedTuple):
    """How two heads' gaps differ on one task."""

    standard: float
    """Median gap."""
    harmonic: float
    paired: PairedDifference
    """Harmonic minus standard."""
    reaching: PairedDifference | None
    """The same on the seeds on which both heads reach both accuracies: a run that fails is slow or stuck, which is
    not the same as a gap."""

    @property
    def outcome(self) -> str:
        """Say which of the two waits longer."""
        if max(self.standard, self.harmonic) < WINDOW:
            return "no gap in either"
        return {1: "larger", -1: "smaller", 0: "undecided"}[side(self.paired)]


def compare(results: Results, *, level: float = 0.95) -> Gaps | None:
    """Compare the gaps of two heads on the seeds on which both have one; None without any."""
    pairs = results.pairs("gap", "head", "harmonic", "linear").values()
    if not pairs:
        return None
    finite = [pair for pair in pairs if np.isfinite(pair).all()]
    harmonic, standard = zip(*pairs, strict=True)
    return Gaps(
        float(np.median(standard)),
        float(np.median(harmonic)),
        paired_difference(harmonic, standard, level=level),
        paired_difference(*zip(*finite, strict=True), level=level) if finite else None,
    )


def _judge_gap(results: Results) -> Finding:
    tasks = {task: results.where(task=task) for task in results.distinct("task")}
    found = {task: compare(own) for task, own in tasks.items()}
    outcomes = {task: one.outcome if one else "undecided" for task, one in found.items()}
    answer = everywhere(
        tasks,
        lambda task, level: one.paired if (one := compare(tasks[task], level=level)) else None,
        wanted=-1,
        ignored=lambda task: outcomes[task] == "no gap in either",
    )
    words = {
        TITLES[task].lower(): f"{one.standard:g} against {one.harmonic:g} ({outcomes[task]})" if one else "no pair"
        for task, one in found.items()
    }
    return Finding(
        answer.holds,
        f"Median gaps in epochs, standard against harmonic: {listed(words)}.",
        {f"difference_{task}": one.paired.difference._asdict() for task, one in found.items() if one},
    )


def reached(results: Results) -> Results:
    """Keep the runs that reach both accuracies."""
    sides = ("train_epoch", "test_epoch")
    return results.where(lambda cell: all(np.isfinite(results[cell].metrics[side]) for side in sides))


def medians(results: Results) -> dict[tuple[str, tuple[str, str], str], tuple[Interval | None, float]]:
    """Return our medians over the runs that reach both, and the authors' likewise, by task, model and accuracy."""
    return {
        (task, arm, name): (
            reached(results.where(arm=arm, protocol="authors", task=task)).metric(f"{name}_epoch").median(),
            getattr(theirs, name),
        )
        for (task, arm), theirs in anchors.GROKKING.items()
        for name in ("train", "test")
    }


def _is_inside(ours: Interval | None, theirs: float) -> bool:
    return ours is not None and ours.low <= theirs <= ours.high


def _judge_medians(results: Results) -> Finding:
    found = {key: pair for key, pair in medians(results).items() if key[0] in results.distinct("task")}
    outside = {key: pair for key, pair in found.items() if not _is_inside(*pair)}
    inside = len(found) - len(outside)
    words = [
        f"{TITLES[task].lower()}, {MODEL_STYLES[arm].label}, {name} {in_epochs(ours)}, authors' {theirs:g}"
        for (task, arm, name), (ours, theirs) in outside.items()
    ]
    return Finding(
        inside >= SHARE_INSIDE * len(found),
        f"{inside} of {len(found)} do. {'Outside: ' + '; '.join(words) + '.' if words else 'None lies outside.'}",
        {"inside": inside, "medians": len(found)},
    )


def _judge_counts(results: Results) -> Finding:
    counts = {}
    for (task, arm), theirs in anchors.REACHED.items():
        own = results.where(arm=arm, task=task)
        if own:
            ours = len(reached(own))
            counts[task, arm] = (ours, len(own), theirs, fisher_exact(ours, len(own), theirs, anchors.RUNS))
    apart = {key: found for key, found in counts.items() if found[3] < SIGNIFICANT / len(counts)}
    words = "; ".join(
        f"{MODEL_STYLES[arm].label} on {TITLES[task].lower()} {ours} of {total}, authors {theirs} of {anchors.RUNS} "
        f"(p = {p:.1g})"
        for (task, arm), (ours, total, theirs, p) in apart.items()
    )
    alone = sum(p < SIGNIFICANT for *_, p in counts.values())
    return Finding(
        not apart,
        f"{len(apart)} of {len(counts)} differ{': ' + words if apart else ''}. Each taken alone, {alone} would.",
        {f"reached_{task}_{model}_{head}": ours for (task, (model, head)), (ours, *_) in counts.items()},
    )


class Modes(NamedTuple):
    """The widest empty stretch between sorted epochs, as a ratio, and what lies on its two sides."""

    early: np.ndarray
    late: np.ndarray
    ratio: float
    p: float
    """How often as many epochs, spread evenly between the first and the last on a logarithmic scale, leave one as
    wide: (1 + times) / (1 + draws)."""


def two_modes(epochs: np.ndarray, *, least: int, draws: int = 1999, seed: int = 0) -> Modes:
    """Split epochs at the widest empty stretch with at least `least` on either side; the null keeps first and last."""
    # One more than the epoch, which may be 0.
    logs = np.log(np.sort(epochs) + 1.0)
    inner = np.random.default_rng(seed).uniform(logs[0], logs[-1], size=(draws, len(logs) - 2))
    ends = np.broadcast_to(logs[[0, -1]], (draws, 2))
    null = np.sort(np.concatenate([inner, ends], axis=1), axis=1)
    cuts = np.arange(least, len(logs) - least + 1)
    widths = logs[cuts] - logs[cuts - 1]
    as_wide = int(((null[:, cuts] - null[:, cuts - 1]).max(1) >= widths.max() - 1e-12).sum())
    cut = int(cuts[widths.argmax()])
    ordered = np.sort(epochs)
    return Modes(ordered[:cut], ordered[cut:], float(np.exp(widths.max())), (1 + as_wide) / (1 + draws))


def _judge_modes(results: Results) -> Finding:
    epochs = np.array(reached(results).metric("test_epoch").values)
    if len(epochs) < 2 * LEAST_IN_MODE:
        return Finding(None, f"Only {len(epochs)} of {len(results)} runs reach both.", {"runs": len(epochs)})
    modes = two_modes(epochs, least=LEAST_IN_MODE)
    early, late = modes.early, modes.late
    return Finding(
        False if modes.ratio < MODES_APART else True if modes.p < SIGNIFICANT else None,
        f"{len(early)} runs generalize at epochs {early[0]:g} to {early[-1]:g}, {len(late)} at {late[0]:g} to "
        f"{late[-1]:g}, {len(results) - len(epochs)} never: the widest empty stretch with at least {LEAST_IN_MODE} "
        f"runs on either side is a factor of {modes.ratio:.2g} (counted as two modes from {MODES_APART:g}); evenly "
        f"spread epochs leave one as wide with p = {modes.p:.2g}.",
        {"early": len(early), "late": len(late), "factor": modes.ratio, "p": modes.p},
    )


def _claim_gap(protocol: str, model: str) -> Claim:
    gaps = {key: theirs.test - theirs.train for key, theirs in anchors.GROKKING.items()}
    known = {
        t.lower(): f"{gaps[task, STANDARD_MLP]:g} against {gaps[task, HARMONIC_MLP]:g}" for task, t in TITLES.items()
    }
    paper = f"Differences of the authors' medians, standard against harmonic MLP, in epochs: {listed(known)}."
    return Claim(
        f"gap_smaller_{model}_{protocol}",
        f"From fitting to generalizing the harmonic {BODIES[model]} take fewer epochs than the standard ones, in every "
        f"task that has a gap; never generalizing counts as the longest gap ({protocol} protocol).",
        "Harmonic models grok less. " + (paper if model == "mlp" else "No epochs are known for transformers."),
        control=protocol == "matched",
        needs=where(protocol=protocol, model=model),
        judge=_judge_gap,
        enough=trained_as_long(model),
    )


CLAIMS = (
    *(_claim_gap(protocol, model) for protocol in PROTOCOLS for model in BODIES),
    Claim(
        "authors_medians",
        "The authors' median epochs of the MLPs come back: at least 14 of 20 lie in our 95 % intervals, where 17 "
        "would if the runs were alike (authors protocol).",
        "Medians, over the runs that reach both, of training and test, standard and harmonic, in five tasks.",
        needs=where(protocol="authors", model="mlp"),
        judge=_judge_medians,
        enough=trained_as_long("mlp"),
    ),
    Claim(
        "authors_counts",
        "The numbers of runs that reach both accuracies come back: none of 20 differs (authors protocol; Fisher's "
        "exact test at 5 %, shared among the 20).",
        "Of 20 runs (standard and harmonic MLP, standard and harmonic transformer): "
        + listed({TITLES[task].lower(): ", ".join(str(anchors.REACHED[task, arm]) for arm in ARMS) for task in TITLES})
        + ".",
        needs=where(protocol="authors"),
        judge=_judge_counts,
        enough=trained_as_long(*BODIES),
    ),
    Claim(
        "genealogy_two_modes",
        "The standard MLP on genealogy generalizes either early or late, with nothing between: a factor of 2 or more, "
        "wider than evenly spread epochs leave by chance (authors protocol).",
        "Not reported: a median hides it.",
        control=True,
        needs=where(arm=STANDARD_MLP, protocol="authors", task="genealogy"),
        judge=_judge_modes,
        enough=trained_as_long("mlp"),
    ),
)


def tables(results: Results) -> list[Table]:
    """Tabulate epochs, gaps and the authors' medians."""
    models = runs.places(results, arm=ARMS)
    for at in models:
        at.both = len(reached(at.own)) if at.own else None
        at.theirs = anchors.REACHED[at.task, at.arm] if at.protocol == "authors" else ""  # known for that one only
    bodies = runs.places(results, model=BODIES)
    for at in bodies:
        at.gap = compare(at.own)

    def count(side: str) -> Column:
        return lambda at: int(np.isfinite(at.own.metric(side).values).sum()) if at.own else None

    def median(side: str) -> Column:
        return lambda at: in_epochs(at.own.metric(side).median()) if at.own else None

    def fisher(at: Any) -> float | str | None:
        if at.both is None or at.theirs == "":
            return "" if at.theirs == "" else None
        return fisher_exact(at.both, len(at.own), at.theirs, anchors.RUNS)

    def ours(task: str, arm: tuple[str, str]) -> str:
        own = results.where(arm=arm, protocol="authors", task=task)
        return f"{len(reached(own))} of {len(own)}" if own else "none"

    return [
        tabulate(
            "Median epochs and 95 % intervals; never counts as infinity",
            models,
            {
                **runs.PLACE,
                "model": lambda at: MODEL_STYLES[at.arm].label,
                "runs": lambda at: len(at.own),
                "learn": count("train_epoch"),
                "generalize": count("test_epoch"),
                "reach both": lambda at: at.both,
                "authors' of 20": lambda at: at.theirs,
                "p, Fisher": fisher,
                "training [95 %]": median("train_epoch"),
                "test [95 %]": median("test_epoch"),
            },
        ),
        tabulate(
            "Gap in epochs, harmonic minus standard, paired over seeds",
            bodies,
            {
                **runs.PLACE,
                "models": lambda at: BODIES[at.model],
                "pairs": lambda at: pairs_of(at.gap and at.gap.paired),
                "standard's median": lambda at: at.gap and at.gap.standard,
                "harmonic's median": lambda at: at.gap and at.gap.harmonic,
                **paired_columns(
                    lambda at: at.gap and at.gap.paired,
                    "difference [95 %]",
                    "larger on",
                    "smaller on",
                    in_epochs,
                    less_first=True,
                ),
                "harmonic's gap is": lambda at: at.gap.outcome if at.gap else "undecided",
                "pairs that reach": lambda at: pairs_of(at.gap and at.gap.reaching),
                "their difference [95 %]": lambda at: (
                    in_epochs(at.gap.reaching.difference) if at.gap and at.gap.reaching else None
                ),
            },
        ),
        tabulate(
            "The authors' medians, and ours over the runs that reach both",
            medians(results).items(),
            {
                "task": lambda row: TITLES[row[0][0]],
                "model": lambda row: MODEL_STYLES[row[0][1]].label,
                "accuracy": lambda row: {"train": "training", "test": "test"}[row[0][2]],
                "our runs": lambda row: ours(*row[0][:2]),
                "authors' runs": lambda row: f"{anchors.REACHED[row[0][:2]]} of {anchors.RUNS}",
                "ours [95 %]": lambda row: in_epochs(row[1][0]),
                "authors'": lambda row: row[1][1],
                "in our interval": lambda row: "" if row[1][0] is None else yes_or_no(_is_inside(*row[1])),
            },
        ),
    ]


MARGIN, BAND = "#f1f1f1", "#999999"


def figures(results: Results) -> dict[str, Picture]:
    """Draw two figures per protocol, from whatever is finished."""
    drawn = {}
    for protocol, own in results.groups("protocol").items():
        authors = protocol == "authors"
        theirs = " Diamonds: the authors' medians, which are over the runs that reach both." * authors
        drawn[f"grokking_pairs_{protocol}"] = Picture(
            _draw_pairs(own, authors),
            f"Each mark is a run ({protocol} protocol, {runs.seeds_of(own)}): the first of 20 epochs in a row with "
            "a training accuracy above 0.9, against the same of its test accuracy. On the dotted line there is no gap. "
            "Runs that never get there lie in the gray margin; the numbers count those whose test accuracy never does, "
            f"in the color of their head.{theirs}",
        )
        drawn[f"grokking_epochs_{protocol}"] = Picture(
            _draw_epochs(own, protocol, authors),
            "The same epochs, one dot per run: hollow for the training accuracy, filled for the test accuracy below. "
            "Upright strokes are medians over all runs. In the gray margin stands how many runs never get there, bold "
            f"where the median run does not.{theirs}",
        )
    return drawn


def _draw_pairs(results: Results, authors: bool) -> "Figure":
    spec, tasks = results.spec, results.spec.tasks
    handles = [drawing.mark_handle(style.label, style.marker, style.color) for style in MODEL_STYLES.values()]
    handles += [drawing.mark_handle("authors' medians, MLPs", "D", "black", face="white")] * authors
    figure, panels = drawing.facets(
        BODIES,
        {task: TITLES[task] for task in tasks},
        size=(11, 5.3),
        xlabel="training epoch",
        ylabel="test epoch",
        handles=handles,
        sharex=True,
        sharey=True,
    )
    longest = max(spec.epochs(task, model) for task in tasks for model in BODIES)
    for (model, task), axes in panels.items():
        never = _log_axis(axes, longest, "xy")
        axes.plot([1, never], [1, never], ":", color=BAND, linewidth=1.2, zorder=1)
        for place, head in enumerate(HEADS):
            style, own = MODEL_STYLES[model, head], results.where(arm=(model, head), task=task)
            if not own:
                continue
            x, y = (_shown(np.array(own.metric(name).values), never) for name in ("train_epoch", "test_epoch"))
            look: Any = {"markersize": 5, "markeredgecolor": "white", "markeredgewidth": 0.4, "alpha": 0.8}
            axes.plot(x, y, style.marker, color=style.color, linestyle="none", **look)
            if missing := int(np.isinf(own.metric("test_epoch").values).sum()):
                # Below the dotted line, where the test would come first, there is room.
                words, low = f"never: {missing}", 0.15 - 0.1 * place
                axes.text(0.82, low, words, transform=axes.transAxes, color=style.color, fontsize=8.5, ha="right")
            if authors and (theirs := anchors.GROKKING.get((task, (model, head)))):
                for color, width in (("black", 2.6), (style.color, 1.2)):  # hollow, so that the runs below show
                    edge: Any = {"markerfacecolor": "none", "markeredgecolor": color, "markeredgewidth": width}
                    axes.plot(theirs.train, theirs.test, "D", markersize=8, zorder=5, **edge)
        axes.set_box_aspect(1)
    return figure


def _draw_epochs(results: Results, protocol: str, authors: bool) -> "Figure":
    spec, first = results.spec, "first of 20 epochs above 0.9"
    figure, panels, legend = drawing.wrapped(
        {task: TITLES[task] for task in spec.tasks}, 3, size=(11, 6.6), sharey=True
    )
    for task, axes in panels.items():
        never = _log_axis(axes, max(spec.epochs(task, model) for model in BODIES), "x")
        for row, arm in enumerate(ARMS):
            own = results.where(arm=arm, task=task)
            for name, shift in (("train", -0.2), ("test", 0.2)) if own else ():
                found = np.array(own.metric(f"{name}_epoch").values)
                _draw_strip(axes, found, row + shift, MODEL_STYLES[arm].color, never, hollow=name == "train")
                if authors and (theirs := anchors.GROKKING.get((task, arm))):
                    edge: Any = {"markerfacecolor": "white" if name == "train" else "black", "markeredgecolor": "black"}
                    axes.plot(getattr(theirs, name), row + shift, "D", markersize=4.5, zorder=5, **edge)
        axes.set(ylim=(len(ARMS) - 0.5, -0.5), xlabel=first)
        axes.set_yticks(range(len(ARMS)), labels=[MODEL_STYLES[arm].label.replace(" ", "\n") for arm in ARMS])
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
        for row in range(1, len(ARMS)):
            axes.axhline(row - 0.5, color="#e4e4e4", linewidth=0.7, zorder=0)
    gray = "#555555"
    handles = [
        drawing.mark_handle("a run, training accuracy", "o", gray, face="white"),
        drawing.mark_handle("a run, test accuracy", "o", gray),
        drawing.mark_handle("median of our runs", "|", gray, size=12),
        *[drawing.mark_handle("authors' median, MLPs", "D", "black")] * authors,
    ]
    if legend:
        legend.legend(handles=handles, loc="center", fontsize=10, title=f"{protocol} protocol", title_fontsize=10)
    return figure


def _draw_strip(axes: "Axes", found: np.ndarray, row: float, color: str, never: float, *, hollow: bool) -> None:
    finite, middle = np.sort(found[np.isfinite(found)]), np.median(found)
    dots: Any = {
        "markerfacecolor": "white" if hollow else color,
        "markersize": 3.6,
        "markeredgewidth": 0.8,
        "alpha": 0.8,
    }
    axes.plot(_shown(finite, never), row + 0.07 * (np.arange(len(finite)) % 3 - 1), "o", color=color, **dots)
    if np.isfinite(middle):
        axes.plot(max(middle, 1), row, "|", color=color, markersize=15, markeredgewidth=2, zorder=4)
    if len(finite) < len(found):
        weight = "normal" if np.isfinite(middle) else "bold"
        place: Any = {"ha": "center", "va": "center", "fontsize": 8.5, "fontweight": weight, "color": color}
        axes.text(never, row, str(len(found) - len(finite)), **place)


def _log_axis(axes: "Axes", epochs: int, which: str) -> float:
    """Give an axis logarithmic epochs and a margin for runs that never get there; return where these stand."""
    decades = [10**power for power in range(8) if 10**power <= max(epochs / 2, 1)]
    edge, never = epochs * 1.25, epochs * 2.2
    for axis, span in (("x", axes.axvspan), ("y", axes.axhspan)):
        if axis in which:
            span(edge, edge * 10, color=MARGIN, zorder=0, linewidth=0)
            ticks = getattr(axes, f"set_{axis}ticks")
            axes.set(**{f"{axis}scale": "log"})
            ticks([*decades, never], labels=[*(f"$10^{len(str(d)) - 1}$" for d in decades), "never"])
            ticks([], minor=True)
            axes.set(**{f"{axis}lim": (0.8, epochs * 3.8)})
    return never


def _shown(epochs: np.ndarray, never: float) -> np.ndarray:
    """Return epochs as drawn on a logarithmic axis, which has no 0."""
    return np.where(np.isfinite(epochs), np.maximum(epochs, 1), never)


EXPERIMENT = view(
    runs.EXPERIMENT,
    name="grokking",
    title="How long the test waits for the training",
    figure="Fig. 3 c",
    claims=CLAIMS,
    measure=measure,
    tables=tables,
    figures=figures,
)
