"""Which cosets of S4 the permutations cluster by: a view of the runs of `algorithmic`.

Of all partitions of S4 into left or right cosets of a subgroup, the best is the one with the highest silhouette. The
best of many is high by luck alone, so each run is compared with itself after its tokens are shuffled.
"""

from collections import Counter
from typing import Any

import numpy as np

from harmax.analysis import coset_partitions, share_interval
from harmax.figures import Picture
from harmax_lab.algorithmic import planes, runs
from harmax_lab.algorithmic.measures import DRAWS, cosets_of, last_embedding, middle_seed
from harmax_lab.algorithmic.runs import ARMS, AlgorithmicSpec
from harmax_lab.algorithmic.training import RunCell, task_of
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Finding
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.judges import SIGNIFICANT
from harmax_lab.kit.results import Results, where
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table
from harmax_lab.tasks import PROTOCOLS, find_task

TASK, OFTEN = "permutation", 0.5
KINDS = tuple(dict.fromkeys(found.subgroup.kind for found in coset_partitions(4)))
SPACES: dict[str, tuple[str, int | None]] = {"plane": ("plane of two components", 2), "space": ("whole space", None)}
# What the paper sees, by body: the subgroup's kind and the words.
SEEN = {
    "mlp": (
        "Klein four V4",
        "Harmonic MLPs often show 6 clusters of 4, the cosets of {e, (12)(34), (13)(24), (14)(23)}",
    ),
    "transformer": ("S3", "Harmonic transformers often show 4 clusters of 6, cosets of a point's stabilizer, S3"),
}


def measure(spec: AlgorithmicSpec, cell: RunCell, result: CellResult) -> dict[str, Any]:
    """Return the best cosets of a permutation run in the plane and in the whole space, and what chance gives."""
    found: dict[str, Any] = {}
    for space, (_, components) in SPACES.items() if cell.task == TASK else ():
        embedding = last_embedding(result)
        best = None if embedding is None else cosets_of(task_of(cell).structure, embedding, components=components)
        found[f"{space}_subgroup"] = best and best.subgroup.kind
        found[f"{space}_silhouette"] = best and best.score
        found[f"{space}_p"] = best and best.p_value
        found[f"{space}_chance"] = best and best.null[0.95]
    return found


def _kinds(results: Results, space: str) -> Counter[str]:
    """Count the subgroups of the runs whose best cosets are better than chance."""
    kinds, chances = results.metric(f"{space}_subgroup"), results.metric(f"{space}_p")
    return Counter(kind for kind, p in zip(kinds, chances, strict=True) if p is not None and p < SIGNIFICANT)


def _judge_often(results: Results) -> Finding:
    kind, _ = SEEN[results.distinct("model")[0]]
    counts, total = {space: _kinds(results, space) for space in SPACES}, len(results)
    plane, space = counts["plane"], counts["space"]
    share = share_interval(plane[kind], total)
    others = ", ".join(f"{name} {count}" for name, count in plane.most_common() if name != kind)
    return Finding(
        share.above(OFTEN),
        f"{kind} in {plane[kind]} of {total} runs (share and 95 % interval {share}). The best cosets of any subgroup "
        f"beat chance in {plane.total()}{': ' + others if others else ''}. In the whole space: {kind} in "
        f"{space[kind]}, any in {space.total()}.",
        {
            "runs": total,
            **{f"hits_{name}": found[kind] for name, found in counts.items()},
            **{f"{name}_{group}": count for name, found in counts.items() for group, count in found.items()},
        },
    )


CLAIMS = tuple(
    runs.claim(
        f"{model}_{protocol}",
        f"{words}: in more than half of the runs these are the best of all cosets in the plane, with p < {SIGNIFICANT} "
        f"({protocol} protocol).",
        f"{words}. The paper does not say how often; more than half is our reading.",
        where(protocol=protocol, arm=(model, "harmonic"), task=TASK),
        _judge_often,
        control=protocol == "matched",
    )
    for protocol in PROTOCOLS
    for model, (_, words) in SEEN.items()
)


def tables(results: Results) -> list[Table]:
    """Count subgroups, one table per space."""
    title = "Best cosets in the {}: runs better than chance, by subgroup"
    places = runs.places(results, task=(TASK,), arm=ARMS)
    return [Table(title.format(words), tuple(_row(at, space) for at in places)) for space, (words, _) in SPACES.items()]


def _row(at: Any, space: str) -> dict[str, Any]:
    kinds = _kinds(at.own, space)
    scores, chance = (at.own.metric(f"{space}_{name}").present.values for name in ("silhouette", "chance"))
    return {
        "protocol": at.protocol,
        "model": MODEL_STYLES[at.arm].label,
        "runs": len(at.own),
        "diverged": len(at.own) - len(scores),
        "median silhouette": float(np.median(scores)) if scores else None,
        "chance, 95 % quantile": float(np.median(chance)) if chance else None,
        f"runs with p < {SIGNIFICANT}": kinds.total(),
        **{kind: kinds[kind] for kind in KINDS},
    }


def figures(results: Results) -> dict[str, Picture]:
    """Draw the clearest and the median run of each model, and every run's silhouette against chance."""
    own = results.where(task=TASK)
    drawn = {f"cosets_{protocol}": _draw_planes(found, protocol) for protocol, found in own.groups("protocol").items()}
    return drawn | ({"cosets_silhouettes": _draw_silhouettes(own)} if own else {})


def _draw_planes(results: Results, protocol: str) -> Picture:
    structure = find_task(TASK, protocol=protocol).structure
    rows = {"clearest": "clearest run", "median": "median run"}
    figure, panels = drawing.facets(rows, dict.fromkeys(ARMS, ""), size=(10, 6.1))
    for (row, arm), axes in panels.items():
        own, chosen, words = results.where(arm=arm), None, ""
        scores = own.metric("plane_silhouette").by("seed")
        if scores:
            clearest = max(scores, key=lambda seed: -1.0 if scores[seed] is None else scores[seed])
            (chosen,) = own.where(seed=clearest if row == "clearest" else middle_seed(scores)).values()
        embedding = planes.draw_run(axes, structure, chosen, size=5)
        if embedding is not None:
            best = cosets_of(structure, embedding)
            side = "" if best.side == "both" else f", {best.side}"
            words = f"{best.subgroup.name}{side}\nsilhouette {best.score:.2f}, p = {best.p_value:.2g}"
        axes.set_title(f"{MODEL_STYLES[arm].label}\n{words}" if row == "clearest" else words, fontsize=9)
    return Picture(
        figure,
        f"Permutations in the plane of two principal components, {protocol} protocol, {runs.seeds_of(results)}: the "
        "run with the highest silhouette (above) and the median run (below; the lower of two, diverged runs lowest). "
        "Colors and hulls are the best cosets in this plane. p: how often the best silhouette of the same points in "
        f"random order is as high, in {DRAWS} draws.",
    )


def _draw_silhouettes(results: Results) -> Picture:
    protocols, ylabel = results.spec.protocols, "silhouette of the best cosets"
    rows, columns, size = dict.fromkeys(protocols, ""), dict.fromkeys(SPACES, ""), (10, 3.3 * len(protocols))
    figure, panels = drawing.facets(rows, columns, size=size, ylabel=ylabel, sharex=True, sharey=True)
    for (protocol, space), axes in panels.items():
        for place, arm in enumerate(ARMS):
            _draw_strip(axes, place, results.where(protocol=protocol, arm=arm), space, MODEL_STYLES[arm].color)
        axes.set(title=f"{SPACES[space][0]}, {protocol} protocol", xlim=(-0.5, len(ARMS) - 0.5))
        axes.set_ylim(top=1.15)  # a silhouette is at most 1; above stand the counts
        axes.set_xticks(range(len(ARMS)), labels=runs.TICKS)
        axes.grid(False, axis="x")
    return Picture(
        figure,
        f"Silhouette of the best cosets, one dot per run ({runs.seeds_of(results)}; in the order of seeds), hollow "
        f"where p is {SIGNIFICANT} or more. Short lines: medians. Above: how many runs have a smaller p. Gray: the "
        "value that the best cosets of the same points in random order exceed in 5 % of the draws, median over runs "
        "as a line, range as a band.",
    )


def _draw_strip(axes: Any, place: int, own: Results, space: str, color: str) -> None:
    scores, chances, chance = (own.metric(f"{space}_{name}").present.values for name in ("silhouette", "p", "chance"))
    if scores:
        sides = [place - 0.36, place + 0.36]
        axes.fill_between(sides, min(chance), max(chance), color="#999999", alpha=0.25, linewidth=0)
        axes.plot(sides, [np.median(chance)] * 2, color="#777777", linewidth=1.2)
        style: Any = {"color": color, "markersize": 4.5, "markeredgewidth": 0.9, "linestyle": "none"}
        for x, score, p in zip(drawing.beside(place, len(scores), 0.24), scores, chances, strict=True):
            axes.plot(x, score, "o", markerfacecolor=color if p < SIGNIFICANT else "white", **style)
        axes.plot(place, np.median(scores), "_", color=color, markersize=26, markeredgewidth=2.2)
    words: Any = {"transform": axes.get_xaxis_transform(), "ha": "center", "fontsize": 8}
    if own:
        axes.text(place, 0.95, f"{_kinds(own, space).total()} of {len(own)}", color="#555555", **words)
    if lost := len(own) - len(scores):
        axes.text(place, 0.01, f"{lost} diverged", color="#777777", **words)


EXPERIMENT = runs.view(
    "cosets", "Which cosets the permutations cluster by", "Section on S4; appendix", CLAIMS, measure, tables, figures
)
