"""Which cosets of S4 the permutations cluster by: a view of the runs of `algorithmic`.

Of all partitions of S4 into left or right cosets of a subgroup, the best is the one with the highest silhouette in the
plane of two principal components, as in the authors' code. The best of many is high by luck alone, so each run is
compared with itself after its tokens are shuffled.
"""

from collections import Counter
from typing import Any

import numpy as np

from harmax.analysis import coset_partitions, left_cosets, right_cosets, share_interval, subgroups
from harmax.figures import Picture
from harmax_lab.algorithmic import planes, runs
from harmax_lab.algorithmic.anchors import HARMONIC_MLP, HARMONIC_TRANSFORMER
from harmax_lab.algorithmic.measures import DRAWS, cosets_of, last_embedding, middle_seed
from harmax_lab.algorithmic.runs import ARMS, AlgorithmicSpec
from harmax_lab.algorithmic.sentences import passes, said
from harmax_lab.algorithmic.training import RunCell, task_of
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.judges import SIGNIFICANT, percent, reaches
from harmax_lab.kit.results import Results
from harmax_lab.kit.rules import LEAST_RUNS
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table
from harmax_lab.paper.readings import COMMON, NEAT, SOME_RUNS
from harmax_lab.tasks import find_task

TASK, KLEIN, STABILIZER = "permutation", "Klein four V4", "S3"
KINDS = tuple(dict.fromkeys(found.subgroup.kind for found in coset_partitions(4)))
SPACES: dict[str, tuple[str, int | None]] = {"plane": ("plane of two components", 2), "space": ("whole space", None)}


def measure(spec: AlgorithmicSpec, cell: RunCell, result: CellResult) -> dict[str, Any]:
    """Return the best cosets of a permutation run in the plane and in the whole space, and what chance gives."""
    found: dict[str, Any] = {"test_accuracy": runs.measure(spec, cell, result)["test_accuracy"]}
    for space, (_, components) in SPACES.items() if cell.task == TASK else ():
        embedding = last_embedding(result)
        best = None if embedding is None else cosets_of(task_of(cell).structure, embedding, components=components)
        found[f"{space}_subgroup"] = best and best.subgroup.kind
        found[f"{space}_silhouette"] = best and best.score
        found[f"{space}_p"] = best and best.p_value
        found[f"{space}_chance"] = best and best.null[0.95]
    return found


def _kinds(results: Results, space: str, least: float = -1.0) -> Counter[str]:
    """Count the subgroups of the runs whose best cosets are better than chance, with at least this silhouette."""
    names = (f"{space}_subgroup", f"{space}_p", f"{space}_silhouette")
    found = [[result.metrics[name] for name in names] for result in results.values()]
    return Counter(kind for kind, p, score in found if p is not None and p < SIGNIFICANT and score >= least)


def _listed(kinds: Counter[str]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()) or "none"


def _numbers(results: Results) -> dict[str, int]:
    kinds = {space: _kinds(results, space) for space in SPACES}
    counts = {f"{space}_{kind}": count for space, found in kinds.items() for kind, count in found.items()}
    return {"runs": len(results), **counts}


def _judge_klein(results: Results) -> Finding:
    clean, total = _kinds(results, "plane", NEAT), len(results)
    hits = clean[KLEIN]
    by_luck = share_interval(hits, total).above(SIGNIFICANT) is not True if total else True
    return Finding(
        None if not total else False if hits < SOME_RUNS else None if by_luck else True,
        f"Clean clusters by cosets of {KLEIN} in {hits} of {total} runs. All clean runs: {_listed(clean)}. All runs "
        f"beyond chance: {_listed(_kinds(results, 'plane'))}; in the whole space: {_listed(_kinds(results, 'space'))}.",
        {**_numbers(results), "clean": hits},
    )


def _judge_stabilizer(results: Results) -> Finding:
    kinds, total = _kinds(results, "plane"), len(results)
    hits, most = kinds[STABILIZER], max(kinds.values(), default=0)
    holds = reaches(hits, total, COMMON)
    if holds and hits < most:  # another kind is more frequent: clearly, or by luck
        holds = False if share_interval(hits, hits + most).above(0.5) is False else None
    return Finding(
        holds,
        f"The best cosets are those of {STABILIZER}, and better than chance, in {hits} of {total} runs. All runs "
        f"beyond chance: {_listed(kinds)}; in the whole space: {_listed(_kinds(results, 'space'))}.",
        _numbers(results),
    )


def _partitions(side: Any) -> list[tuple[int, ...]]:
    """Return the cosets, on one side, of every subgroup of S4 but the trivial one and the whole group."""
    return [tuple(side(group.elements).tolist()) for group in subgroups(4)[1:-1]]


def _judge_number(results: Results) -> Finding:
    left, right = _partitions(left_cosets), _partitions(right_cosets)
    as_sets = [
        {frozenset(np.flatnonzero(np.array(one) == part)) for one in found for part in set(one)}
        for found in (left, right)
    ]
    counts = len(set(left)), len(set(right))
    return Finding(
        counts == (28, 28),
        f"Of {len(subgroups(4))} subgroups, {len(left)} remain. Their partitions into left cosets are {counts[0]} "
        f"different ones, and those into right cosets {counts[1]}. Single cosets would be {len(as_sets[0])} on either "
        "side.",
        {"left": counts[0], "right": counts[1], "single_cosets": len(as_sets[0])},
    )


def _judge_normal(results: Results) -> Finding:
    groups = subgroups(4)
    pairs = zip(groups[1:-1], _partitions(left_cosets), _partitions(right_cosets), strict=True)
    same = [group.kind for group, left, right in pairs if left == right]
    normal = [group.kind for group in groups if group.normal]
    return Finding(
        sorted(same) == ["A4", KLEIN] and len(normal) == 4,
        f"Left and right partitions are the same for {' and '.join(same)}. Normal subgroups: {', '.join(normal)}.",
        {"same": len(same), "normal": len(normal)},
    )


CLAIMS = (
    *said(
        "klein",
        ("3.2/13",),
        "A particularly clean representation appears multiple times in harmonic MLPs: 6 clusters of 4, the cosets of "
        "{e, (12)(34), (13)(24), (14)(23)}. A run shows it if these are the best of all cosets in the plane of two "
        f"components, better than chance, with a silhouette of at least {NEAT:g}. Holds if at least {SOME_RUNS} runs "
        f"do, and clearly more than the {percent(SIGNIFICANT, 0)} that chance would give",
        _judge_klein,
        paper="The authors' figure of all runs: 4 of 20 have 6 clusters with such a silhouette.",
        seeds=LEAST_RUNS,
        task=TASK,
        arm=HARMONIC_MLP,
    ),
    *said(
        "stabilizer",
        ("3.2/14",),
        "In harmonic transformers, permutations commonly form 4 clusters: the cosets of a point's stabilizer, S3. "
        "Holds if these are the best of all cosets in the plane of two components, and better than chance, in at least "
        f"{percent(COMMON, 0)} of the runs, and if no other kind of subgroup is more frequent",
        _judge_stabilizer,
        paper="The authors' figure of all runs: 4 clusters are the most frequent number, in 6 of 20.",
        seeds=LEAST_RUNS,
        task=TASK,
        arm=HARMONIC_TRANSFORMER,
    ),
    Claim(
        "number_of_cosets",
        'The subgroups of S4 give 28 different left cosets and 28 different right cosets. "Cosets" is read as '
        "partitions into cosets, because the paper then compares partitions, and the authors' code counts one per "
        "subgroup and side. The trivial subgroup and the whole group are left out. Exact.",
        sentences=("B/2",),
        judge=_judge_number,
        exact=True,
    ),
    Claim(
        "normal_subgroups",
        "Two pairs among them are the same, because A4 and Klein's four-group are two of the four normal subgroups of "
        "S4. A pair is the left and the right partition of a subgroup. Exact.",
        sentences=("B/3",),
        judge=_judge_normal,
        exact=True,
    ),
    Claim(
        "captured",
        "The partition with the highest silhouette is likely the structure that the model has captured in training.",
        sentences=("B/6",),
        not_run="An explanation that the paper tests nowhere: nothing shows that a model computes with the cosets of "
        "its picture. Our evidence is how often they beat those of the same points in random order, in the claims "
        "`klein` and `stabilizer` and in the tables.",
    ),
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
        "pass the test": sum(map(passes, at.own.values())),
        "median silhouette": float(np.median(scores)) if scores else None,
        "chance, 95 % quantile": float(np.median(chance)) if chance else None,
        f"clean (silhouette {NEAT} or more)": _kinds(at.own, space, NEAT).total(),
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
    figure, panels = drawing.facets(rows, dict.fromkeys(ARMS, ""), size=(10, 6.4))
    figure.suptitle(f"Which cosets the permutations cluster by, {protocol} protocol")
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
        f"Permutations in the plane of two principal components, {protocol} protocol, {runs.budget(results)}: the "
        "run with the highest silhouette (above) and the median run (below; the lower of two, diverged runs lowest). "
        "Colors and hulls are the best cosets in this plane. p: how often the best silhouette of the same points in "
        f"random order is as high, in {DRAWS} draws.",
    )


def _draw_silhouettes(results: Results) -> Picture:
    protocols, ylabel = results.spec.protocols, "silhouette of the best cosets"
    rows, columns, size = dict.fromkeys(protocols, ""), dict.fromkeys(SPACES, ""), (10, 3.3 * len(protocols) + 0.4)
    figure, panels = drawing.facets(rows, columns, size=size, ylabel=ylabel, sharex=True, sharey=True)
    figure.suptitle("How clearly the permutations cluster by cosets, against chance")
    for (protocol, space), axes in panels.items():
        for place, arm in enumerate(ARMS):
            _draw_strip(axes, place, results.where(protocol=protocol, arm=arm), space, MODEL_STYLES[arm].color)
        axes.set(title=f"{SPACES[space][0]}, {protocol} protocol", xlim=(-0.5, len(ARMS) - 0.5))
        axes.set_ylim(top=1.15)  # a silhouette is at most 1; above stand the counts
        axes.set_xticks(range(len(ARMS)), labels=runs.TICKS)
        axes.grid(False, axis="x")
    return Picture(
        figure,
        f"Silhouette of the best cosets, one dot per run ({runs.budget(results)}; in the order of seeds), hollow "
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
    "cosets", "Which cosets the permutations cluster by", "Sec. 3.2; App. B", CLAIMS, measure, tables, figures
)
