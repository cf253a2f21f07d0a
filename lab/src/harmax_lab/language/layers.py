"""What a language model's layers make of word pairs: parallelograms and parallel differences, a view of `gpt2`.

Every word stands alone in the model, without a blank or a token before it; its state in a layer is that of its last
token. As in the embedding, the paper's setting looks along the two widest components of the whole vocabulary and
measures in units of its spread: here these are of the states of all tokens, each alone in the model. Layer k is
`hidden_states[k]` of transformers: 0 enters the first block, and the last one has passed the final norm.

A token that stands first attends to nothing but itself, and its state is apart from all others (in GPT-2s by much). A
word of one token is such, the end of a longer one is not. So everything is also said of words of one token alone.

    layers/<task>/pairs               (Q, 2) int32, as in embedding.py
    layers/<task>/counts              (3,) int32: quadruples, different word pairs and different words in them
    layers/<task>/one_token           (2, Q) bool: whether all four words are of one token, of quadruples and null
    layers/<task>/shown_words         the pairs that are drawn, as text
    layers/<task>/<k>/losses, null, against_null    as in embedding.py
    layers/<task>/<k>/cosine          (2, 2, 3) float32: all pairs, those of one token each; as they are, shuffled;
                                      mean cosine between two pairs' differences, and its 95 % interval over pairs
    layers/<task>/<k>/shown_plane     (N, 2, 2) float32: both words of those pairs, in units of sigma

A layer of twelve tasks takes about 1 MiB, what the layers share another 1.2 MiB.
"""

# V tokens, W words, T tokens of a word, D features, P pairs, Q quadruples, N shown pairs, B draws

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from harmax.analysis import PCA, Interval, parallelogram_space, pca
from harmax.data.words import Encoding
from harmax.figures import Picture
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.experiment import Progress, Summary
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table
from harmax_lab.language import runs
from harmax_lab.language.embedding import (
    Results,
    by_seed,
    comparison,
    count_quadruples,
    draw_quadruples,
    from_text_array,
    measure_losses,
    tasks_of,
    to_text_array,
)
from harmax_lab.language.parallelogram_figures import color_of, first_of, put_labels, square_window
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
from harmax_lab.language.spec import HARMONIC, STANDARD, ArmCell, LanguageSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from transformers import PreTrainedModel

MEASURE = "layers"
PAPERS_LAYER, PAPERS_TASK = 6, "capitalize"
TOKENS = 8192  # in the model at a time
SHOWN = 16  # pairs drawn
FEWEST = 8  # pairs of one token each that are worth drawing, and worth a number, by themselves
DRAWS = 1000


def measure_layers(
    model: "PreTrainedModel",
    pairs: Mapping[str, Sequence[tuple[str, str]]],
    encoding: Encoding,
    *,
    layers: Sequence[int],
    quadruples: int,
    seed: int,
    device: str,
    progress: Progress | None = None,
) -> dict[str, np.ndarray]:
    """Measure the states of word pairs in some layers of a causal model of transformers.

    The whole vocabulary passes through the model, token by token: cheap on a GPU, and for small models on a CPU.

    Args:
        model: ours or another one that gives `hidden_states`; it is moved to the device and left in the mode it was in.
        pairs: word pairs by task.
        encoding: of the model. Where it has `n_vocab`, rows of the model beyond that are padding.
        layers: which `hidden_states`.
        quadruples: how many a task at most.
        seed: of the draws.
        device: where to compute.
        progress: told how far this is.

    Returns:
        Arrays by key, as listed above.
    """
    deepest = model.config.num_hidden_layers
    if not layers or not all(0 <= layer <= deepest for layer in layers):
        raise ValueError(f"`layers` must be one or more of 0 to {deepest}, got {tuple(layers)}; choose among these.")
    tell = progress or (lambda fraction, message="", /: None)
    vocabulary = min(model.config.vocab_size, getattr(encoding, "n_vocab", model.config.vocab_size))
    tasks, sequences = _spell(pairs, encoding, vocabulary)
    tell(0.0, "every token, and every word, alone in the model")
    states = {layer: (x, _fit(x, vocabulary)) for layer, x in last_states(model, sequences, layers, device).items()}
    found: dict[str, np.ndarray] = {}
    for done, (task, pairs_P2) in enumerate(tasks.items()):
        tell((1 + done) / (1 + len(tasks)), f"layers, {task}")
        drawn = draw_quadruples(pairs_P2, quadruples, seed)
        alone_P = (pairs_P2 < vocabulary).all(1)
        shown_N = _choose(pairs_P2, alone_P, seed)
        measured = count_quadruples(drawn.real)
        measured["one_token"] = np.stack([(one.tokens < vocabulary).all(1) for one in drawn])
        measured["shown_words"] = to_text_array([list(pairs[task][row]) for row in shown_N])
        for layer, (x_WD, fitted) in states.items():
            space = parallelogram_space(x_WD, drawn.real.tokens, fitted=fitted)
            sigma = np.sqrt(space.squares["vocabulary", "vocabulary"][:2].sum())
            cosines = [_cosines(x_WD, pairs_P2[kept], seed) for kept in (np.ones_like(alone_P), alone_P)]
            measured |= {f"{layer}/{what}": array for what, array in measure_losses(space, drawn).items()}
            measured[f"{layer}/cosine"] = np.array(cosines)
            measured[f"{layer}/shown_plane"] = (space.coordinates(pairs_P2[shown_N]) / sigma).astype(np.float32)
        found |= {f"{MEASURE}/{task}/{what}": array for what, array in measured.items()}
    tell(1.0)
    return found


def _spell(
    pairs: Mapping[str, Sequence[tuple[str, str]]], encoding: Encoding, vocabulary: int
) -> tuple[dict[str, np.ndarray], list[tuple[int, ...]]]:
    """Return each task's pairs as rows (P, 2), and the tokens of each row: the whole vocabulary, then longer words."""
    spelled = {word: tuple(encoding.encode(word)) for both in pairs.values() for pair in both for word in pair}
    for word, tokens in spelled.items():
        if not tokens or max(tokens) >= vocabulary:
            raise ValueError(
                f"words must have one or more tokens below {vocabulary}, got {tokens} for {word!r}; encode with the "
                "vocabulary of this model."
            )
    longer = dict.fromkeys(tokens for tokens in spelled.values() if len(tokens) > 1)
    sequences = [*((token,) for token in range(vocabulary)), *longer]
    row = {tokens: place for place, tokens in enumerate(sequences)}
    return {
        task: np.array([[row[spelled[w]] for w in pair] for pair in both]) for task, both in pairs.items()
    }, sequences


@torch.no_grad()
def last_states(
    model: "PreTrainedModel", sequences: Sequence[tuple[int, ...]], layers: Sequence[int], device: str
) -> dict[int, np.ndarray]:
    """Return the state of the last token of each sequence in some layers, by layer (W, D) float32.

    Sequences of one length go together, so that nothing is padded.
    """
    by_length: dict[int, list[int]] = {}
    for row, tokens in enumerate(sequences):
        by_length.setdefault(len(tokens), []).append(row)
    body = model.base_model.to(device)
    found = {layer: np.empty((len(sequences), model.config.hidden_size), dtype=np.float32) for layer in layers}
    trained = body.training
    body.eval()
    try:
        for length, rows in sorted(by_length.items()):
            size = max(1, TOKENS // length)
            for part in (rows[start : start + size] for start in range(0, len(rows), size)):
                tokens_BT = torch.tensor([sequences[row] for row in part], device=device)
                states = body(tokens_BT, use_cache=False, output_hidden_states=True).hidden_states
                for layer in layers:
                    found[layer][part] = states[layer][:, -1].float().cpu().numpy()
    finally:
        body.train(trained)
    return found


def _fit(x_WD: np.ndarray, vocabulary: int) -> PCA:
    """Find the components of the rows that are single tokens."""
    fitted = pca(x_WD[:vocabulary])
    # A space takes all of its points for the vocabulary; the spread must stay that of the tokens.
    whole = len(x_WD) / (len(x_WD) - 1) * (vocabulary - 1) / vocabulary
    return fitted._replace(variances=fitted.variances * whole)


def mean_cosine(differences_PD: np.ndarray, *, seed: int = 0, draws: int = DRAWS) -> Interval:
    """Return the mean cosine between the differences of two different pairs, with its 95 % interval over pairs.

    >>> mean_cosine(np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]))
    Interval(estimate=1.0, low=1.0, high=1.0)
    """
    lengths = np.linalg.norm(differences_PD, axis=1, keepdims=True)
    unit_PD = (differences_PD / np.where(lengths > 0, lengths, 1))[lengths[:, 0] > 0].astype(np.float64)
    count = len(unit_PD)
    if count < 3:
        return Interval(np.nan, np.nan, np.nan)
    picked = np.random.default_rng(seed).integers(count, size=(draws, count)) + count * np.arange(draws)[:, None]
    times_BP = np.bincount(picked.ravel(), minlength=draws * count).reshape(draws, count)
    times_BP = np.concatenate([np.ones((1, count)), times_BP[(times_BP > 0).sum(1) > 1]])
    # A pair drawn twice says nothing about two pairs: its cosine with itself is taken out.
    itself_B = np.square(times_BP).sum(1)
    cosines_B = (np.square(times_BP @ unit_PD).sum(1) - itself_B) / (np.float64(count) ** 2 - itself_B)
    low, high = np.quantile(cosines_B[1:], [0.025, 0.975], method="nearest")
    return Interval(*(round(float(value), 12) for value in (cosines_B[0], low, high)))


def _cosines(x_WD: np.ndarray, pairs_P2: np.ndarray, seed: int) -> np.ndarray:
    """Return the mean cosine of the pairs' differences and of those with shuffled partners, (2, 3)."""
    different_P2 = pairs_P2[pairs_P2[:, 0] != pairs_P2[:, 1]]
    # Round a circle of all pairs, so that none keeps its partner.
    order = np.random.default_rng(seed).permutation(len(different_P2))
    partners = different_P2[:, 1].copy()
    partners[order] = different_P2[np.roll(order, 1), 1]
    seconds = (different_P2[:, 1], partners)
    return np.array(
        [mean_cosine(x_WD[second] - x_WD[different_P2[:, 0]], seed=seed) for second in seconds], dtype=np.float32
    )


def _choose(pairs_P2: np.ndarray, alone_P: np.ndarray, seed: int) -> np.ndarray:
    """Pick pairs to be drawn, in their order: such of one token a word where there are enough of them."""
    different_P = pairs_P2[:, 0] != pairs_P2[:, 1]
    preferred = np.flatnonzero(different_P & alone_P)
    pool = preferred if len(preferred) >= FEWEST else np.flatnonzero(different_P)
    return np.sort(np.random.default_rng(seed).permutation(pool)[:SHOWN])


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
            draw_steps(spec, task, first),
            f"Word pairs of {task} in a layer's states, along the first two components of the states of all tokens and "
            "in units of their spread: an arrow runs from the first word of a pair, which is named, to the second. "
            "Pairs are drawn at random, of words of one token each where there are enough of these. In the panel's "
            "title: the mean cosine between the steps of two pairs, in all dimensions, of all pairs and of those whose "
            f"words are of one token each; in brackets, of shuffled pairs.{seed}",
        ),
        "layers_tasks": Picture(
            draw_tasks(spec, tasks, first),
            "Left: median parallelogram loss of each task. Right: mean cosine between the steps of two word pairs. "
            f"Filled: pairs as they are; hollow: shuffled. Bars are 95 % intervals over word pairs.{seed}",
        ),
    }


def draw_steps(spec: LanguageSpec, task: str, first: Mapping[str, CellResult]) -> "Figure":
    """Draw a row a layer, arms side by side."""
    rows = len(spec.layers)
    figure = drawing.new_figure(5.2 * len(first), 0.4 + 5.1 * rows)
    grid = figure.subplots(rows, len(first), squeeze=False)
    for line, layer in zip(grid, spec.layers, strict=True):
        for axes, (arm, result) in zip(line, first.items(), strict=True):
            place = f"{MEASURE}/{task}"
            words = [pair[0] for pair in from_text_array(result.arrays[f"{place}/shown_words"])]
            every, alone = (_shown_cosine(rows) for rows in result.arrays[f"{place}/{layer}/cosine"])
            _draw_arrows(axes, result.arrays[f"{place}/{layer}/shown_plane"], words, color_of(arm))
            axes.set_title(f"{arm}, layer {layer}\nmean cosine {every}; one token each {alone}")
            axes.set_xlabel("first component, in units of the spread")
        line[0].set_ylabel("second component")
    return figure


def _shown_cosine(both: np.ndarray) -> str:
    return f"{both[0, 0]:.2f} ({both[1, 0]:.2f})" if np.isfinite(both).all() else "unknown"


def _draw_arrows(axes: "Axes", plane_N22: np.ndarray, words: Sequence[str], color: str) -> None:
    steps = plane_N22.astype(float)
    low, width = square_window(axes, steps.reshape(-1, 2), room=1.25)
    for tail, tip in steps:
        look: dict[str, Any] = {"arrowstyle": "-|>", "color": color, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", tip, tail, arrowprops=look | {"mutation_scale": 8})
    axes.plot(*steps[:, 0].T, "o", color="white", markeredgecolor=color, markersize=4, zorder=4)
    lines = np.linspace(steps[:, 0], steps[:, 1], 12).reshape(-1, 2)
    put_labels(axes, (steps[:, 0] - low) / width, words, (lines - low) / width, letter=0.0145, row=0.031)


def draw_tasks(spec: LanguageSpec, tasks: Sequence[str], first: Mapping[str, CellResult]) -> "Figure":
    """Draw a row a layer: losses and cosines, a line a task."""
    figure = drawing.new_figure(9.5, (0.8 + 0.36 * len(tasks)) * len(spec.layers) + 0.5)
    grid = figure.subplots(len(spec.layers), 2, squeeze=False, sharey=True)
    for (losses, cosines), layer in zip(grid, spec.layers, strict=True):
        for shift, (arm, result) in zip(np.linspace(-0.19, 0.19, len(first)), first.items(), strict=True):
            for row, task in enumerate(tasks):
                place = f"{MEASURE}/{task}/{layer}"
                against = comparison(result.arrays[f"{place}/against_null"])
                cosine = [Interval(*map(float, found)) for found in result.arrays[f"{place}/cosine"][0]]
                for axes, both in ((losses, (against.first, against.second)), (cosines, cosine)):
                    for found, face, lower in zip(both, (color_of(arm), "white"), (-0.08, 0.08), strict=True):
                        _draw_interval(axes, found, row + shift + lower, color_of(arm), face)
        losses.set(title=f"layer {layer}: median parallelogram loss", ylim=(len(tasks) - 0.4, -0.6))
        losses.set_xlim(left=0)
        cosines.set_title("mean cosine between steps")
        cosines.axvline(0, color="#444444", linewidth=0.8, zorder=1)
        losses.set_yticks(range(len(tasks)), labels=list(tasks))
    handles = [
        drawing.mark_handle(f"{arm}{words}", "o", color_of(arm), face=face)
        for arm in first
        for words, face in (("", None), (", shuffled pairs", "white"))
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def _draw_interval(axes: "Axes", found: Interval, y: float, color: str, face: str) -> None:
    axes.plot([found.low, found.high], [y, y], color=color, linewidth=1.3, zorder=2)
    axes.plot(found.estimate, y, "o", color=color, markerfacecolor=face, markersize=5, zorder=3)


EXPERIMENT = runs.measured_view(
    name="layers",
    title="Parallelograms and parallel steps inside the model",
    figure="GPT-2: layer 6",
    claims=CLAIMS,
    summarize=summarize,
    figures=figures,
)
