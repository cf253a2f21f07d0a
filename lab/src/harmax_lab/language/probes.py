"""What a probe reads in a model's residual stream (SST-2 and CoLA): a view of the runs of `gpt2`.

The paper's table has one model per arm, and its deviations are over probes, as far as one can tell. Claims here compare
models: the mean over a model's probes, seed by seed. Figures and tables have intervals over probes. Neither knows that
the dev sentences are a sample too. With a thousand of them this is a large part of the noise, so a control draws the
sentences anew as well.
"""

# S probes (of all models of an arm), N sentences, K draws

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harmax.analysis import Interval, PairedDifference, bootstrap_interval, paired_difference
from harmax.figures import Picture, headline
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Finding
from harmax_lab.kit.experiment import view
from harmax_lab.kit.judges import both, everywhere, listed, pairs_of, shared_level
from harmax_lab.kit.results import Results
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Column, Table, combinations, tabulate
from harmax_lab.language import gpt2
from harmax_lab.language.arms import PAPERS, STANDARD, STYLES, apart, written
from harmax_lab.language.gpt2 import ArmCell, LanguageSpec, budget, of_models, of_paper, trained
from harmax_lab.language.probing import READOUTS, SCORES, scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AS_WELL = 1.0  # points of F1: the least deviation among the paper's probes
DRAWS = 1000
TITLES = {"sst2": "SST-2", "cola": "CoLA"}
READOUT_WORDS = {"last": "last token", "mean": "mean over tokens"}
PAPER = {
    ("sst2", 0): {STANDARD: (76.2, 1.5), PAPERS: (77.9, 1.1)},
    ("sst2", 6): {STANDARD: (79.9, 1.3), PAPERS: (79.9, 1.7)},
    ("cola", 0): {STANDARD: (73.9, 1.0), PAPERS: (74.3, 1.0)},
    ("cola", 6): {STANDARD: (78.2, 1.7), PAPERS: (77.1, 4.2)},
}
"""F1 in points and its deviation, by data set and layer, then by arm."""


class Spot(NamedTuple):
    """Where a probe looks."""

    task: str
    layer: int
    readout: str

    @property
    def words(self) -> str:
        """Name it in a sentence."""
        return f"{title(self.task)} layer {self.layer}, {READOUT_WORDS[self.readout]}"

    @property
    def paper(self) -> Mapping[str, tuple[float, float]]:
        """What the paper reports for it, by arm; it does not name its read-out."""
        return PAPER.get((self.task, self.layer), {})


def measure(spec: LanguageSpec, cell: ArmCell, result: CellResult) -> dict[str, float]:
    """Return the mean F1 of a model's probes at every spot, in points."""
    found = {}
    for task in (key.split("/")[1] for key in result.arrays if key.startswith("probes/") and key.endswith("/f1")):
        f1_SLR = _points(result.arrays[f"probes/{task}/f1"])
        for place, layer in enumerate(spec.probe_layers):
            for column, readout in enumerate(READOUTS):
                found[f1_of(Spot(task, layer, readout))] = float(f1_SLR[:, place, column].mean())
    return found


def f1_of(spot: Spot) -> str:
    """Return the name of the metric that `measure` gives a spot."""
    return "F1 at " + ", ".join(map(str, spot))


def title(task: str) -> str:
    """Return a data set's name in print."""
    return TITLES.get(task, task.replace("_", " "))


def tasks_of(results: Results) -> tuple[str, ...]:
    """Return the data sets that were probed, the paper's two first; these two if nothing is there yet."""
    found = {key.split("/")[1] for one in results.values() for key in one.arrays if key.startswith("probes/")}
    return (*(task for task in TITLES if task in found), *sorted(found - set(TITLES))) or tuple(TITLES)


def spots_of(results: Results, readouts: Sequence[str] = READOUTS) -> list[Spot]:
    """List every data set, layer and read-out."""
    layers = results.spec.probe_layers
    return [Spot(task, layer, one) for task in tasks_of(results) for layer in layers for one in readouts]


def probes_of(results: Results, arm: str, spot: Spot, what: str) -> np.ndarray | None:
    """Return what is stored of an arm's probes at a spot, (S, ...), model after model; None if a model lacks it."""
    place = results.spec.probe_layers.index(spot.layer), READOUTS.index(spot.readout)
    own = results.where(arm=arm)
    found = own.array(f"probes/{spot.task}/{what}").by("seed")
    complete = found and len(found) == len(own)
    return np.concatenate([found[seed][:, *place] for seed in sorted(found)]) if complete else None


def mean_of(results: Results, arm: str, spot: Spot, score: str = "f1", *, level: float = 0.95) -> Interval | None:
    """Return the mean of an arm's probes in points, and its interval over probes."""
    values = probes_of(results, arm, spot, score)
    return None if values is None else bootstrap_interval(_points(values), statistic="mean", level=level)


def majority_of(results: Results, task: str) -> float:
    """Return the F1 of always giving the more frequent training label, in points; NaN where nothing is measured."""
    found = results.array(f"probes/{task}/majority").values
    return 100 * float(found[0][SCORES.index("f1")]) if found else np.nan


def compare(results: Results, spot: Spot, *, score: str = "f1", level: float = 0.95) -> PairedDifference | None:
    """Compare harmonic with standard in points, probe by probe; None if the probes of an arm are missing."""
    harmonic, standard = (probes_of(results, arm, spot, score) for arm in (PAPERS, STANDARD))
    if harmonic is None or standard is None or len(harmonic) != len(standard):
        return None
    return paired_difference(_points(harmonic), _points(standard), statistic="mean", level=level)


def compare_on_sentences(results: Results, spot: Spot, *, level: float = 0.95) -> Interval | None:
    """Return the difference of the mean F1 in points, its interval over draws of probes and sentences together.

    A draw takes as many dev sentences and as many pairs of probes as there are, with replacement.
    """
    harmonic, standard = (probes_of(results, arm, spot, "said") for arm in (PAPERS, STANDARD))
    if harmonic is None or standard is None or harmonic.shape != standard.shape:
        return None
    labels_N = np.asarray(results.array(f"probes/{spot.task}/labels").values[0])
    generator, count = np.random.default_rng(0), len(labels_N)
    drawn_KN = generator.integers(count, size=(DRAWS, count))
    counts_KN = np.stack([np.bincount(drawn_N, minlength=count) for drawn_N in drawn_KN])
    difference_SK = _points(scores(harmonic, labels_N, counts_KN)["f1"] - scores(standard, labels_N, counts_KN)["f1"])
    picked_SK = generator.integers(len(difference_SK), size=difference_SK.shape)
    tail = (1 - level) / 2
    low, high = np.quantile(np.take_along_axis(difference_SK, picked_SK, 0).mean(0), [tail, 1 - tail], method="nearest")
    found_S = scores(harmonic, labels_N)["f1"] - scores(standard, labels_N)["f1"]
    return Interval(float(_points(found_S).mean()), float(low), float(high))


def _points(values: np.ndarray) -> np.ndarray:
    return 100 * values.astype(np.float64)


def in_points(interval: Interval | None) -> str | None:
    """Write an interval to a tenth of a point.

    >>> in_points(Interval(1.23, -0.04, 2.0))
    '1.2 [0.0, 2.0]'
    """
    if interval is None:
        return None
    estimate, low, high = (round(one, 1) + 0.0 for one in interval)
    return f"{estimate:.1f} [{low:.1f}, {high:.1f}]"


def models(results: Results) -> str:
    """Say how many models an arm has."""
    count = len(results.distinct("seed"))
    return "one model" if count == 1 else f"{count} models"


def _judge_as_well(results: Results, *, readouts: Sequence[str]) -> Finding:
    """Judge whether harmonic models are at most a margin behind at every spot, each with its interval over seeds."""

    def ahead(spot: Spot, level: float) -> PairedDifference | None:
        found = apart(results, f1_of(spot), level=level)
        # Within the margin is as good as ahead.
        return found and found._replace(difference=Interval(*(one + AS_WELL for one in found.difference)))

    found = everywhere(spots_of(results, readouts), ahead)
    shown = {spot.words: written(apart(results, f1_of(spot)), 1) for spot in found.found}
    return Finding(found.holds, f"F1, harmonic minus standard, in points: {listed(shown)}.", {})


def _judge_on_sentences(results: Results) -> Finding:
    spots = spots_of(results)
    found = {spot: compare_on_sentences(results, spot, level=shared_level(len(spots))) for spot in spots}
    words = listed({spot.words: in_points(one) or "missing" for spot, one in found.items()})
    return Finding(
        both(*(one.above(-AS_WELL) if one else None for one in found.values())),
        f"F1, harmonic minus standard, in points: {words}. Intervals are over probes and dev sentences of "
        f"{models(results)} per arm, not over models.",
        {"_".join(map(str, spot)): one._asdict() for spot, one in found.items() if one},
    )


def _judge_majority(results: Results) -> Finding:
    def above(arm: str, spot: Spot) -> bool | None:
        mean = results.where(arm=arm).take(lambda cell, run: run.metrics.get(f1_of(spot))).mean()
        return mean.above(majority_of(results, spot.task)) if mean else None

    places = [(arm, spot) for arm in (STANDARD, PAPERS) for spot in spots_of(results)]
    answers = {f"{arm}, {spot.words}": above(arm, spot) for arm, spot in places}
    not_above = [words for words, answer in answers.items() if answer is not True]
    constant = ", ".join(f"{title(task)} {majority_of(results, task):.1f}" for task in tasks_of(results))
    return Finding(
        both(*answers.values()),
        f"{len(answers) - len(not_above)} of {len(answers)} do ({models(results)} per arm). The more frequent label "
        f"has an F1 of {constant}." + (f" Not above it: {'; '.join(not_above)}." if not_above else ""),
        {"above": len(answers) - len(not_above), "of": len(answers)},
    )


_REPORTED = "; ".join(
    f"{TITLES[task]}, layer {layer}: {found[PAPERS][0]} against {found[STANDARD][0]}"
    for (task, layer), found in PAPER.items()
)
CLAIMS = (
    of_paper(
        "f1_of_probes",
        "Probes have the F1 of the paper's table, from which its text draws no conclusion. Beside it stands whether "
        f"our harmonic models are at most {AS_WELL:g} point behind, at every place and with both read-outs.",
        partial(_judge_as_well, readouts=READOUTS),
        "Table 2/1",
        not_run=gpt2.NOT_OURS,
        paper=f"F1, harmonic against standard: {_REPORTED}. It is not said which vector stands for a sentence.",
    ),
    *(
        of_models(
            f"reads_as_well_{readout}",
            "A probe reads the harmonic model at least as well as the standard one, in every data set and layer: its "
            f"F1 is at most {AS_WELL:g} point lower ({words}).",
            partial(_judge_as_well, readouts=(readout,)),
        )
        for readout, words in READOUT_WORDS.items()
    ),
    of_models(
        "as_well_on_other_sentences",
        "This holds on other sentences of the same kind: the dev sentences are drawn anew with the probes, for both "
        "read-outs.",
        _judge_on_sentences,
    ),
    of_models(
        "above_the_majority",
        "Probes of both arms beat always giving the more frequent label, by F1, in every data set, layer and read-out.",
        _judge_majority,
        paper="On CoLA's dev side always saying yes has an F1 of 81.6, above all of the paper's there.",
    ),
)


def tables(results: Results) -> list[Table]:
    """Tabulate scores and differences beside the paper's."""
    own, spots = trained(results), spots_of(results)
    place: dict[str, Column] = {
        "sentences": lambda at: title(at.spot.task),
        "layer": lambda at: at.spot.layer,
        "read from": lambda at: READOUT_WORDS[at.spot.readout],
    }
    probes, pairs = combinations(spot=spots, arm=results.spec.arms), combinations(spot=spots)
    for at in probes:
        at.f1, at.macro, at.accuracy = (mean_of(own, at.arm, at.spot, score) for score in SCORES)
        at.values, at.paper = probes_of(own, at.arm, at.spot, "f1"), at.spot.paper.get(at.arm)
    for at in pairs:
        at.found, at.macro = (compare(own, at.spot, score=score) for score in ("f1", "macro_f1"))
        at.paper = [at.spot.paper[arm][0] for arm in (PAPERS, STANDARD) if at.spot.paper]

    score_columns: dict[str, Column] = {
        **place,
        "model": lambda at: at.arm,
        "probes": lambda at: len(at.values),
        "F1 [95 %]": lambda at: in_points(at.f1),
        "deviation": lambda at: round(100 * float(np.std(at.values)), 1),
        "paper's F1": lambda at: "{} ± {}".format(*at.paper) if at.paper else "",
        "ours - paper's": lambda at: round(at.f1.estimate - at.paper[0], 1) + 0.0 if at.paper else "",
        "always the majority": lambda at: round(majority_of(own, at.spot.task), 1),
        "mean F1 of both classes [95 %]": lambda at: in_points(at.macro),
        "accuracy [95 %]": lambda at: in_points(at.accuracy),
    }
    difference_columns: dict[str, Column] = {
        **place,
        "pairs of probes": lambda at: pairs_of(at.found),
        "difference [95 % over probes]": lambda at: in_points(at.found.difference),
        "[95 % over probes and sentences]": lambda at: in_points(compare_on_sentences(own, at.spot)),
        "paper's": lambda at: round(at.paper[0] - at.paper[1], 1) if at.paper else "",
        "higher on": lambda at: at.found.greater,
        "lower on": lambda at: at.found.less,
        "p, sign test": lambda at: at.found.sign_p,
        "p, signed ranks": lambda at: at.found.rank_p,
        "mean F1 of both classes, difference [95 %]": lambda at: in_points(at.macro.difference),
    }
    title_of_scores = "Probes on the dev side, points, mean over probes; the paper does not name its read-out"
    return [
        tabulate(title_of_scores, [at for at in probes if at.f1], score_columns),
        tabulate(
            "F1, harmonic minus standard, points, paired over probes",
            [at for at in pairs if at.found],
            difference_columns,
        ),
    ]


GRAY, MARKERS = "#555555", dict.fromkeys(STYLES, "o") | {STANDARD: "s"}
WIDTH = 0.7  # of the arms of one layer together, where layers are 1 apart


def figures(results: Results) -> dict[str, Picture]:
    """Draw F1 of every probe by layer, both arms, beside the paper's and the majority's; a column per data set."""
    own, spec, tasks = trained(results), results.spec, tasks_of(results)
    if not any(key.startswith("probes/") for result in own.values() for key in result.arrays):
        return {}
    paper = any(spot.paper for spot in spots_of(own))
    handles = [drawing.mark_handle(arm, MARKERS[arm], STYLES[arm].color, size=7) for arm in own.distinct("arm")]
    handles.append(drawing.mark_handle("a probe", "o", GRAY, size=3))
    handles += [drawing.mark_handle("paper", "D", GRAY, face="white")] * paper
    handles.append(drawing.line_handle("always the majority", "black", "--"))
    figure, panels = drawing.facets(
        dict.fromkeys(READOUTS, ""),
        dict.fromkeys(tasks, ""),
        size=(2.2 + 3.7 * len(tasks), 7.0),
        ylabel="F1, points",
        sharey="col",
        sharex="col",
    )
    headline(figure, "What a small probe reads in GPT-2: F1 on SST-2 and CoLA", handles)
    for (readout, task), axes in panels.items():
        axes.axhline(majority_of(own, task), color="black", linestyle="--", linewidth=1.2, zorder=1)
        lane = WIDTH / len(spec.arms)
        for column, layer in enumerate(spec.probe_layers):
            for place, arm in enumerate(spec.arms):
                x = column + lane * (place - (len(spec.arms) - 1) / 2)
                _draw_arm(axes, x, lane, own, arm, Spot(task, layer, readout))
        axes.set(xlim=(-0.6, len(spec.probe_layers) - 0.4), title=f"{title(task)}, {READOUT_WORDS[readout]}")
        axes.set_xticks(range(len(spec.probe_layers)), labels=[f"layer {layer}" for layer in spec.probe_layers])
        axes.grid(False, axis="x")
    caption = (
        "F1 on the dev side, by layer and by the vector that a probe reads. Small dots: single probes. Marks and bars: "
        f"their mean and its 95 % interval, which is over probes of {models(own)} per arm, not over models. Dashed: "
        "always giving the more frequent label; a probe below that line reads nothing."
    )
    theirs = (
        " Hollow diamonds: the paper's, with its deviations, in both rows, because the paper does not say which vector "
        "it reads and which F1 it means."
    )
    return {"probes": Picture(figure, f"{caption}{theirs * paper} {budget(spec)}")}


def _draw_arm(axes: "Axes", x: float, lane: float, results: Results, arm: str, spot: Spot) -> None:
    values, mean, color = probes_of(results, arm, spot, "f1"), mean_of(results, arm, spot), STYLES[arm].color
    if values is None or mean is None:
        return
    # Dots, mark and diamond side by side: an interval over probes is often narrower than a mark.
    beside = x + lane * np.linspace(-0.42, -0.18, max(len(values), 2))[: len(values)]
    axes.plot(beside, 100 * values, "o", color=color, markersize=3, alpha=0.6, linestyle="none")
    bars: list[tuple[float, Any, str, str]] = [(x, mean, MARKERS[arm], color)]
    if arm in spot.paper:
        middle, deviation = spot.paper[arm]
        bars.append((x + 0.3 * lane, (middle, middle - deviation, middle + deviation), "D", "white"))
    for at, (middle, low, high), marker, face in bars:
        axes.plot([at, at], [low, high], color=color, linewidth=1.6, zorder=3)
        axes.plot(at, middle, marker, color=color, markersize=5.5, markerfacecolor=face, zorder=4)


EXPERIMENT = view(
    gpt2.EXPERIMENT,
    "probes",
    "What a small probe reads in the residual stream",
    "App. H, Table 2",
    CLAIMS,
    measure=measure,
    keeps=("probes/*",),
    tables=tables,
    figures=figures,
)
