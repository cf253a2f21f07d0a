"""Word pairs in the states of a language model's layer 6: a view of the runs of `gpt2`.

`harmax.inspect.layers` measures them and says how. The paper shows the distribution of parallelogram losses of "the
parallelogram dataset", which it does not name; here the mean over its twelve tasks counts. It also shows the words of
`capitalize` along the first two components, which here are those of the states of all tokens.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.analysis import Interval, interval_over_pairs, weighted_quantiles
from harmax.figures import Picture, headline, line_handle
from harmax.inspect.embedding import measured_tasks
from harmax.inspect.layers import FEWEST, MEASURE
from harmax.inspect.word_figures import LabeledModel, draw_layer_tasks, draw_steps
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.drawing import panels_in_a_row
from harmax_lab.kit.experiment import view
from harmax_lab.kit.judges import below, both, listed
from harmax_lab.kit.results import Results, interval
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Column, Table, combinations, tabulate
from harmax_lab.language import gpt2
from harmax_lab.language.arms import PAPERS, STANDARD, apart, over_seeds, written
from harmax_lab.language.gpt2 import ArmCell, LanguageSpec, budget, of_models, trained
from harmax_lab.language.parallelograms import (
    DRAWS,
    NEAREST,
    about,
    first_models,
    labeled,
    loss_columns,
    mean_over,
    sample_of,
    samples,
    tasks_of,
)
from harmax_lab.paper.readings import OVERLAP

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPERS_LAYER, PAPERS_TASK = 6, "capitalize"
NEAR = 0.05
"""A loss is near zero if it is at most this quantile of the losses of the standard model of its seed."""
FAR = 0.99
"""The quantile that is divided by the median to show a tail."""


def measure(spec: LanguageSpec, cell: ArmCell, result: CellResult) -> dict[str, Any]:
    """Return what claims and tables need of one model."""
    found: dict[str, Any] = {}
    for task in measured_tasks(result.arrays, MEASURE):
        place = f"{MEASURE}/{task}"
        found[f"{task}, one token"] = int(result.arrays[f"{place}/one_token"][0].sum())
        for layer in spec.layers:
            found |= sample_of(cell, result.arrays, place, f"/{layer}")
            found |= {f"{task}, {what} in {layer}": one for what, one in _numbers(result.arrays, place, layer).items()}
    return found


def _numbers(arrays: Mapping[str, np.ndarray], place: str, layer: int) -> dict[str, float]:
    losses, null, partners = (arrays[f"{place}/{layer}/{what}"] for what in ("losses", "null", "partners"))
    found = {"near zero against shuffled": float((losses <= np.quantile(null, NEAR)).mean())}
    for kind, rows in (("partners", np.ones(len(partners), bool)), ("single partners", arrays[f"{place}/single"])):
        if np.isfinite(partners[rows, 1]).sum() >= FEWEST:
            own, other = np.nanmedian(partners[rows], axis=0)
            found[kind] = float(own / other)
    kept, shuffled = arrays[f"{place}/one_token"]
    if min(kept.sum(), shuffled.sum()) >= FEWEST:
        found |= {"losses of one token": float(np.median(losses[kept]))}
        found |= {"shuffled losses of one token": float(np.median(null[shuffled]))}
    return found


def layer_of(spec: LanguageSpec) -> int:
    """Return the layer that is judged: the paper's if it was measured, else the last that was."""
    return PAPERS_LAYER if PAPERS_LAYER in spec.layers else spec.layers[-1]


def near_zero(losses: np.ndarray, standard: np.ndarray) -> float:
    """Return the share of the losses that are near zero, minus that of the standard model's losses."""
    limit = np.quantile(standard, NEAR)
    return float((losses <= limit).mean() - (standard <= limit).mean())


def heavier_tail(losses: np.ndarray, standard: np.ndarray) -> float:
    """Return the logarithm of the losses' tail by the standard model's; a tail is a high quantile by the median."""
    own, other = (np.quantile(one, FAR) / max(np.median(one), NEAREST) for one in (losses, standard))
    return float(np.log(max(own, NEAREST)) - np.log(max(other, NEAREST)))


def _judge_losses(results: Results, *, value: Callable[[np.ndarray, np.ndarray], float], words: str) -> Finding:
    """Judge whether a number of harmonic and standard losses, in the mean over tasks, lies above 0."""
    layer, tasks = layer_of(results.spec), tasks_of(results, MEASURE)
    by_task: dict[str, list[float]] = {task: [] for task in tasks}
    for cell in results.where(arm=PAPERS):
        for task in tasks:
            if found := samples(results, cell, f"{MEASURE}/{task}", f"/{layer}"):
                by_task[task].append(value(found[0], found[1]))
    by_seed = [float(np.mean(one)) for one in zip(*by_task.values(), strict=True)]
    if not by_seed:
        return Finding(None, "There is no pair of models to compare.", {})
    mean = interval(by_seed)
    shown = listed({task: float(np.mean(one)) for task, one in by_task.items()}, form="{:+.3f}".format)
    sentence = f"{words} in layer {layer}, mean over tasks: {over_seeds(mean, len(by_seed))}. By task: {shown}."
    return Finding(mean.above(0), sentence, {"mean": mean._asdict()})


def _judge_overlap(results: Results, *, kind: str) -> Finding:
    metric = f"{PAPERS_TASK}, {kind} in {layer_of(results.spec)}"
    found = {
        arm: results.where(arm=arm).take(lambda cell, run: run.metrics.get(metric)).mean() for arm in (PAPERS, STANDARD)
    }
    harmonic, standard = found.values()
    words = listed(found, form=lambda one: "unknown" if one is None else _estimate(one))
    sentence = f"Distance of a pair's words by that of words of different pairs: {words} ({about(results)})."
    holds = harmonic and standard and both(below(harmonic, OVERLAP), standard.above(OVERLAP))
    return Finding(holds, sentence, {arm: one and one._asdict() for arm, one in found.items()})


def _estimate(found: Interval) -> str:
    return str(found) if np.isfinite(found.high) else f"{found.estimate:.3g}"


def _judge_against_shuffled(results: Results) -> Finding:
    layer, tasks = layer_of(results.spec), tasks_of(results, MEASURE)
    value = mean_over(tasks, lambda run, task: run.metrics[f"{task}, near zero against shuffled in {layer}"])
    found = apart(results, value)
    means = {arm: np.mean([value(run) for run in results.where(arm=arm).values()]) for arm in (PAPERS, STANDARD)}
    words = f"Share of losses below the {100 * NEAR:.0f} % quantile of the model's own shuffled pairs, mean over tasks"
    sentence = f"{words}: {listed(means, form='{:.3f}'.format)}, difference {written(found)}."
    return Finding(found and found.difference.above(0), sentence, {"difference": found and found.difference._asdict()})


def in_papers_layer(results: Results) -> str:
    """Say that the paper's layer was not measured, or that the exponent is not the paper's; empty if all is there."""
    if PAPERS_LAYER not in results.spec.layers:
        return f"Layer {PAPERS_LAYER} was not measured."
    return gpt2.papers_exponent(results)


CLAIMS = (
    of_models(
        "more_perfect_in_layer",
        "In layer 6 more of the harmonic model's parallelograms are perfect, with a loss near zero. Judged by the "
        f"share of its losses below the {100 * NEAR:.0f} % quantile of the standard model's, in the mean over twelve "
        "tasks.",
        partial(_judge_losses, value=near_zero, words="Share of harmonic losses near zero minus the standard share"),
        sentences=("C/3",),
        enough=in_papers_layer,
    ),
    of_models(
        "heavier_tail_in_layer",
        "In layer 6 the harmonic model's parallelogram losses have the heavier tail. Judged by their "
        f"{100 * FAR:.0f} % quantile divided by their median, in the mean of its logarithm over the twelve tasks.",
        partial(_judge_losses, value=heavier_tail, words="Logarithm of the harmonic tail by the standard one"),
        sentences=("C/3",),
        enough=in_papers_layer,
    ),
    Claim(
        "tail_from_the_loss",
        "The heavy tail is due to the power law of the harmonic probabilities.",
        sentences=("C/4",),
        not_run="The paper tests this explanation nowhere. `heavier_tail_in_layer` asks whether the tail is there.",
    ),
    of_models(
        "capitals_overlap",
        "In layer 6, along the first two components, lower-case and upper-case words overlap with the harmonic loss, "
        f"and not with cross-entropy. Both halves must hold: the words of a pair of `{PAPERS_TASK}` lie at most "
        f"{OVERLAP:g} times as far apart as words of different pairs in the harmonic model, and farther in the "
        "standard one (medians). Pairs that end in the same token do not count, because they overlap in any model.",
        partial(_judge_overlap, kind="partners"),
        sentences=("C/6",),
        enough=in_papers_layer,
    ),
    of_models(
        "capitals_overlap_among_single_tokens",
        "This holds for pairs whose words have one token each. A longer word's last token is not the first of its "
        "sequence, and first tokens lie apart from all others.",
        partial(_judge_overlap, kind="single partners"),
    ),
    of_models(
        "more_perfect_against_shuffled",
        "The relation makes more parallelograms perfect in the harmonic model: a larger share of its losses than in "
        f"the standard model lies below the {100 * NEAR:.0f} % quantile of the model's own shuffled pairs.",
        _judge_against_shuffled,
    ),
)


def over_pairs(results: Results, cell: ArmCell, task: str, layer: int) -> dict[str, str]:
    """Return a model's share of losses near zero, and its tail, with 95 % intervals over word pairs."""
    found = samples(results, cell, f"{MEASURE}/{task}", f"/{layer}")
    if found is None:
        return {"near zero": "", "tail": ""}
    own, standard, quadruples = found

    def share(weights_BQ: np.ndarray) -> np.ndarray:
        limits_B = weighted_quantiles(weights_BQ, standard, NEAR)
        return (weights_BQ * (own <= limits_B[:, None])).sum(1) / weights_BQ.sum(1)

    def tail(weights_BQ: np.ndarray) -> np.ndarray:
        far_B, middle_B = (weighted_quantiles(weights_BQ, own, level) for level in (FAR, 0.5))
        return far_B / np.maximum(middle_B, NEAREST)

    shown = {"near zero": share, "tail": tail}
    return {name: str(interval_over_pairs(one, quadruples, draws=DRAWS)) for name, one in shown.items()}


def tables(results: Results) -> list[Table]:
    """Tabulate losses, tails, distances and cosines in all layers."""
    own = trained(results)
    rows = combinations(layer=results.spec.layers, task=tasks_of(own, MEASURE), cell=own)
    for at in rows:
        at.shape = over_pairs(own, at.cell, at.task, at.layer)
        at.metrics, at.arrays = own[at.cell].metrics, own[at.cell].arrays

    def metric(what: str) -> Column:
        return lambda at: at.metrics.get(f"{at.task}, {what} in {at.layer}")

    def cosine(kind: int, row: int) -> Column:
        def cosine_of(at: Any) -> str | None:
            found = Interval(*map(float, at.arrays[f"{MEASURE}/{at.task}/{at.layer}/cosine"][kind, row]))
            return str(found) if np.isfinite(found.estimate) else None

        return cosine_of

    place: dict[str, Column] = {
        "layer": lambda at: at.layer,
        "task": lambda at: at.task,
        "arm": lambda at: at.cell.arm,
        "seed": lambda at: at.cell.seed,
    }
    losses = [
        tabulate(
            f"Median parallelogram loss in layer {layer}, and 95 % interval over word pairs",
            [at for at in rows if at.layer == layer],
            loss_columns(own, MEASURE, f"/{layer}"),
        )
        for layer in results.spec.layers
    ]
    tails: dict[str, Column] = {
        f"share below the standard model's {100 * NEAR:.0f} % quantile [95 % over word pairs]": lambda at: at.shape[
            "near zero"
        ],
        f"{100 * FAR:.0f} % quantile by median [95 % over word pairs]": lambda at: at.shape["tail"],
        f"share below the {100 * NEAR:.0f} % quantile of shuffled pairs": metric("near zero against shuffled"),
    }
    steps: dict[str, Column] = {
        "distance of partners by shuffled": metric("partners"),
        "one token, the same": metric("single partners"),
        "mean cosine": cosine(0, 0),
        "shuffled": cosine(0, 1),
        "one token, mean cosine": cosine(1, 0),
        "one token, shuffled": cosine(1, 1),
        "one token, quadruples": lambda at: at.metrics[f"{at.task}, one token"],
        "their median loss": metric("losses of one token"),
        "shuffled, median loss": metric("shuffled losses of one token"),
    }
    return [
        *losses,
        tabulate("Losses near zero, and their tail", rows, {**place, **tails}),
        tabulate("Distance of a pair's words, and mean cosine between the steps of pairs", rows, {**place, **steps}),
    ]


def figures(results: Results) -> dict[str, Picture]:
    """Draw the distribution of losses, the steps of the paper's task, and every task's losses and cosines."""
    own, layers = trained(results), results.spec.layers
    first, models = first_models(own), labeled(own)
    tasks, body = tasks_of(own, MEASURE), budget(results.spec)
    if not tasks or not first:
        return {}
    task = PAPERS_TASK if PAPERS_TASK in tasks else tasks[0]
    seed = " First seed." if len(models) > len(first) else ""
    return {
        "layers_losses": Picture(
            _draw_losses(models, tasks, layer_of(results.spec)),
            f"Parallelogram losses of all {len(tasks)} tasks together. Left: share of the quadruples with at most this "
            "loss, near zero; the paper's spike would lift the harmonic line above the standard one. Right: share with "
            "a larger loss by the median, on a logarithmic axis; the heavier tail lies above. Dashed: shuffled pairs. "
            f"One line per model. {body}",
        ),
        "layers_steps": Picture(
            draw_steps(first, task, layers),
            f"Word pairs of {task} in a layer's states, along the first two components of the states of all tokens and "
            "in units of their spread. An arrow runs from the first word of a pair, which is named, to the second; "
            "words that overlap have no arrow between them. Pairs are drawn at random, of words of one token each if "
            "there are enough of these. Titles: the median distance of a pair's words by that of different pairs' "
            "words, of pairs that do not end in the same token; and the mean cosine between two steps, of all pairs."
            f"{seed} {body}",
        ),
        "layers_tasks": Picture(
            draw_layer_tasks(first, tasks, layers),
            "Left: median parallelogram loss of each task. Right: mean cosine between the steps of two word pairs. "
            f"Filled: pairs as they are. Hollow: shuffled. Bars are 95 % intervals over word pairs.{seed} {body}",
        ),
    }


def _draw_losses(models: list[LabeledModel], tasks: list[str], layer: int) -> "Figure":
    titles = {"near": "Near zero", "tail": "Tail"}
    figure, panels = panels_in_a_row(titles, size=(10, 4.3))
    reach = 0.0
    for model in models:
        for what, line in (("null", "--"), ("losses", "-")):
            every = [model.arrays[f"{MEASURE}/{task}/{layer}/{what}"] for task in tasks]
            losses = np.sort(np.concatenate(every).astype(float))
            share = np.arange(1, len(losses) + 1) / len(losses)
            look: dict[str, Any] = {"color": model.color, "linestyle": line, "linewidth": 1.4}
            shown = np.unique(np.geomspace(1, len(losses), 400).astype(int)) - 1
            panels["near"].plot(losses[shown], share[shown], **look)
            kept = len(losses) - 1 - shown
            panels["tail"].plot(
                losses[kept] / max(np.median(losses), NEAREST), 1 - share[kept] + 1 / len(losses), **look
            )
            reach = max(reach, float(np.quantile(losses, 0.15))) if what == "losses" else reach
    panels["near"].set(
        xlim=(0, reach), ylim=(0, 0.16), xlabel="parallelogram loss", ylabel="share with at most this loss"
    )
    panels["tail"].set(xlim=(0.8, None), yscale="log", ylim=(1e-4, 0.6))
    panels["tail"].set(xlabel="loss by the median loss", ylabel="share with a larger loss")
    handles = [
        line_handle(f"{name}{words}", color, line)
        for name, color in {model.name: model.color for model in models}.items()
        for words, line in (("", "-"), (", shuffled pairs", "--"))
    ]
    headline(figure, f"How parallelogram losses are distributed in layer {layer}", handles)
    return figure


EXPERIMENT = view(
    gpt2.EXPERIMENT,
    "layers",
    "Word pairs inside the model",
    "App. C, Fig. 8 and 9",
    CLAIMS,
    measure=measure,
    keeps=(
        *(f"{MEASURE}/*/{what}" for what in ("sample", "drawn", "counts", "against_null", "cosine")),
        *(f"{MEASURE}/{PAPERS_TASK}/{what}" for what in ("single", "*/partners")),
    ),
    tables=tables,
    figures=figures,
)
