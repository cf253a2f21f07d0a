"""How long the test accuracy waits for the training accuracy (Fig. 3 c): a view of the runs of `algorithmic`.

    harmax run grokking --full     judges the runs of `harmax run algorithmic --full`, and trains them if needed

A run has learned, or generalizes, from the first epoch that starts 20 epochs in a row above 0.9. Between the two it
waits. The paper's figure leaves out the runs that do not reach both. Here a run that never generalizes waits for as
long as it was trained, the longest wait there can be, and what the other runs alone would say stands beside it.
"""

# S runs

from collections.abc import Mapping
from typing import Any

import numpy as np

from harmax.analysis import Interval, PairedDifference, fisher_exact, share_interval
from harmax_lab.algorithmic import anchors, measures, runs
from harmax_lab.algorithmic.anchors import GROKKING, HARMONIC_MLP, REACHED, STANDARD_MLP
from harmax_lab.algorithmic.grokking_figures import SIDES, figures
from harmax_lab.algorithmic.runs import ARMS, BODIES, TITLES, AlgorithmicSpec
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.judges import SIGNIFICANT, both, everywhere, listed, pairs_of, percent, share_reaches
from harmax_lab.kit.results import Results, compare, where
from harmax_lab.kit.rules import LEAST_RUNS
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table, entries, in_epochs, paired_columns, yes_or_no
from harmax_lab.paper.readings import MOST, MUCH_LESS, PASSED, SEVERE_EPOCHS, SEVERE_FACTOR
from harmax_lab.tasks import PROTOCOLS

EVIDENT = ("modular_addition", "permutation")
"""The tasks in which the paper finds the improvement particularly evident."""
# Our 95 % interval is for our median. The authors' median, from another 20 runs, would fall into it 83 times of 100 if
# the runs were alike. Of 20 such medians fewer than 14 inside then have a chance of 4 % if all are independent, and of
# 7 % if training and test of a model always fall together.
SHARE_INSIDE = 0.7
MODES_APART, LEAST_IN_MODE = 2.0, 3
NAMES = {"standard": "linear", "harmonic": "harmonic"}


def measure(spec: AlgorithmicSpec, cell: RunCell, result: CellResult) -> dict[str, float]:
    """Return when a run learns and generalizes, how long it waits between the two, and whether it groks."""
    return measures.grokking(result)


def reached(results: Results) -> Results:
    """Keep the runs that reach both accuracies."""
    return results.having(lambda result: bool(np.isfinite([result.metrics[name] for name in SIDES]).all()))


Waits = Mapping[tuple[str, str, int], tuple[float, float]]
"""By task, model and seed: how long the standard and the harmonic run wait."""


def waits(results: Results) -> Waits:
    """Pair the waits of both heads."""
    return results.pairs("wait", "head", "linear", "harmonic", on=("task", "model", "seed"))


def shorter(pairs: Waits, level: float = 0.95) -> PairedDifference | None:
    """Return by how much the harmonic runs wait less: the mean over tasks and models, compared over seeds."""
    by_seed: dict[int, list[tuple[float, float]]] = {}
    for (_, _, seed), pair in pairs.items():
        by_seed.setdefault(seed, []).append(pair)
    if not by_seed:
        return None
    standard, harmonic = np.array([np.mean(own, axis=0) for own in by_seed.values()]).T
    return compare(standard.tolist(), harmonic.tolist(), level=level)


def _judge_overall(results: Results) -> Finding:
    pairs, reaching = waits(results), waits(reached(results))
    found, drawn = shorter(pairs), shorter(reaching)
    assert found is not None
    without = "no pair" if drawn is None else f"{_epochs(drawn.difference)} epochs"
    return _less(
        found,
        f"Harmonic runs wait less by {_epochs(found.difference)} epochs. By task: {_by_place(pairs)}. Over the "
        f"{len(reaching)} of {len(pairs)} pairs in which both reach both accuracies: {without}.",
    )


def _judge_drawn(results: Results) -> Finding:
    pairs = waits(reached(results))
    found = shorter(pairs)
    if found is None or pairs_of(found) < LEAST_RUNS:
        return Finding(None, f"On {pairs_of(found)} seeds both reach both accuracies.", {})
    return _less(
        found,
        f"In {len(pairs)} of {len(waits(results))} pairs both do. In these, harmonic runs wait less by "
        f"{_epochs(found.difference)} epochs. By task: {_by_place(pairs)}.",
    )


def _less(found: PairedDifference, sentence: str) -> Finding:
    return Finding(found.difference.above(0), sentence, {"less_by": found.difference._asdict()})


def _by_place(pairs: Waits) -> str:
    found: dict[str, list[float]] = {}
    for (task, model, _), (standard, harmonic) in pairs.items():
        found.setdefault(f"{BODIES[model]} on {TITLES[task].lower()}", []).append(standard - harmonic)
    return listed({words: f"{np.mean(own):.0f}" for words, own in found.items()})


def _judge_evident(results: Results) -> Finding:
    tasks = results.groups("task")
    less = {task: {key[2]: one - two for key, (one, two) in waits(own).items()} for task, own in tasks.items()}
    if not set(EVIDENT) < set(less):
        return Finding(None, "This needs both tasks and others.", {})
    seeds = results.distinct("seed")
    others = [float(np.mean([less[task][seed] for task in less if task not in EVIDENT])) for seed in seeds]

    def more(task: str, level: float) -> PairedDifference:
        return compare([less[task][seed] for seed in seeds], others, level=level)

    answer = everywhere(EVIDENT, more)
    words = {TITLES[task].lower(): _epochs(one.difference) for task, one in answer.found.items() if one}
    means = {TITLES[task].lower(): f"{np.mean(list(own.values())):.0f}" for task, own in less.items()}
    return Finding(
        answer.holds,
        f"Harmonic MLPs wait less by these epochs: {listed(means)}. More than the other three tasks on average, by: "
        f"{listed(words)}.",
        {f"more_in_{task}": one.difference._asdict() for task, one in answer.found.items() if one},
    )


def _judge_severe(results: Results) -> Finding:
    by_task = results.groups("task")
    shares = {task: share_interval(sum(own.metric("groks")), len(own)) for task, own in by_task.items()}
    words = {
        TITLES[
            task
        ].lower(): f"{sum(own.metric('groks'))} of {len(own)}, median wait {in_epochs(own.metric('wait').median())}"
        for task, own in by_task.items()
    }
    return Finding(
        both(*(share_reaches(share, MOST) for share in shares.values())),
        f"Standard MLPs that grok, and epochs that they wait: {listed(words)}.",
        {f"groks_{task}": share._asdict() for task, share in shares.items()},
    )


def _judge_closer(results: Results) -> Finding:
    answers, words, numbers = [], {}, {}
    for task, own in results.groups("task").items():
        limit = MUCH_LESS * float(np.median(own.where(head="linear").metric("wait").values))
        harmonic = own.where(head="harmonic")
        near, drawn = ([one <= limit for one in some.metric("wait")] for some in (harmonic, reached(harmonic)))
        share = share_interval(sum(near), len(near))
        answers.append(share_reaches(share, MOST))
        numbers[f"closer_{task}"] = share._asdict()
        words[TITLES[task].lower()] = (
            f"{sum(near)} of {len(near)} wait for at most {limit:g} epochs, share {percent(share, 0)} "
            f"({sum(drawn)} of the {len(drawn)} that reach both accuracies)"
        )
    return Finding(both(*answers), f"Harmonic MLPs: {listed(words)}.", numbers)


def _epochs(found: Interval) -> str:
    return f"{found.estimate:.0f} [{found.low:.0f}, {found.high:.0f}]"


def medians(results: Results) -> dict[tuple[str, tuple[str, str], str], tuple[Interval | None, float, bool]]:
    """Return our median over the runs that reach both, the authors', and whether theirs lies in our interval."""
    found = {}
    for (task, arm), theirs in GROKKING.items():
        own = reached(results.where(arm=arm, protocol="authors", task=task))
        for name in SIDES:
            ours, known = own.metric(name).median(), getattr(theirs, name)
            found[task, arm, name] = ours, known, ours is not None and ours.low <= known <= ours.high
    return found


def _judge_medians(results: Results) -> Finding:
    found = {key: row for key, row in medians(results).items() if key[0] in results.distinct("task")}
    words = [
        f"{TITLES[task].lower()}, {MODEL_STYLES[arm].label}, {SIDES[name]} {in_epochs(ours)}, authors' {theirs:g}"
        for (task, arm, name), (ours, theirs, inside) in found.items()
        if not inside
    ]
    inside = len(found) - len(words)
    return Finding(
        inside >= SHARE_INSIDE * len(found),
        f"{inside} of {len(found)} do. {'Outside: ' + '; '.join(words) + '.' if words else 'None lies outside.'}",
        {"inside": inside, "medians": len(found)},
    )


def _judge_counts(results: Results) -> Finding:
    numbers, chances, words = {}, [], []
    for (task, arm), own in results.groups("task", "arm").items():
        ours, theirs = len(reached(own)), REACHED[task, arm]
        chances.append(fisher_exact(ours, len(own), theirs, anchors.RUNS))
        numbers[f"reached_{task}_{'_'.join(arm)}"] = ours
        words.append(
            f"{MODEL_STYLES[arm].label} on {TITLES[task].lower()} {ours} of {len(own)}, authors {theirs} of "
            f"{anchors.RUNS} (p = {chances[-1]:.1g})"
        )
    apart = [text for text, p in zip(words, chances, strict=True) if p < SIGNIFICANT / len(chances)]
    alone = sum(p < SIGNIFICANT for p in chances)
    text = f"{len(apart)} of {len(chances)} differ{': ' + '; '.join(apart) if apart else ''}."
    return Finding(not apart, f"{text} Each taken alone, {alone} would.", numbers)


def two_modes(
    epochs: np.ndarray, *, least: int, draws: int = 1999, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Split epochs at the widest empty stretch with at least `least` on either side; return early, late, ratio and p.

    p is how often as many epochs, spread evenly between the first and the last on a logarithmic scale, leave a stretch
    as wide: (1 + times) / (1 + draws).
    """
    ordered = np.sort(epochs)
    logs = np.log(ordered + 1.0)  # one more than the epoch, which may be 0
    inner = np.random.default_rng(seed).uniform(logs[0], logs[-1], size=(draws, len(logs) - 2))
    null = np.sort(np.concatenate([inner, np.broadcast_to(logs[[0, -1]], (draws, 2))], axis=1), axis=1)
    cuts = np.arange(least, len(logs) - least + 1)
    widths = logs[cuts] - logs[cuts - 1]
    as_wide = int(((null[:, cuts] - null[:, cuts - 1]).max(1) >= widths.max() - 1e-12).sum())
    cut = int(cuts[widths.argmax()])
    return ordered[:cut], ordered[cut:], float(np.exp(widths.max())), (1 + as_wide) / (1 + draws)


def _judge_modes(results: Results) -> Finding:
    epochs = np.array(reached(results).metric("test_epoch").values)
    if len(epochs) < 2 * LEAST_IN_MODE:
        return Finding(None, f"Only {len(epochs)} of {len(results)} runs reach both.", {"runs": len(epochs)})
    early, late, ratio, p = two_modes(epochs, least=LEAST_IN_MODE)
    return Finding(
        False if ratio < MODES_APART else True if p < SIGNIFICANT else None,
        f"{len(early)} runs generalize at epochs {early[0]:g} to {early[-1]:g}, {len(late)} at {late[0]:g} to "
        f"{late[-1]:g}, {len(results) - len(epochs)} never. The widest empty stretch with at least {LEAST_IN_MODE} "
        f"runs on either side is a factor of {ratio:.2g} (counted as two modes from {MODES_APART:g}). Evenly spread "
        f"epochs leave one as wide with p = {p:.2g}.",
        {"early": len(early), "late": len(late), "factor": ratio, "p": p},
    )


LONGEST = "A run that never generalizes counts as the longest wait"
KNOWN = {
    title.lower(): " against ".join(
        f"{GROKKING[task, arm].test_epoch - GROKKING[task, arm].train_epoch:g}" for arm in (STANDARD_MLP, HARMONIC_MLP)
    )
    for task, title in TITLES.items()
}


def _overall(protocol: str, model: str | None) -> Claim:
    """Return the claim on the four models, or a control on two of them."""
    said = "Harmonic loss overall reduces grokking" if model is None else f"Harmonic {BODIES[model]} grok less"
    paper = model is None and protocol == "authors"
    return Claim(
        f"less_grokking_{model or 'overall'}_{protocol}",
        f"{said}. Holds where harmonic runs wait for fewer epochs from fitting to generalizing than standard ones, on "
        f"the mean over the tasks{' and models' * (model is None)} with its 95 % interval over seeds. {LONGEST} "
        f"({protocol} protocol).",
        f"Differences of the authors' medians, standard against harmonic MLP, in epochs: {listed(KNOWN)}." * paper,
        sentences=("3.4/3",) * paper,
        needs=where(protocol=protocol, model=tuple(BODIES) if model is None else model),
        judge=_judge_overall,
        seeds=LEAST_RUNS,
    )


def _drawn(protocol: str) -> Claim:
    return Claim(
        f"less_grokking_drawn_{protocol}",
        "Harmonic loss overall reduces grokking in the runs that the paper's figure shows. Judged alike, but over the "
        f"pairs of runs in which both reach both accuracies ({protocol} protocol).",
        "The figure omits runs that were not able to achieve 90 % accuracy.",
        needs=where(protocol=protocol),
        judge=_judge_drawn,
        seeds=LEAST_RUNS,
    )


def _evident(protocol: str) -> list[Claim]:
    """Return the three claims on modular addition and permutation composition."""
    paper, where_ = protocol == "authors", f"({protocol} protocol, with 95 % intervals)"
    common: dict[str, Any] = {"sentences": ("3.4/5",) * paper, "seeds": LEAST_RUNS}
    mlps = {"protocol": protocol, "model": "mlp"}
    return [
        Claim(
            f"most_evident_{protocol}",
            "The improvement is particularly evident in modular addition and permutation composition. Holds where "
            "harmonic MLPs shorten the wait by more epochs in each of these two tasks than in the other three on "
            f"average. {LONGEST} {where_}.",
            needs=where(**mlps),
            judge=_judge_evident,
            **common,
        ),
        Claim(
            f"standard_severe_{protocol}",
            "On modular addition and permutation composition the standard MLP exhibits severe grokking. Holds where, "
            f"in most runs of each task, the test accuracy passes {PASSED} at least {SEVERE_EPOCHS} epochs after the "
            f"training accuracy and at least {SEVERE_FACTOR:g} times as late, or never {where_}.",
            needs=where(**mlps, head="linear", task=EVIDENT),
            judge=_judge_severe,
            **common,
        ),
        Claim(
            f"harmonic_closer_{protocol}",
            "On modular addition and permutation composition most data points of the harmonic MLP lie much closer to "
            "the line without grokking. Holds where most runs of each task wait for at most half of the standard "
            f"MLP's median wait. {LONGEST} {where_}.",
            needs=where(**mlps, task=EVIDENT),
            judge=_judge_closer,
            **common,
        ),
    ]


CLAIMS = (
    *(_overall(protocol, model) for protocol in PROTOCOLS for model in (None, *BODIES)),
    *(claim for protocol in PROTOCOLS for claim in (_drawn(protocol), *_evident(protocol))),
    Claim(
        "authors_medians",
        "The authors' median epochs of the MLPs come back: at least 14 of 20 lie in our 95 % intervals, where 17 "
        "would if the runs were alike (authors protocol).",
        "Medians, over the runs that reach both, of training and test, standard and harmonic, in five tasks.",
        needs=where(protocol="authors", model="mlp"),
        judge=_judge_medians,
        seeds=LEAST_RUNS,
    ),
    Claim(
        "authors_counts",
        "The numbers of runs that reach both accuracies come back: none of 20 differs (authors protocol; Fisher's "
        "exact test at 5 %, shared among the 20).",
        "Of 20 runs (standard and harmonic MLP, standard and harmonic transformer): "
        + listed({TITLES[task].lower(): ", ".join(str(REACHED[task, arm]) for arm in ARMS) for task in TITLES})
        + ".",
        needs=where(protocol="authors"),
        judge=_judge_counts,
        seeds=LEAST_RUNS,
    ),
    Claim(
        "genealogy_two_modes",
        "The standard MLP on genealogy generalizes either early or late, with nothing between: a factor of 2 or more, "
        "wider than evenly spread epochs leave by chance (authors protocol).",
        "Not reported: a median hides it.",
        needs=where(arm=STANDARD_MLP, protocol="authors", task="genealogy"),
        judge=_judge_modes,
        seeds=LEAST_RUNS,
    ),
)


def _epochs_row(at: Any) -> dict[str, Any]:
    both, theirs = len(reached(at.own)), REACHED[at.task, at.arm]
    known, p = at.protocol == "authors", fisher_exact(both, len(at.own), theirs, anchors.RUNS) if at.own else None
    columns = {name: at.own.metric(name) for name in SIDES}
    finite = [int(np.isfinite(column.values).sum()) if at.own else None for column in columns.values()]
    return {
        **runs.place(at),
        "runs": len(at.own),
        **dict(zip(("learn", "generalize"), finite, strict=True)),
        "reach both": both if at.own else None,
        "authors' of 20": theirs if known else "",
        "p, Fisher": p if known else "",
        **{f"{SIDES[name]} [95 %]": in_epochs(c.median()) if at.own else None for name, c in columns.items()},
    }


def _wait_row(at: Any) -> dict[str, Any]:
    pairs, reaching = waits(at.own), waits(reached(at.own))
    paired, drawn = shorter(pairs), shorter(reaching)
    standard, harmonic = map(float, np.mean(list(pairs.values()), axis=0)) if pairs else (None, None)
    words: Any = ("shorter by [95 %]", "shorter on", "longer on", _epochs)
    return {
        **runs.place(at),
        "pairs": pairs_of(paired),
        "standard's mean": standard,
        "harmonic's mean": harmonic,
        **entries(paired, paired_columns(lambda paired: paired, *words)),
        **{f"{name} that grok": sum(at.own.where(head=head).metric("groks")) for name, head in NAMES.items()},
        "pairs that reach": pairs_of(drawn),
        "theirs is shorter by [95 %]": _epochs(drawn.difference) if drawn else None,
    }


def tables(results: Results) -> list[Table]:
    """Tabulate epochs, gaps and the authors' medians."""
    known = []
    for (task, arm, name), (ours, theirs, inside) in medians(results).items():
        own = results.where(arm=arm, protocol="authors", task=task)
        row: dict[str, Any] = {"task": TITLES[task], "model": MODEL_STYLES[arm].label, "accuracy": SIDES[name]}
        row["our runs"] = f"{len(reached(own))} of {len(own)}" if own else "none"
        row["authors' runs"] = f"{REACHED[task, arm]} of {anchors.RUNS}"
        row |= {"ours [95 %]": in_epochs(ours), "authors'": theirs}
        known.append(row | {"in our interval": "" if ours is None else yes_or_no(inside)})
    models, bodies = runs.places(results, arm=ARMS), runs.places(results, model=BODIES)
    return [
        Table("Median epochs and 95 % intervals; never counts as infinity", tuple(map(_epochs_row, models))),
        Table(
            "Epochs from fitting to generalizing, paired over seeds; never counts as all epochs of the training",
            tuple(map(_wait_row, bodies)),
        ),
        Table("The authors' medians, and ours over the runs that reach both", tuple(known)),
    ]


EXPERIMENT = runs.view(
    "grokking", "How long the test waits for the training", "Fig. 3 c", CLAIMS, measure, tables, figures
)
