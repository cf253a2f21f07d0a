"""Whether a harmonic GPT-2's embedding holds better parallelograms than a standard one's: a view of the runs of `gpt2`.

All models are measured on the same quadruples. Claims compare the two arms seed by seed, with intervals over trainings.
Intervals in tables are over word pairs, because 10,000 quadruples of 300 pairs know no more than 300 pairs do. The loss
is in units of the vocabulary's spread along two components, and this unit differs between models. In the comparison
with a model's own shuffled pairs the unit cancels, so this one shows the relation.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from harmax.analysis import SETTINGS, Interval, LossComparison, Quadruples, compare_losses
from harmax.figures import Picture
from harmax.inspect.embedding import CENTERS, MEASURE, QUERIES, comparison, from_text_array, measured_tasks
from harmax.inspect.word_figures import LabeledModel, draw_distributions, draw_ranked, draw_shapes, draw_token_centers
from harmax_lab.kit.claims import Finding
from harmax_lab.kit.experiment import view
from harmax_lab.kit.judges import Everywhere, below, both, everywhere, listed
from harmax_lab.kit.results import Results
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Column, Table, combinations, tabulate
from harmax_lab.language import gpt2
from harmax_lab.language.arms import PAPERS, STANDARD, STYLES, apart, written
from harmax_lab.language.gpt2 import ArmCell, LanguageSpec, budget, of_models, of_paper, trained
from harmax_lab.language.parallelogram_settings import SETTINGS_CAPTION, draw_settings, settings_ratio, settings_table

SAMPLE = 2500  # quadruples whose losses are published
DRAWS = 500  # of the bootstrap over word pairs
DRAWN_TASK = "present-past"
"""The task whose parallelograms the paper draws."""
BEST = 0.1
"""Share of the quadruples, those of the lowest loss, that count as the parallelograms of a task."""
NEAREST = 1e-9  # where a median loss is 0, so that it has a logarithm
SIDES = {-1: "lower", 1: "higher", 0: "undecided"}
CLOUD = ("median length", "middle 90 %", *(f"explained by {count}, %" for count in (2, 10, 100)))
CLOUD += ("participation ratio", "effective rank", "common mean, % of squared length")


def measure(spec: LanguageSpec, cell: ArmCell, result: CellResult) -> dict[str, Any]:
    """Return what claims and tables need of one model."""
    arrays = result.arrays
    if not arrays:  # of a model that diverged
        return {}
    near = from_text_array(arrays[f"{CENTERS}/neighbors/words"])
    found = {**_cloud(arrays), **{f"near {word}": "  ".join(map(repr, tokens)) for word, *tokens in near}}
    for task in measured_tasks(arrays):
        place = f"{MEASURE}/{task}"
        words, losses = from_text_array(arrays[f"{place}/ranked_words"]), arrays[f"{place}/ranked_losses"]
        best = zip(words[0][:3], losses[0], strict=False)
        found[f"best of {task}"] = "; ".join(f"{a} : {b} = {c} : {d} ({loss:.1g})" for (a, b, c, d), loss in best)
        found |= dict(zip((f"sine of {task}", f"width of {task}"), best_shape(arrays, task), strict=True))
        found |= {f"{place}/medians": arrays[f"{place}/quantiles"][..., 50], **sample_of(cell, arrays, place)}
    return found


def _cloud(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    norms, explained, shape = (arrays[f"{CENTERS}/vocabulary/{what}"] for what in ("norms", "explained", "shape"))
    shares = (float(explained[min(count, len(explained)) - 1]) for count in (2, 10, 100))
    lengths = round(float(norms[50]), 3), f"{norms[5]:.3g} to {norms[95]:.3g}"
    dimensions, mean = (round(float(one), 1) for one in shape[:2]), round(100 * float(shape[2]), 2)
    return dict(zip(CLOUD, (*lengths, *(round(100 * share, 2) for share in shares), *dimensions, mean), strict=True))


def best_shape(arrays: Mapping[str, np.ndarray], task: str) -> list[float]:
    """Return the mean sine and the mean width of the quadruples of a task with the lowest losses."""
    losses, shapes = (arrays[f"{MEASURE}/{task}/{what}"] for what in ("losses", "shapes"))
    best = np.argsort(losses, kind="stable")[: max(1, round(BEST * len(losses)))]
    return [float(mean) for mean in shapes[best].astype(float).mean(0)]


def sample_of(cell: ArmCell, arrays: Mapping[str, np.ndarray], place: str, inside: str = "") -> dict[str, np.ndarray]:
    """Return the first losses, and of standard models their word pairs, in few bytes. All models have the same pairs.

    Args:
        cell: of the model.
        arrays: that were measured.
        place: of a task, for example "layers/antonym".
        inside: the part between a task and the name of an array: "/6" for layer 6.
    """
    pairs, losses = arrays[f"{place}/pairs"][:SAMPLE], arrays[f"{place}{inside}/losses"][:SAMPLE]
    drawn = {f"{place}/drawn": pairs.astype(np.min_scalar_type(pairs.max()))} if cell.arm == STANDARD else {}
    return {f"{place}{inside}/sample": losses.astype(np.float16), **drawn}


def tasks_of(results: Results, measure: str = MEASURE) -> list[str]:
    """Return the tasks that were measured, in their order."""
    keys = [key.split("/") for found in results.values() for key in found.arrays]
    return list(dict.fromkeys(parts[1] for parts in keys if parts[0] == measure and parts[-1] == "against_null"))


def log_median(run: CellResult, task: str) -> float:
    """Return the logarithm of a task's median loss, so that a difference of two models is a ratio."""
    return _logarithms(run, task)[0]


def log_gain(run: CellResult, task: str) -> float:
    """Return the logarithm of a task's median loss by that of the model's own shuffled pairs."""
    own, shuffled = _logarithms(run, task)
    return own - shuffled


def _logarithms(run: CellResult, task: str) -> list[float]:
    found = comparison(run.arrays[f"{MEASURE}/{task}/against_null"])
    return [float(np.log(max(median.estimate, NEAREST))) for median in (found.first, found.second)]


def mean_over(tasks: Sequence[str], value: Callable[[CellResult, str], float]) -> Callable[[CellResult], float]:
    """Return a function that takes the mean of a number over tasks from a run."""
    return lambda run: float(np.mean([value(run, task) for task in tasks]))


def ratio(found: Interval | None) -> str:
    """Write a logarithm as a ratio; an infinite interval, that of one model per arm, is left out.

    >>> ratio(Interval(0.0, -0.1, 0.1)), ratio(Interval(0.0, -np.inf, np.inf))
    ('1 [0.905, 1.11]', '1')
    """
    if found is None:
        return "unknown"
    one = Interval(*map(float, np.exp(found)))
    return str(one) if np.isfinite(found.high) else f"{one.estimate:.3g}"


def about(results: Results) -> str:
    """Say what intervals are over."""
    seeds = len(results.distinct("seed"))
    return "one model per arm" if seeds == 1 else f"intervals over {seeds} seeds"


def _lower_in_all(
    results: Results, things: Iterable[Any], value: Callable[[Any], Callable[[CellResult], float]]
) -> Everywhere:
    """Judge whether a logarithm is lower in the paper's arm for all things, each with its interval over seeds."""
    return everywhere(things, lambda thing, level: apart(results, value(thing), level=level), wanted=-1)


def _counts(found: Everywhere) -> dict[str, int]:
    return {words: list(found.sides.values()).count(side) for side, words in SIDES.items()}


def _judge_every(results: Results) -> Finding:
    found = _lower_in_all(results, tasks_of(results), lambda task: lambda run: log_median(run, task))
    shown = listed({task: ratio(one and one.difference) for task, one in found.found.items()})
    words = f"Harmonic median loss by standard one: {shown}. In all {listed(_counts(found))} ({about(results)})."
    return Finding(found.holds, words, _counts(found))


def _judge_settings(results: Results) -> Finding:
    tasks = tasks_of(results)

    def value(setting: int) -> Callable[[CellResult], float]:
        def log_of(run: CellResult, task: str) -> float:
            return float(np.log(max(run.arrays[f"{MEASURE}/{task}/medians"][0, setting], NEAREST)))

        return mean_over(tasks, log_of)

    found = _lower_in_all(results, range(len(SETTINGS)), value)
    lower = sum(one is not None and one.difference.estimate < 0 for one in found.found.values())
    words = f"It is lower in {lower} of {len(SETTINGS)}. With intervals: {listed(_counts(found))} ({about(results)})."
    return Finding(found.holds, words, {"settings": lower, **_counts(found)})


def _judge_mean(results: Results, *, value: Callable[[CellResult, str], float], words: str) -> Finding:
    found = apart(results, mean_over(tasks_of(results), value))
    difference = found and found.difference
    holds = difference and below(difference, 0)
    return Finding(holds, f"{words}: {ratio(difference)} ({about(results)}).", {"log_ratio": _numbers(difference)})


def _judge_null(results: Results) -> Finding:
    value = mean_over(tasks_of(results), log_gain)
    found = {arm: results.where(arm=arm).take(lambda cell, run: value(run)).mean() for arm in (STANDARD, PAPERS)}
    words = f"Median loss by that of shuffled pairs, mean over tasks: {listed(found, form=ratio)} ({about(results)})."
    holds = both(*(one and below(one, 0) for one in found.values()))
    return Finding(holds, words, {arm: _numbers(one) for arm, one in found.items()})


def _judge_shape(results: Results, *, what: str, everything: bool = False) -> Finding:
    """Judge whether the best quadruples have the larger sine or width in the paper's arm."""
    tasks = tasks_of(results) if everything else [task for task in tasks_of(results) if task == DRAWN_TASK]
    if not tasks:
        return Finding(None, f"{DRAWN_TASK} was not measured.", {})
    value = mean_over(tasks, lambda run, task: run.metrics[f"{what} of {task}"])
    found = apart(results, value)
    means = {arm: np.mean([value(run) for run in results.where(arm=arm).values()]) for arm in (PAPERS, STANDARD)}
    words = f"Mean {SHAPES[what]}: {listed(means, form='{:.3f}'.format)}, difference {written(found)}."
    return Finding(found and found.difference.above(0), words, {"difference": _numbers(found and found.difference)})


def _numbers(found: Interval | None) -> dict[str, float] | None:
    return found and found._asdict()


SHAPES = {"sine": "area by the product of the sides (1: rectangle, 0: flat)", "width": "width by length (0: flat)"}
PARALLELOGRAMS = (
    f"Judged on the {100 * BEST:.0f} % of the {DRAWN_TASK} quadruples with the lowest loss, in the paper's plane"
)
CLAIMS = (
    of_paper(
        "lower_in_every_task",
        "In every one of the twelve tasks the harmonic embedding has the lower parallelogram loss. Judged by the "
        "ratio of the median losses in each task, over seeds.",
        _judge_every,
        "5/24",
    ),
    of_paper(
        "more_rectangular",
        "Parallelograms of the harmonic embedding tend to be more rectangular. "
        f"{PARALLELOGRAMS}: their mean sine of the angle between the sides is larger.",
        partial(_judge_shape, what="sine"),
        "5/27",
    ),
    of_paper(
        "standard_is_flatter",
        "Parallelograms of the standard embedding are flat, compared with harmonic ones. "
        f"{PARALLELOGRAMS}: the mean ratio of their smaller to their larger extent is smaller.",
        partial(_judge_shape, what="width"),
        "5/27",
    ),
    of_models(
        "lower_on_average",
        "On average over the tasks the harmonic parallelogram loss is lower (mean of the logarithms of the medians).",
        partial(_judge_mean, value=log_median, words="Harmonic median loss by standard one, mean over tasks"),
    ),
    of_models(
        "better_than_shuffled",
        "In both arms pairs of one relation make better parallelograms than shuffled pairs, on average over the tasks. "
        "Without it there is no structure to compare.",
        _judge_null,
    ),
    of_models(
        "gains_more_on_shuffled",
        "Against its own shuffled pairs the harmonic embedding gains more than the standard one, on average over the "
        "tasks. A lower loss may come from the unit, which cancels here.",
        partial(_judge_mean, value=log_gain, words="Harmonic gain by standard one, mean over tasks"),
    ),
    of_models(
        "in_every_setting",
        "In each of the 32 settings that the authors swept, of which the paper shows one, the harmonic loss is lower "
        "on average over the tasks.",
        _judge_settings,
    ),
    of_models(
        "more_rectangular_in_all_tasks",
        "On average over all tasks, and not only in the one that the paper draws, the best parallelograms of the "
        "harmonic embedding are more rectangular.",
        partial(_judge_shape, what="sine", everything=True),
    ),
)


def compared(results: Results, cell: ArmCell, place: str, inside: str = "") -> LossComparison | None:
    """Compare the sampled losses of a model with those of the standard one of its seed; intervals are over word pairs.

    Args:
        results: with both models.
        cell: of the model.
        place: of a task, for example "layers/antonym".
        inside: the part between a task and the name of an array: "/6" for layer 6.
    """
    found = None if cell.arm == STANDARD else samples(results, cell, place, inside)
    return None if found is None else compare_losses(*found, draws=DRAWS)


def samples(
    results: Results, cell: ArmCell, place: str, inside: str = ""
) -> tuple[np.ndarray, np.ndarray, Quadruples] | None:
    """Return the sampled losses of a model and of the standard one of its seed; None if that one is missing."""
    standard = results.get(replace(cell, arm=STANDARD))
    if standard is None or f"{place}/drawn" not in standard.arrays:
        return None
    own, other = (run.arrays[f"{place}{inside}/sample"].astype(float) for run in (results[cell], standard))
    pairs = standard.arrays[f"{place}/drawn"].astype(np.int64)
    return own, other, Quadruples(np.zeros((len(pairs), 4), dtype=np.int64), pairs)  # tokens are not needed


def loss_columns(results: Results, measure: str = MEASURE, inside: str = "") -> dict[str, Column]:
    """Return columns for rows with a task and a cell: its losses, those of its shuffled pairs, and the comparison."""

    def place(at: Any) -> str:
        return f"{measure}/{at.task}"

    def null(at: Any) -> LossComparison:
        return comparison(results[at.cell].arrays[f"{place(at)}{inside}/against_null"])

    def other(get: Callable[[LossComparison], Interval]) -> Column:
        return lambda at: "" if (one := compared(results, at.cell, place(at), inside)) is None else str(get(one))

    return {
        "task": lambda at: at.task,
        "arm": lambda at: at.cell.arm,
        "seed": lambda at: at.cell.seed,
        "word pairs": lambda at: int(results[at.cell].arrays[f"{place(at)}/counts"][1]),
        "quadruples": lambda at: int(results[at.cell].arrays[f"{place(at)}/counts"][0]),
        "median loss": lambda at: str(null(at).first),
        "shuffled": lambda at: str(null(at).second),
        "by its shuffled": lambda at: str(null(at).ratio),
        "by standard": other(lambda one: one.ratio),
        "share lower than standard": other(lambda one: one.share),
    }


def tables(results: Results) -> list[Table]:
    """Tabulate tasks, shapes, settings, the cloud of tokens, and what lies next to what."""
    own = trained(results)
    metrics = {cell: run.metrics for cell, run in own.items()}
    first = {arm: next(iter(found.values())).metrics for arm, found in own.groups("arm").items()}
    places = combinations(task=tasks_of(own), cell=own)
    model: dict[str, Column] = {"arm": lambda at: at.cell.arm, "seed": lambda at: at.cell.seed}
    task: dict[str, Column] = {"task": lambda at: at.task, **model}
    cloud = {name: lambda at, name=name: metrics[at.cell][name] for name in CLOUD}

    def shape(what: str) -> Column:
        return lambda at: round(metrics[at.cell][f"{what} of {at.task}"], 3)

    best: dict[str, Column] = {"quadruples (loss)": lambda at: metrics[at.cell][f"best of {at.task}"]}
    near = [{"word": word, **{arm: first[arm][f"near {word}"] for arm in first}} for word in QUERIES if first]
    return [
        tabulate(
            "Median parallelogram loss and 95 % interval over word pairs, the paper's setting",
            places,
            loss_columns(own),
        ),
        tabulate(
            f"Shape of the {100 * BEST:.0f} % of the quadruples with the lowest loss, means; random sides have a sine "
            f"of {2 / np.pi:.2f}",
            places,
            {**task, **{words: shape(what) for what, words in SHAPES.items()}},
        ),
        settings_table(settings_ratio(own, tasks_of(own))),
        tabulate("The cloud of all tokens", combinations(cell=own), {**model, **cloud}),
        tabulate("The quadruples that come closest to a parallelogram", places, {**task, **best}),
        Table("Nearest tokens", tuple(near)),
    ]


def labeled(results: Results) -> list[LabeledModel]:
    """Return every measured model as figures show it, under its arm's name and color."""
    return [LabeledModel(cell.arm, STYLES[cell.arm].color, found.arrays) for cell, found in results.items()]


def first_models(results: Results) -> list[LabeledModel]:
    """Return the first finished seed of each of the two arms that claims compare."""
    return [model for arm in (STANDARD, PAPERS) for model in labeled(results.where(arm=arm))[:1]]


RANK_WORDS = {"best": "lowest", "median": "median", "worst": "highest"}


def figures(results: Results) -> dict[str, Picture]:
    """Draw everything that the finished models hold."""
    own = trained(results)
    tasks, models, first = tasks_of(own), labeled(own), first_models(own)
    ratios, body = settings_ratio(own, tasks), budget(results.spec)
    if not tasks or not first:
        return {}
    lines, seed = (" One line per seed.", " First seed.") if len(models) > len(first) else ("", "")
    shown = DRAWN_TASK if DRAWN_TASK in tasks else tasks[0]
    cdf = (
        "Share of the quadruples whose parallelogram loss is at most this, in the paper's setting (two components of "
        "the vocabulary, in units of its spread along them). Solid: pairs of one relation. Dashed: shuffled partners. "
        "Farther left is closer to a parallelogram. The relation makes the space between solid and dashed."
        f"{lines} {body}"
    )
    ranked = (
        "The quadruple with the {} loss of each task, in the plane of the vocabulary's first two components and in "
        "units of its spread there; of a word with several tokens, the last. Panels have their own windows. The dotted "
        "line runs from the fourth word to the cross, where it would complete a parallelogram. Its length is the loss. "
        f"In any embedding the best of so many quadruples are parallelograms; the median ones tell more.{seed} {body}"
    )
    shapes = (
        f"The quadruples of {shown} with the lowest losses, best first, as in the paper's Fig. 5, in the plane of the "
        "vocabulary's first two components and in units of its spread there. Solid sides join the words of a pair. "
        "Below each: its loss, its area by the product of the sides (1 is a rectangle, 0 is flat), and its smaller by "
        f"its larger extent. The claims average these over the {100 * BEST:.0f} % with the lowest loss.{seed} {body}"
    )
    cloud = (
        "The rows of the embedding as a cloud. Left: their lengths (quantiles over the vocabulary). Right: how much of "
        "their variance lies in the widest 1, 2, ... principal components; marks stand at 2, 10 and 100."
        f"{lines} {body}"
    )
    return {
        "parallelogram_cdf": Picture(draw_distributions(models, tasks), cdf),
        "parallelogram_shapes": Picture(draw_shapes(first, shown), shapes),
        **{
            f"parallelogram_{rank}": Picture(draw_ranked(first, tasks, rank), ranked.format(words))
            for rank, words in RANK_WORDS.items()
        },
        **({"parallelogram_settings": Picture(draw_settings(ratios), f"{SETTINGS_CAPTION} {body}")} if ratios else {}),
        "token_centers": Picture(draw_token_centers(models), cloud),
    }


EXPERIMENT = view(
    gpt2.EXPERIMENT,
    "parallelograms",
    "Parallelograms of word pairs in the token embedding",
    "Sec. 5, Fig. 5",
    CLAIMS,
    measure=measure,
    keeps=tuple(f"{MEASURE}/*/{what}" for what in ("sample", "drawn", "counts", "against_null", "medians")),
    tables=tables,
    figures=figures,
)
