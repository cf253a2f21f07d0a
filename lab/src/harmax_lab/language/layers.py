"""What a language model's layers make of word pairs: parallelograms and parallel steps, a view of `gpt2`.

`harmax.inspect.layers` measures them and says how.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from harmax.analysis import Interval
from harmax.figures import Picture
from harmax.inspect.layers import FEWEST, MEASURE
from harmax.inspect.word_figures import draw_layer_tasks, draw_steps
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.experiment import Summary
from harmax_lab.kit.tables import Table
from harmax_lab.language.arms import HARMONIC, STANDARD
from harmax_lab.language.gpt2 import ArmCell, LanguageSpec, measured_view
from harmax_lab.language.measured import Results, by_seed, tasks_of
from harmax_lab.language.parallelogram_figures import first_of
from harmax_lab.language.parallelograms import (
    HIGHER,
    LOWER,
    UNDECIDED,
    Comparisons,
    Judge,
    Tasks,
    agreed,
    compare,
    conclude_all,
    find_most,
    models,
    side_by_side,
    task_rows,
)

PAPERS_LAYER, PAPERS_TASK = 6, "capitalize"


def layer_of(spec: LanguageSpec) -> int:
    """Return the layer that is judged: the paper's where it was measured, else the last that was."""
    return PAPERS_LAYER if PAPERS_LAYER in spec.layers else spec.layers[-1]


def compare_layer(results: Results, layer: int) -> dict[str, Comparisons]:
    """Compare the arms in every task in one layer, in the paper's setting."""
    found = {}
    for task in tasks_of(results, MEASURE):
        both = compare(results, f"{MEASURE}/{task}/{layer}", f"{MEASURE}/{task}/pairs")
        if both is not None:
            found[task] = both
    return found


def cosines_of(
    results: Results, arm: str, task: str, layer: int, *, one_token: bool = False
) -> dict[int, list[Interval]]:
    """Return, by seed, the mean cosine of one arm's pairs and of shuffled pairs."""
    key = f"{MEASURE}/{task}/{layer}/cosine"
    found = by_seed(results, arm, key)
    return {seed: [Interval(*map(float, row)) for row in arrays[key][int(one_token)]] for seed, arrays in found.items()}


CLAIMS = (
    Claim(
        "parallel_in_layer",
        "In layer 6 the harmonic model's steps from a word to its capitalized form are more parallel than the standard "
        "one's: the mean cosine between two of them is higher.",
        "A picture of layer 6, in which the harmonic model's steps look alike.",
    ),
    Claim(
        "lower_in_most_tasks_in_layer",
        "In layer 6 the harmonic model's parallelogram loss is lower in more than half of the tasks.",
        "Reported for the embedding; for layers there is the picture alone.",
        control=True,
    ),
    Claim(
        "more_parallel_than_shuffled",
        "In both arms those steps are more parallel than steps to another word's capitalized form.",
        "Not reported: words on one side may lie apart from those on the other without any pairing.",
        control=True,
    ),
    Claim(
        "parallel_among_single_tokens",
        "Of words of one token, which all stand at the first place, the harmonic model's steps are more parallel too.",
        "Not reported: a token that stands first is apart from all others.",
        control=True,
    ),
)


def judges_of(layer: int) -> dict[str, Judge]:
    """Return the judge of each claim, in one layer."""
    return {
        "parallel_in_layer": lambda tasks, results: judge_parallel(results, layer, one_token=False),
        "lower_in_most_tasks_in_layer": lambda tasks, results: judge_losses(tasks, results, layer),
        "more_parallel_than_shuffled": lambda tasks, results: judge_shuffled(results, layer),
        "parallel_among_single_tokens": lambda tasks, results: judge_parallel(results, layer, one_token=True),
    }


def judge_parallel(results: Results, layer: int, *, one_token: bool) -> Finding:
    """Judge by intervals over pairs that do not overlap, on every seed."""
    arms = {arm: cosines_of(results, arm, PAPERS_TASK, layer, one_token=one_token) for arm in (STANDARD, HARMONIC)}
    seeds = sorted(arms[STANDARD].keys() & arms[HARMONIC].keys())
    sides = [side_by_side(arms[HARMONIC][seed][0], arms[STANDARD][seed][0]) for seed in seeds]
    words = "; ".join(
        f"{arm} {' and '.join(_of_shuffled(found[seed]) for seed in seeds)}" for arm, found in arms.items()
    )
    return Finding(
        {HIGHER: True, LOWER: False, UNDECIDED: None}[agreed(sides)],
        f"Mean cosine in layer {layer}: {words} ({models(results)}).",
        {f"{arm}_{seed}": found[seed][0].estimate for arm, found in arms.items() for seed in seeds},
    )


def judge_shuffled(results: Results, layer: int) -> Finding:
    """Judge both arms by intervals of pairs and shuffled pairs that do not overlap."""
    arms = {arm: cosines_of(results, arm, PAPERS_TASK, layer) for arm in (STANDARD, HARMONIC)}
    sides = [side_by_side(*one) for found in arms.values() for one in found.values()]
    words = "; ".join(f"{arm} {' and '.join(map(_of_shuffled, found.values()))}" for arm, found in arms.items())
    return Finding(
        False if LOWER in sides else True if set(sides) == {HIGHER} else None,
        f"Mean cosine in layer {layer}: {words} ({models(results)}).",
        {f"{arm}_{seed}_shuffled": one[1].estimate for arm, found in arms.items() for seed, one in found.items()},
    )


def judge_losses(tasks: Tasks, results: Results, layer: int) -> Finding:
    """Judge by the number of ratios whose interval lies below 1."""
    words = "; ".join(
        f"{task} {' and '.join(str(one.ratio) for one in found.between.values())}" for task, found in tasks.items()
    )
    sides = {task: found.side for task, found in tasks.items()}
    return find_most(sides, f"Harmonic median by standard median in layer {layer}: {words}", results)


def _of_shuffled(both: Sequence[Interval]) -> str:
    return f"{both[0]}, shuffled {both[1]}"


def summarize(spec: LanguageSpec, results: Results) -> Summary:
    """Judge every claim in the paper's layer, and tabulate all layers."""
    layers = {layer: compare_layer(results, layer) for layer in spec.layers}
    losses = Table(
        "Median parallelogram loss of word pairs in the layers, and 95 % interval over word pairs, the paper's setting",
        tuple(
            {"layer": layer, **row}
            for layer, tasks in layers.items()
            for task, found in tasks.items()
            for row in task_rows(results, task, found, MEASURE)
        ),
    )
    cosines = Table(
        "Mean cosine between the steps of two word pairs; losses among words of one token",
        tuple(_cosine_row(results, layer, task, cell) for layer in spec.layers for task, cell in _measured(results)),
    )
    layer = layer_of(spec)
    return Summary(conclude_all(spec, results, layers[layer], CLAIMS, judges_of(layer)), (losses, cosines))


def _measured(results: Results) -> Iterable[tuple[str, ArmCell]]:
    for task in tasks_of(results, MEASURE):
        for cell in results:
            yield task, cell


def _cosine_row(results: Results, layer: int, task: str, cell: ArmCell) -> dict[str, Any]:
    arrays, place = results[cell].arrays, f"{MEASURE}/{task}"
    every, alone = (cosines_of(results, cell.arm, task, layer, one_token=one)[cell.seed] for one in (False, True))
    kept, shuffled = arrays[f"{place}/one_token"]
    enough = min(kept.sum(), shuffled.sum()) >= FEWEST
    medians = [
        float(np.median(arrays[f"{place}/{layer}/{what}"][rows])) if enough else None
        for what, rows in (("losses", kept), ("null", shuffled))
    ]
    return {
        "layer": layer,
        "task": task,
        "arm": cell.arm,
        "seed": cell.seed,
        "mean cosine": str(every[0]),
        "shuffled": str(every[1]),
        "one token, mean cosine": str(alone[0]) if np.isfinite(alone[0].estimate) else None,
        "one token, shuffled": str(alone[1]) if np.isfinite(alone[1].estimate) else None,
        "one token, quadruples": int(kept.sum()),
        "their median loss": medians[0],
        "shuffled, median loss": medians[1],
    }


def figures(spec: LanguageSpec, results: Results) -> dict[str, Picture]:
    """Draw the steps of the paper's task, and every task's losses and cosines."""
    tasks, first = tasks_of(results, MEASURE), first_of(spec, results)
    if not tasks:
        return {}
    task = PAPERS_TASK if PAPERS_TASK in tasks else tasks[0]
    seed = " First seed." if len(results) > len(first) else ""
    return {
        "layers_steps": Picture(
            draw_steps(first, task, spec.layers),
            f"Word pairs of {task} in a layer's states, along the first two components of the states of all tokens and "
            "in units of their spread: an arrow runs from the first word of a pair, which is named, to the second. "
            "Pairs are drawn at random, of words of one token each where there are enough of these. In the panel's "
            "title: the mean cosine between the steps of two pairs, in all dimensions, of all pairs and of those whose "
            f"words are of one token each; in brackets, of shuffled pairs.{seed}",
        ),
        "layers_tasks": Picture(
            draw_layer_tasks(first, tasks, spec.layers),
            "Left: median parallelogram loss of each task. Right: mean cosine between the steps of two word pairs. "
            f"Filled: pairs as they are; hollow: shuffled. Bars are 95 % intervals over word pairs.{seed}",
        ),
    }


EXPERIMENT = measured_view(
    name="layers",
    title="Parallelograms and parallel steps inside the model",
    figure="GPT-2: layer 6",
    claims=CLAIMS,
    summarize=summarize,
    figures=figures,
)
