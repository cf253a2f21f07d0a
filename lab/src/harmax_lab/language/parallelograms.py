"""Whether a harmonic GPT-2's embedding holds better parallelograms than a standard one's: a view of the runs of `gpt2`.

Two arms are compared on the same quadruples. Intervals are over word pairs, because 10,000 quadruples of 300 pairs know
no more than 300 pairs do. The loss is in units of the vocabulary's spread along two components, and this unit differs
between the arms. In the comparison with an arm's own shuffled pairs the unit cancels, so this one shows the relation.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from harmax.analysis import SETTINGS, Interval, LossComparison, Quadruples, compare_losses
from harmax.errors import needs
from harmax.figures import Picture
from harmax.inspect.embedding import CENTERS, MEASURE, QUERIES, comparison, from_text_array, measured_tasks
from harmax.inspect.word_figures import LabeledModel, draw_distributions, draw_ranked, draw_token_centers
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Finding
from harmax_lab.kit.experiment import view
from harmax_lab.kit.judges import both, listed
from harmax_lab.kit.results import Results
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Column, Table, combinations, tabulate
from harmax_lab.language import gpt2
from harmax_lab.language.arms import HARMONIC, STANDARD, STYLES, compares, unless_embedded
from harmax_lab.language.gpt2 import ArmCell, LanguageSpec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARMS = (STANDARD, HARMONIC)
BETWEEN = "harmonic against standard"
CHANCE = 0.025  # of one interval of 95 % lying on the wrong side
LOWER, HIGHER, UNDECIDED = False, True, None  # where an interval lies
SIDES = {LOWER: "lower", HIGHER: "higher", UNDECIDED: "undecided"}
Side = bool | None
CLOUD = ("median length", "middle 90 %", *(f"explained by {count}, %" for count in (2, 10, 100)))
CLOUD += ("participation ratio", "effective rank", "common mean, % of squared length")

Comparisons = Mapping[str, LossComparison]
"""The two arms with one seed on one task: `BETWEEN` them, and of each arm its quadruples against its shuffled pairs."""
Tasks = Mapping[str, Mapping[int, Comparisons]]
"""Comparisons by task and seed."""


def measure(spec: LanguageSpec, cell: ArmCell, result: CellResult) -> dict[str, Any]:
    """Return what the tables show of one model, the medians of all settings, and the pairs as `pairs_of` keeps them."""
    arrays = result.arrays
    if not arrays:  # nanoGPT's recipe, of which only the loss is measured
        return {}
    near = from_text_array(arrays[f"{CENTERS}/neighbors/words"])
    found = {**_cloud(arrays), **{f"near {word}": "  ".join(map(repr, tokens)) for word, *tokens in near}}
    for task in measured_tasks(arrays):
        place = f"{MEASURE}/{task}"
        words, losses = from_text_array(arrays[f"{place}/ranked_words"]), arrays[f"{place}/ranked_losses"]
        best = zip(words[0], losses[0], strict=True)
        found[f"best of {task}"] = "; ".join(f"{a} : {b} = {c} : {d} ({loss:.1g})" for (a, b, c, d), loss in best)
        found |= {f"{place}/medians": arrays[f"{place}/quantiles"][..., 50], **pairs_of(cell, arrays, place)}
    return found


def _cloud(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    norms, explained, shape = (arrays[f"{CENTERS}/vocabulary/{what}"] for what in ("norms", "explained", "shape"))
    shares = (float(explained[min(count, len(explained)) - 1]) for count in (2, 10, 100))
    lengths = round(float(norms[50]), 3), f"{norms[5]:.3g} to {norms[95]:.3g}"
    dimensions, mean = (round(float(one), 1) for one in shape[:2]), round(100 * float(shape[2]), 2)
    return dict(zip(CLOUD, (*lengths, *(round(100 * share, 2) for share in shares), *dimensions, mean), strict=True))


def pairs_of(cell: ArmCell, arrays: Mapping[str, np.ndarray], place: str) -> dict[str, Any]:
    """Return a checksum of a task's pairs, and for the standard arm the pairs too, in as few bytes as hold them.

    The arms are compared only if they have the same pairs, so that one copy is enough to publish.
    """
    pairs = arrays[f"{place}/pairs"]
    kept = {f"{place}/drawn": pairs.astype(np.min_scalar_type(pairs.max()))} if cell.arm == STANDARD else {}
    return {f"{place}, checksum of pairs": crc32(pairs.tobytes()), **kept}


def tasks_of(results: Results, measure: str = MEASURE) -> list[str]:
    """Return the tasks that were measured, in their order."""
    return list(dict.fromkeys(task for found in results.values() for task in measured_tasks(found.arrays, measure)))


def kept(measure: str, own: str) -> tuple[str, ...]:
    """Return the arrays of each task that claims and tables read; `own` is the one that only this measure has."""
    return tuple(f"{measure}/*/{what}" for what in ("losses", "drawn", "counts", "against_null", own))


def compare_tasks(results: Results, measure: str = MEASURE, below: str = "") -> Tasks:
    """Compare the arms in every task, in the paper's setting, over the seeds that both have.

    Args:
        results: the finished models.
        measure: the first part of the arrays' names.
        below: the part between a task and the name of an array: "/6" for layer 6.
    """
    found: dict[str, dict[int, Comparisons]] = {}
    for task in tasks_of(results, measure):
        place, drawn = f"{measure}/{task}{below}", f"{measure}/{task}/drawn"
        for seed, own in sorted(results.groups("seed").items()):
            runs = {cell.arm: result for cell, result in own.items() if f"{place}/losses" in result.arrays}
            pairs = {runs[arm].metrics[f"{measure}/{task}, checksum of pairs"] for arm in ARMS if arm in runs}
            if set(ARMS) <= runs.keys() and len(pairs) == 1:
                one, two = (runs[arm].arrays[f"{place}/losses"].tobytes() for arm in (HARMONIC, STANDARD))
                nulls = {arm: comparison(runs[arm].arrays[f"{place}/against_null"]) for arm in ARMS}
                between = _compare(one, two, runs[STANDARD].arrays[drawn].astype(np.int32).tobytes())
                found.setdefault(task, {})[seed] = {BETWEEN: between, **nulls}
    return found


@lru_cache(maxsize=64)  # several claims and a table look at the same comparison, which takes a second
def _compare(harmonic: bytes, standard: bytes, pairs: bytes) -> LossComparison:
    pairs_Q2 = np.frombuffer(pairs, np.int32).reshape(-1, 2)
    quadruples = Quadruples(np.zeros((len(pairs_Q2), 4), dtype=np.int64), pairs_Q2)  # tokens are not needed
    first, second = (np.frombuffer(one, np.float32) for one in (harmonic, standard))
    return compare_losses(first, second, quadruples, draws=500)


def settings_ratio(results: Results) -> dict[str, np.ndarray]:
    """Return, by task, the harmonic median divided by the standard median in each of the 32 settings, (2, 32).

    The first row compares losses. In the second row each loss is divided by the median of the arm's own null first.
    With several seeds the ratio is the geometric mean of the seeds' ratios.
    """
    ratios = {}
    for task in tasks_of(results):
        arms = [results.where(arm=arm).array(f"{MEASURE}/{task}/medians").by("seed") for arm in (HARMONIC, STANDARD)]
        if seeds := sorted(arms[0].keys() & arms[1].keys()):
            medians = [np.stack([arm[seed] for seed in seeds]).astype(float) for arm in arms]
            with np.errstate(divide="ignore", invalid="ignore"):  # an exact parallelogram has a loss of 0
                logs = np.log(medians[0]) - np.log(medians[1])
                ratios[task] = np.exp(np.stack([logs[:, 0], logs[:, 0] - logs[:, 1]], axis=1).mean(0))
    return ratios


def side_by_side(first: Interval, second: Interval) -> Side:
    """Return where an interval lies from another one; undecided if they overlap, which is a strict reading."""
    return LOWER if first.high < second.low else HIGHER if first.low > second.high else UNDECIDED


def agreed(sides: Iterable[Side]) -> Side:
    """Return what all say, undecided if they differ."""
    found = set(sides)
    return found.pop() if len(found) == 1 else UNDECIDED


def _side_against_nulls(found: Comparisons) -> Side:
    return side_by_side(found[HARMONIC].ratio, found[STANDARD].ratio)


def _sides(tasks: Tasks, lies: Callable[[Comparisons], Side]) -> list[Side]:
    return [agreed(map(lies, found.values())) for found in tasks.values()]


def _sides_of(tasks: Tasks, which: str) -> list[Side]:
    return _sides(tasks, lambda found: found[which].ratio.above(1))


def _counts(sides: Sequence[Side]) -> dict[str, int]:
    return {words: sides.count(side) for side, words in SIDES.items()}


def _counted(sides: Sequence[Side]) -> str:
    return ", ".join(f"{count} {name}" for name, count in _counts(sides).items())


def most(sides: Sequence[Side]) -> bool | None:
    """Return whether more than half are lower; no if so many are higher that this is impossible."""
    against = 2 * sides.count(HIGHER) >= max(len(sides), 1)
    return True if 2 * sides.count(LOWER) > len(sides) else False if against else None


def every(sides: Sequence[Side]) -> bool | None:
    """Return whether all are lower; no if more are higher than chance would put there."""
    return True if set(sides) == {LOWER} else False if sides.count(HIGHER) >= too_many(len(sides)) else None


def too_many(tasks: int) -> int:
    """Return how many intervals of 95 % on one wrong side chance gives in less than one case of twenty.

    >>> too_many(1), too_many(12)
    (1, 2)
    """
    from scipy.stats import binom  # slow to import

    return int(binom.isf(0.05, tasks, CHANCE)) + 1


def about(results: Results) -> str:
    """Say what the intervals are over."""
    seeds = len(results.distinct("seed"))
    alone = "one model per arm: the intervals are over word pairs, not over trainings"
    return alone if seeds == 1 else f"{seeds} models per arm, which must agree"


def _finding(results: Results, holds: bool | None, sides: Sequence[Side], words: str) -> Finding:
    return Finding(holds, f"{words}. In all: {_counted(sides)} ({about(results)}).", _counts(sides))


def judge_ratios(
    results: Results, *, rule: Callable[[Sequence[Side]], bool | None], measure: str = MEASURE, below: str = ""
) -> Finding:
    """Judge the ratios of harmonic and standard medians in all tasks by a rule for their sides."""
    tasks = compare_tasks(results, measure, below)
    shown = {task: " and ".join(str(one[BETWEEN].ratio) for one in found.values()) for task, found in tasks.items()}
    words = f"Harmonic median by standard median{' in layer ' * bool(below)}{below[1:]}: {listed(shown)}"
    sides = _sides_of(tasks, BETWEEN)
    return _finding(results, rule(sides), sides, words)


def _judge_null(results: Results) -> Finding:
    tasks = compare_tasks(results)
    sides = {arm: _sides_of(tasks, arm) for arm in ARMS}
    return Finding(
        both(*map(most, sides.values())),
        f"Against their shuffled pairs the losses are, by task: {listed(sides, form=_counted)} ({about(results)}).",
        {f"{arm}_{what}": count for arm, own in sides.items() for what, count in _counts(own).items()},
    )


def _judge_gain(results: Results) -> Finding:
    tasks = compare_tasks(results)
    first = {task: next(iter(found.values())) for task, found in tasks.items()}
    shown = {task: f"{one[HARMONIC].ratio} against {one[STANDARD].ratio}" for task, one in first.items()}
    sides = _sides(tasks, _side_against_nulls)
    words = f"Median by null median, harmonic against standard: {listed(shown)}"
    return _finding(results, most(sides), sides, words)


def _judge_settings(results: Results) -> Finding:
    ratios = settings_ratio(results)
    wins = np.array([ratio < 1 for ratio in ratios.values()])  # tasks, 2, settings
    held, against_null = (int((2 * wins[:, row].sum(0) > len(wins)).sum()) for row in (0, 1))
    lower = {task: int((ratio[0] < 1).sum()) for task, ratio in ratios.items()}
    numbers = {f"settings_{task}": count for task, count in lower.items()}
    return Finding(
        held == len(SETTINGS),
        f"It is in {held} of {len(SETTINGS)} settings, and against the arms' own shuffled pairs in {against_null}. "
        f"Settings in which it is lower, by task: {listed(lower)} ({about(results)}).",
        {"settings": held, "settings_against_null": against_null, **numbers},
    )


real_words = unless_embedded("Generated tokens have no words in them.")
_claim = partial(compares, enough=real_words)
CLAIMS = (
    _claim(
        "lower_in_every_task",
        "In each of the twelve tasks the harmonic embedding's parallelogram loss is lower than the standard one's.",
        partial(judge_ratios, rule=every),
        paper="Harmonic GPT-2 forms better parallelograms: the distributions of its losses lie lower.",
    ),
    _claim(
        "lower_in_most_tasks",
        "In more than half of the tasks it is lower.",
        partial(judge_ratios, rule=most),
        paper="The weaker reading of the same figure.",
    ),
    _claim(
        "better_than_shuffled",
        "In both arms, in most of the tasks, pairs of one relation make better parallelograms than shuffled pairs.",
        _judge_null,
        paper="Not reported. Without it there is no structure to compare.",
        control=True,
    ),
    _claim(
        "gains_more_on_shuffled",
        "Against its own shuffled pairs the harmonic embedding gains more than the standard one, in most of the tasks.",
        _judge_gain,
        paper="Not reported. A lower loss may come from the unit, which cancels here.",
        control=True,
    ),
    _claim(
        "in_every_setting",
        "In each of the 32 settings that the authors swept, the harmonic median is lower in most of the tasks.",
        _judge_settings,
        paper="One of the 32 is shown.",
        control=True,
    ),
)


def loss_rows(results: Results, tasks: Tasks, measure: str = MEASURE) -> list[dict[str, Any]]:
    """Return a row per task and seed: both arms, their nulls, and the comparison."""
    columns = {"": "first", ", shuffled": "second", " / shuffled": "ratio"}
    rows = []
    for task, seed, found in ((task, seed, found) for task, own in tasks.items() for seed, found in own.items()):
        quadruples, pairs, _ = results[ArmCell(STANDARD, seed)].arrays[f"{measure}/{task}/counts"].tolist()
        rows.append(
            {
                **{"task": task, "seed": seed, "word pairs": pairs, "quadruples": quadruples},
                **{f"{arm}{words}": str(getattr(found[arm], of)) for arm in ARMS for words, of in columns.items()},
                **{"harmonic / standard": str(found[BETWEEN].ratio), "share lower": str(found[BETWEEN].share)},
                **{"harmonic is": SIDES[found[BETWEEN].ratio.above(1)]},
                **{"against shuffled": SIDES[_side_against_nulls(found)]},
            }
        )
    return rows


def tables(results: Results) -> list[Table]:
    """Tabulate tasks, settings, the cloud of tokens, and what lies next to what."""
    own = results.where(arm=results.spec.arms)
    first = {arm: next(iter(found.values())).metrics for arm, found in own.groups("arm").items()}
    ratios = settings_ratio(own)
    stacked = np.stack(list(ratios.values()), axis=-1) if ratios else np.empty((2, 0, 0))  # 2, settings, tasks
    settings = zip(SETTINGS, *stacked, strict=False)

    def lower(found: np.ndarray) -> str:
        return f"{int((found < 1).sum())} of {len(found)}"

    def mean(found: np.ndarray) -> float | None:
        usable = np.isfinite(found).all() and (found > 0).all()
        return round(geometric_mean(found.tolist()), 3) if usable else None

    setting: dict[str, Column] = {
        "scale": lambda at: at[0].scale.replace("_", " "),
        "components of": lambda at: at[0].fit,
        "components": lambda at: at[0].components,
        "lower in": lambda at: lower(at[1]),
        "lower against shuffled in": lambda at: lower(at[2]),
        "harmonic / standard": lambda at: mean(at[1]),
        "the same, each by its shuffled": lambda at: mean(at[2]),
    }
    model: dict[str, Column] = {"arm": lambda at: at.cell.arm, "seed": lambda at: at.cell.seed}
    cloud = {name: lambda at, name=name: own[at.cell].metrics[name] for name in CLOUD}
    best = {"quadruples (loss)": lambda at: own[at.cell].metrics[f"best of {at.task}"]}
    near = [{"word": word, **{arm: first[arm][f"near {word}"] for arm in first}} for word in QUERIES if first]
    title = "Median parallelogram loss and 95 % interval over word pairs, the paper's setting"
    columns = {"task": lambda at: at.task, **model, **best}
    ranked = combinations(task=tasks_of(own), cell=own)
    return [
        Table(title, tuple(loss_rows(own, compare_tasks(own)))),
        tabulate("Settings: tasks in which the harmonic median is lower", settings, setting),
        tabulate("The cloud of all tokens", combinations(cell=own), {**model, **cloud}),
        tabulate("The quadruples that come closest to a parallelogram", ranked, columns),
        Table("Nearest tokens", tuple(near)),
    ]


def labeled(results: Results) -> list[LabeledModel]:
    """Return every measured model as figures show it, under its arm's name and color."""
    return [LabeledModel(cell.arm, STYLES[cell.arm].color, found.arrays) for cell, found in results.items()]


def first_models(results: Results) -> list[LabeledModel]:
    """Return the first finished seed of each arm, in the spec's order."""
    return [model for arm in results.spec.arms for model in labeled(results.where(arm=arm))[:1]]


STRONGEST = 1.0  # of the colors' scale: a factor of two
RANK_WORDS = {"best": "lowest", "median": "median", "worst": "highest"}


def figures(results: Results) -> dict[str, Picture]:
    """Draw everything that the finished models hold."""
    own = results.where(arm=results.spec.arms)
    tasks, models, first, ratios = tasks_of(own), labeled(own), first_models(own), settings_ratio(own)
    if not tasks:
        return {}
    lines, seed = (" One line per seed.", " First seed.") if len(models) > len(first) else ("", "")
    cdf = (
        "Share of the quadruples whose parallelogram loss is at most this, in the paper's setting (two components of "
        "the vocabulary, in units of its spread along them). Solid: pairs of one relation. Dashed: shuffled partners. "
        f"Farther left is closer to a parallelogram. The relation makes the space between solid and dashed.{lines}"
    )
    ranked = (
        "The quadruple with the {} loss of each task, in the plane of the vocabulary's first two components and in "
        "units of its spread there; of a word with several tokens, the last. Panels have their own windows. The dotted "
        "line runs from the fourth word to the cross, where it would complete a parallelogram. Its length is the loss. "
        f"In any embedding the best of so many quadruples are parallelograms; the median ones tell more.{seed}"
    )
    settings = (
        "Median loss of the harmonic embedding by that of the standard one, for every task (rows) and each of the 32 "
        "settings that the authors swept (columns): the unit of the loss, and the kind and number of principal "
        "components. Blue: the harmonic one is lower. Below, each arm's median is first divided by that of its own "
        "shuffled pairs, where the unit cancels. Framed: the paper's setting."
    )
    cloud = (
        "The rows of the embedding as a cloud. Left: their lengths (quantiles over the vocabulary). Right: how much of "
        f"their variance lies in the widest 1, 2, ... principal components; marks stand at 2, 10 and 100.{lines}"
    )
    return {
        "parallelogram_cdf": Picture(draw_distributions(models, tasks), cdf),
        **{
            f"parallelogram_{rank}": Picture(draw_ranked(first, tasks, rank), ranked.format(words))
            for rank, words in RANK_WORDS.items()
        },
        **({"parallelogram_settings": Picture(_draw_settings(ratios), settings)} if ratios else {}),
        "token_centers": Picture(draw_token_centers(models), cloud),
    }


def _draw_settings(ratios: dict[str, np.ndarray]) -> "Figure":
    """Draw a heat map of tasks by settings, as it is and against the arms' own null."""
    with needs("figures"):
        from matplotlib.colors import LinearSegmentedColormap
        from matplotlib.patches import Rectangle

    ends = [STYLES[HARMONIC].color, "#f7f7f7", STYLES[STANDARD].color]
    colors = LinearSegmentedColormap.from_list("arms", ends)
    figure = drawing.new_figure(11, 1.6 + 0.44 * len(ratios) + 1.2)
    panels = figure.subplots(2, 1, sharex=True)
    titles = ("median loss, harmonic by standard", "the same, each first divided by its shuffled pairs' median")
    for row, (axes, title) in enumerate(zip(panels, titles, strict=True)):
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log2(np.stack([ratio[row] for ratio in ratios.values()]))
        image = axes.imshow(logs, cmap=colors, vmin=-STRONGEST, vmax=STRONGEST, aspect="auto", interpolation="none")
        axes.set_yticks(range(len(ratios)), labels=list(ratios), fontsize=8)
        axes.set_xticks(range(len(SETTINGS)), labels=[str(one.components) for one in SETTINGS], fontsize=7.5)
        axes.grid(False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        for edge in range(4, len(SETTINGS), 4):
            axes.axvline(edge - 0.5, color="white", linewidth=4 if edge % 8 == 0 else 1.6)
        axes.add_patch(Rectangle((-0.5, -0.5), 1, len(ratios), fill=False, edgecolor="black", linewidth=1.4, zorder=5))
        axes.set_title(title, pad=32 if row == 0 else 8)
    words: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 8}
    for place, setting in list(enumerate(SETTINGS))[::4]:
        panels[0].text(place + 1.5, -0.75, f"of {setting.fit}", **words)
        if place % 8 == 0:
            heading = f"unit: {setting.scale.replace('_', ' ')}\n"
            panels[0].text(place + 3.5, -0.75, heading, fontweight="bold", **words)
    panels[1].set_xlabel("number of principal components, of the vocabulary or of the task's words")
    bar = figure.colorbar(image, ax=list(panels), extend="both", pad=0.015, aspect=30, ticks=(-1, -0.5, 0, 0.5, 1))
    bar.ax.set_yticklabels(["1/2", "0.71", "1", "1.41", "2"])
    bar.outline.set_visible(False)
    return figure


EXPERIMENT = view(
    gpt2.EXPERIMENT,
    "parallelograms",
    "Parallelograms of word pairs in the token embedding",
    "GPT-2: parallelograms",
    CLAIMS,
    measure=measure,
    keeps=kept(MEASURE, "medians"),
    tables=tables,
    figures=figures,
)
