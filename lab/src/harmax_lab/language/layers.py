"""Parallelograms and parallel steps of word pairs in a language model's layers: a view of the runs of `gpt2`.

`harmax.inspect.layers` measures them and says how.
"""

from functools import partial
from typing import Any

import numpy as np

from harmax.analysis import Interval
from harmax.figures import Picture
from harmax.inspect.embedding import measured_tasks
from harmax.inspect.layers import FEWEST, MEASURE
from harmax.inspect.word_figures import draw_layer_tasks, draw_steps
from harmax_lab.kit.claims import Finding
from harmax_lab.kit.experiment import view
from harmax_lab.kit.judges import both, listed
from harmax_lab.kit.results import Results
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Column, Table, combinations, tabulate
from harmax_lab.language import gpt2, parallelograms
from harmax_lab.language.arms import HARMONIC, STANDARD, compares
from harmax_lab.language.gpt2 import ArmCell, LanguageSpec
from harmax_lab.language.parallelograms import ARMS, compare_tasks, tasks_of

PAPERS_LAYER, PAPERS_TASK = 6, "capitalize"


def measure(spec: LanguageSpec, cell: ArmCell, result: CellResult) -> dict[str, Any]:
    """Return the losses among words of one token, and the pairs as `pairs_of` keeps them."""
    found: dict[str, Any] = {}
    for task in measured_tasks(result.arrays, MEASURE):
        place = f"{MEASURE}/{task}"
        kept, shuffled = result.arrays[f"{place}/one_token"]
        found |= {f"{task}, one token": int(kept.sum()), **parallelograms.pairs_of(cell, result.arrays, place)}
        for layer in spec.layers if min(kept.sum(), shuffled.sum()) >= FEWEST else ():
            for what, rows in (("losses", kept), ("null", shuffled)):
                median = np.median(result.arrays[f"{place}/{layer}/{what}"][rows])
                found[f"{task}, one token, {what} in {layer}"] = float(median)
    return found


def layer_of(spec: LanguageSpec) -> int:
    """Return the layer that is judged: the paper's if it was measured, else the last that was."""
    return PAPERS_LAYER if PAPERS_LAYER in spec.layers else spec.layers[-1]


def cosines_of(results: Results, arm: str, task: str, layer: int, kind: int = 0) -> dict[int, list[Interval]]:
    """Return, by seed, the mean cosine of one arm's pairs and of shuffled pairs; kind 1: of words of one token."""
    found = results.where(arm=arm).array(f"{MEASURE}/{task}/{layer}/cosine").by("seed")
    return {seed: [Interval(*map(float, row)) for row in cosine[kind]] for seed, cosine in found.items()}


def _words(arms: dict[str, dict[int, list[Interval]]], layer: int, results: Results) -> str:
    shown = {arm: " and ".join(f"{own}, shuffled {other}" for own, other in arms[arm].values()) for arm in arms}
    return f"Mean cosine in layer {layer}: {listed(shown)} ({parallelograms.about(results)})."


def _judge_parallel(results: Results, kind: int) -> Finding:
    layer = layer_of(results.spec)
    arms = {arm: cosines_of(results, arm, PAPERS_TASK, layer, kind) for arm in ARMS}
    sides = [parallelograms.side_by_side(arms[HARMONIC][seed][0], one[0]) for seed, one in arms[STANDARD].items()]
    return Finding(
        parallelograms.agreed(sides),
        _words(arms, layer, results),
        {f"{arm}_{seed}": one[0].estimate for arm, found in arms.items() for seed, one in found.items()},
    )


def _judge_shuffled(results: Results) -> Finding:
    layer = layer_of(results.spec)
    arms = {arm: cosines_of(results, arm, PAPERS_TASK, layer) for arm in ARMS}
    sides = [parallelograms.side_by_side(*one) for found in arms.values() for one in found.values()]
    return Finding(
        both(*sides) if sides else None,
        _words(arms, layer, results),
        {f"{arm}_{seed}_shuffled": one[1].estimate for arm, found in arms.items() for seed, one in found.items()},
    )


def _judge_losses(results: Results) -> Finding:
    layer = layer_of(results.spec)
    return parallelograms.judge_ratios(results, rule=parallelograms.most, measure=MEASURE, below=f"/{layer}")


_claim = partial(compares, enough=parallelograms.real_words)
CLAIMS = (
    _claim(
        "parallel_in_layer",
        "In layer 6 the harmonic model's steps from a word to its capitalized form are more parallel than the standard "
        "one's: the mean cosine between two of them is higher.",
        partial(_judge_parallel, kind=0),
        paper="A picture of layer 6, in which the harmonic model's steps look alike.",
    ),
    _claim(
        "lower_in_most_tasks_in_layer",
        "In layer 6 the harmonic model's parallelogram loss is lower in more than half of the tasks.",
        _judge_losses,
        paper="Reported for the embedding. For layers there is only the picture.",
        control=True,
    ),
    _claim(
        "more_parallel_than_shuffled",
        "In both arms those steps are more parallel than steps to another word's capitalized form.",
        _judge_shuffled,
        paper="Not reported. Words on one side may lie apart from those on the other without any pairing.",
        control=True,
    ),
    _claim(
        "parallel_among_single_tokens",
        "Among words of one token, which all stand at the first position, the harmonic model's steps are more parallel "
        "too.",
        partial(_judge_parallel, kind=1),
        paper="Not reported. A token that stands first lies apart from all others.",
        control=True,
    ),
)


def tables(results: Results) -> list[Table]:
    """Tabulate losses and cosines in all layers."""
    own = results.where(arm=results.spec.arms)
    compared = {layer: compare_tasks(own, MEASURE, f"/{layer}") for layer in results.spec.layers}

    def cosine(kind: int, row: int) -> Column:
        def written(at: Any) -> str | None:
            found = cosines_of(own, at.cell.arm, at.task, at.layer, kind)[at.cell.seed][row]
            return str(found) if kind == 0 or np.isfinite(found.estimate) else None

        return written

    columns: dict[str, Column] = {
        "layer": lambda at: at.layer,
        "task": lambda at: at.task,
        "arm": lambda at: at.cell.arm,
        "seed": lambda at: at.cell.seed,
        "mean cosine": cosine(0, 0),
        "shuffled": cosine(0, 1),
        "one token, mean cosine": cosine(1, 0),
        "one token, shuffled": cosine(1, 1),
        "one token, quadruples": lambda at: own[at.cell].metrics[f"{at.task}, one token"],
        "their median loss": lambda at: own[at.cell].metrics.get(f"{at.task}, one token, losses in {at.layer}"),
        "shuffled, median loss": lambda at: own[at.cell].metrics.get(f"{at.task}, one token, null in {at.layer}"),
    }
    return [
        Table(
            "Median parallelogram loss of word pairs in the layers, and 95 % interval over word pairs, the paper's "
            "setting",
            tuple(
                {"layer": at, **row}
                for at, tasks in compared.items()
                for row in parallelograms.loss_rows(own, tasks, MEASURE)
            ),
        ),
        tabulate(
            "Mean cosine between the steps of two word pairs; losses among words of one token",
            combinations(layer=results.spec.layers, task=tasks_of(own, MEASURE), cell=own),
            columns,
        ),
    ]


def figures(results: Results) -> dict[str, Picture]:
    """Draw the steps of the paper's task, and every task's losses and cosines."""
    own, layers = results.where(arm=results.spec.arms), results.spec.layers
    tasks, first = tasks_of(own, MEASURE), parallelograms.first_models(own)
    if not tasks:
        return {}
    task = PAPERS_TASK if PAPERS_TASK in tasks else tasks[0]
    seed = " First seed." if len(own) > len(first) else ""
    return {
        "layers_steps": Picture(
            draw_steps(first, task, layers),
            f"Word pairs of {task} in a layer's states, along the first two components of the states of all tokens and "
            "in units of their spread. An arrow runs from the first word of a pair, which is named, to the second. "
            "Pairs are drawn at random, of words of one token each if there are enough of these. The panel's title has "
            "the mean cosine between the steps of two pairs, in all dimensions: of all pairs, and of pairs whose words "
            f"have one token each. In brackets: of shuffled pairs.{seed}",
        ),
        "layers_tasks": Picture(
            draw_layer_tasks(first, tasks, layers),
            "Left: median parallelogram loss of each task. Right: mean cosine between the steps of two word pairs. "
            f"Filled: pairs as they are. Hollow: shuffled. Bars are 95 % intervals over word pairs.{seed}",
        ),
    }


EXPERIMENT = view(
    gpt2.EXPERIMENT,
    "layers",
    "Parallelograms and parallel steps inside the model",
    "GPT-2: layer 6",
    CLAIMS,
    measure=measure,
    keeps=parallelograms.kept(MEASURE, "cosine"),
    tables=tables,
    figures=figures,
)
