"""Which cosets of S4 the permutations cluster by: a view of the runs of `algorithmic`.

Of all partitions of S4 into left or right cosets of a subgroup, the best is the one with the highest silhouette. The
best of many is high by luck alone, so each run is held against itself with its tokens dealt out at random.
"""

# K = 24 permutations, D features

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.analysis import BestCosets, coset_partitions, project, share_interval
from harmax.figures import Picture
from harmax_lab.algorithmic import planes, runs
from harmax_lab.algorithmic.measures import DRAWS, cosets_of, last_embedding, middle_seed
from harmax_lab.algorithmic.runs import (
    ARMS,
    AlgorithmicSpec,
    Basis,
    Results,
    by_seed,
    conclude_on,
    seeds_in_words,
)
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding, Verdict
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.experiment import Summary, view
from harmax_lab.kit.tables import Table
from harmax_lab.tasks import PROTOCOLS, find_task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TASK = "permutation"
SIGNIFICANT, OFTEN = 0.05, 0.5
KINDS = tuple(dict.fromkeys(found.subgroup.kind for found in coset_partitions(4)))
SPACES: dict[str, int | None] = {"plane of two components": 2, "whole space": None}
PLANE, SPACE = SPACES
# What the paper sees, by body: the subgroup's kind and the words.
SEEN = {
    "mlp": (
        "Klein four V4",
        "Harmonic MLPs often show 6 clusters of 4, the cosets of {e, (12)(34), (13)(24), (14)(23)}",
    ),
    "transformer": ("S3", "Harmonic transformers often show 4 clusters of 6, cosets of a point's stabilizer, S3"),
}

Found = Mapping[int, BestCosets | None]
"""The best cosets by seed; None for a diverged run."""


CLAIMS = tuple(
    Claim(
        f"{model}_{protocol}",
        f"{words}: of the partitions into cosets theirs is the best in the plane, with p < {SIGNIFICANT}, in more "
        f"than half of the runs ({protocol} protocol).",
        f"{words}; how often is not said, and more than half is our reading.",
        control=protocol == "matched",
    )
    for protocol in PROTOCOLS
    for model, (_, words) in SEEN.items()
)


def best_by_seed(results: Results, protocol: str, arm: tuple[str, str], space: str) -> Found:
    """Find the best cosets of every run of one model."""
    structure = find_task(TASK, protocol=protocol).structure
    embeddings = {seed: last_embedding(result) for seed, result in by_seed(results, protocol, TASK, arm).items()}
    return {
        seed: None if one is None else cosets_of(structure, one, components=SPACES[space])
        for seed, one in embeddings.items()
    }


def kinds_of(found: Found) -> Counter[str]:
    """Count the subgroups of the runs whose best cosets are better than chance."""
    return Counter(one.subgroup.kind for one in found.values() if one is not None and one.p_value < SIGNIFICANT)


def judge_often(results: Results, *, protocol: str, model: str) -> Finding:
    """Judge by the share of all runs, diverged ones among them, whose best cosets in the plane are the paper's.

    Where the share's interval holds one half, the runs cannot tell.
    """
    kind, _ = SEEN[model]
    found = {space: best_by_seed(results, protocol, (model, "harmonic"), space) for space in SPACES}
    counts = {space: kinds_of(every) for space, every in found.items()}
    total = len(found[PLANE])
    hits = counts[PLANE][kind]
    share = share_interval(hits, total)
    others = ", ".join(f"{name} {count}" for name, count in counts[PLANE].most_common() if name != kind)
    return Finding(
        share.above(OFTEN),
        f"{kind} in {hits} of {total} runs (share and 95 % interval {share}); the best cosets of "
        f"any subgroup beat chance in {counts[PLANE].total()}{': ' + others if others else ''}. In the whole space: "
        f"{kind} in {counts[SPACE][kind]}, any in {counts[SPACE].total()}.",
        {
            "runs": total,
            "hits_plane": hits,
            "hits_space": counts[SPACE][kind],
            **{f"plane_{name}": count for name, count in counts[PLANE].items()},
            **{f"space_{name}": count for name, count in counts[SPACE].items()},
        },
    )


def summarize(spec: AlgorithmicSpec, results: Results) -> Summary:
    """Judge both models under both protocols, and count subgroups."""
    verdicts = tuple(_judge(spec, results, model, protocol) for protocol in PROTOCOLS for model in SEEN)
    return Summary(verdicts, tuple(_table(spec, results, space) for space in SPACES))


def _judge(spec: AlgorithmicSpec, results: Results, model: str, protocol: str) -> Verdict:
    judge = partial(judge_often, protocol=protocol, model=model)
    basis = Basis(protocol, ((model, "harmonic"),), (TASK,), judge)
    return conclude_on(basis, f"{model}_{protocol}", spec, results)


def _table(spec: AlgorithmicSpec, results: Results, space: str) -> Table:
    rows = []
    for protocol in spec.protocols:
        for arm in ARMS:
            found = best_by_seed(results, protocol, arm, space)
            whole = [one for one in found.values() if one is not None]
            kinds = kinds_of(found)
            rows.append(
                {
                    "protocol": protocol,
                    "model": MODEL_STYLES[arm].label,
                    "runs": len(found),
                    "diverged": len(found) - len(whole),
                    "median silhouette": _median([one.score for one in whole]),
                    "chance, 95 % quantile": _median([one.null[0.95] for one in whole]),
                    f"runs with p < {SIGNIFICANT}": kinds.total(),
                    **{kind: kinds[kind] for kind in KINDS},
                }
            )
    return Table(f"Best cosets in the {space}: runs better than chance, by subgroup", tuple(rows))


def _median(values: list[float]) -> float | None:
    return float(np.median(values)) if values else None


def figures(spec: AlgorithmicSpec, results: Results) -> dict[str, Picture]:
    """Draw the clearest and the median run of each model, and every run's silhouette against chance."""
    drawn = {}
    for protocol in spec.protocols:
        if any((cell.protocol, cell.task) == (protocol, TASK) for cell in results):
            seeds = seeds_in_words(spec, results, protocol=protocol, task=TASK)
            drawn[f"cosets_{protocol}"] = Picture(
                draw_planes(protocol, results),
                f"Permutations in the plane of two principal components, {protocol} protocol, {seeds}: the one "
                "with the highest silhouette (above) and the one with the median (below; the lower of two, diverged "
                "runs lowest). Colors and hulls are the best cosets in this plane. p: how often the best "
                f"silhouette of the same points in random order is as high, in {DRAWS} draws.",
            )
    if any(cell.task == TASK for cell in results):
        drawn["cosets_silhouettes"] = Picture(
            draw_silhouettes(spec, results),
            f"Silhouette of the best cosets: a dot is a run ({seeds_in_words(spec, results, task=TASK)}; beside "
            f"one another in the order of seeds), hollow where p is {SIGNIFICANT} or more; a short line is their "
            "median. Above stands how many have a smaller p. Gray: what the best cosets of the same points in "
            "random order exceed in 5 % of the draws, median over runs as a line, range as a band.",
        )
    return drawn


def draw_planes(protocol: str, results: Results) -> "Figure":
    """Draw a column a model: its clearest run and its median one."""
    figure = drawing.new_figure(10, 6.1)
    grid = figure.subplots(2, len(ARMS), squeeze=False)
    for column, arm in zip(grid.T, ARMS, strict=True):
        found = best_by_seed(results, protocol, arm, PLANE)
        scores = {seed: None if one is None else one.score for seed, one in found.items()}
        if not scores:
            for axes in column:
                planes.draw_nothing(axes, "no run finished")
            continue
        clearest = max(scores, key=lambda seed: -1.0 if (score := scores[seed]) is None else score)
        for axes, seed in zip(column, (clearest, middle_seed(scores)), strict=True):
            _draw_run(axes, protocol, results, arm, seed, found[seed])
    for axes, arm in zip(grid[0], ARMS, strict=True):
        axes.set_title(f"{MODEL_STYLES[arm].label}\n{axes.get_title(loc='left')}", fontsize=9)
    for axes, words in zip(grid[:, 0], ("clearest run", "median run"), strict=True):
        axes.set_ylabel(words)
    return figure


def _draw_run(
    axes: "Axes", protocol: str, results: Results, arm: tuple[str, str], seed: int, best: BestCosets | None
) -> None:
    result = by_seed(results, protocol, TASK, arm)[seed]
    embedding = last_embedding(result)
    if embedding is None or best is None:
        planes.draw_nothing(axes, f"diverged at epoch {result.metrics['diverged_at']}")
        return
    structure = find_task(TASK, protocol=protocol).structure
    planes.draw_tokens(axes, project(embedding), planes.look_of(structure, partition=best.labels), size=5)
    side = "" if best.side == "both" else f", {best.side}"
    axes.set_title(f"{best.subgroup.name}{side}\nsilhouette {best.score:.2f}, p = {best.p_value:.2g}", fontsize=9)


def draw_silhouettes(spec: AlgorithmicSpec, results: Results) -> "Figure":
    """Draw a panel a protocol and space, a column a model, a dot a run."""
    figure = drawing.new_figure(10, 3.3 * len(spec.protocols))
    grid = figure.subplots(len(spec.protocols), len(SPACES), sharex=True, sharey=True, squeeze=False)
    for row, protocol in zip(grid, spec.protocols, strict=True):
        for axes, space in zip(row, SPACES, strict=True):
            for place, arm in enumerate(ARMS):
                found = best_by_seed(results, protocol, arm, space)
                whole = [one for one in found.values() if one is not None]
                _draw_strip(axes, place, whole, MODEL_STYLES[arm].color)
                if found:
                    words = f"{kinds_of(found).total()} of {len(found)}"
                    place_of = {"transform": axes.get_xaxis_transform(), "ha": "center", "fontsize": 8}
                    axes.text(place, 0.95, words, color="#555555", **place_of)
                if lost := len(found) - len(whole):
                    below = axes.get_xaxis_transform()
                    axes.text(
                        place, 0.01, f"{lost} diverged", transform=below, ha="center", color="#777777", fontsize=8
                    )
            axes.set(title=f"{space}, {protocol} protocol", xlim=(-0.5, len(ARMS) - 0.5))
            axes.set_ylim(top=1.15)  # a silhouette is at most 1; above stand the counts
            axes.set_xticks(range(len(ARMS)), labels=[MODEL_STYLES[arm].label.replace(" ", "\n") for arm in ARMS])
            axes.grid(False, axis="x")
        row[0].set_ylabel("silhouette of the best cosets")
    return figure


def _draw_strip(axes: "Axes", place: float, found: list[BestCosets], color: str) -> None:
    if not found:
        return
    chance = [one.null[0.95] for one in found]
    side = [place - 0.36, place + 0.36]
    axes.fill_between(side, min(chance), max(chance), color="#999999", alpha=0.25, linewidth=0)
    axes.plot(side, [np.median(chance)] * 2, color="#777777", linewidth=1.2)
    # Spread in a fixed order instead of at random: the same runs give the same picture.
    beside = place + 0.24 * np.linspace(-1, 1, max(len(found), 2))[: len(found)]
    style: dict[str, Any] = {"color": color, "markersize": 4.5, "markeredgewidth": 0.9, "linestyle": "none"}
    for x, one in zip(beside, found, strict=True):
        axes.plot(x, one.score, "o", markerfacecolor=color if one.p_value < SIGNIFICANT else "white", **style)
    axes.plot(place, np.median([one.score for one in found]), "_", color=color, markersize=26, markeredgewidth=2.2)


EXPERIMENT = view(
    runs.EXPERIMENT,
    name="cosets",
    title="Which cosets the permutations cluster by",
    figure="Section on S4; appendix",
    claims=CLAIMS,
    old_summarize=summarize,
    old_figures=figures,
)
