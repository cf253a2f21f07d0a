"""How long the test accuracy waits for the training accuracy (Fig. 3 c): a view of the runs of `algorithmic`.

A run has learned, or generalizes, from the first epoch that starts 20 epochs in a row above 0.9. A run that never does
counts as infinitely late in every median and every comparison. The authors' medians are over the runs that reach both,
so beside them stand ours over such runs.
"""

from typing import Any

import numpy as np

from harmax.analysis import bootstrap_interval, fisher_exact
from harmax_lab.algorithmic import anchors, runs
from harmax_lab.algorithmic.anchors import HARMONIC_MLP, STANDARD_MLP
from harmax_lab.algorithmic.epochs import authors_medians, compare, in_epochs, is_inside, times_of, two_modes
from harmax_lab.algorithmic.grokking_figures import figures
from harmax_lab.algorithmic.measures import pairs_of, shared_level, yes_or_no
from harmax_lab.algorithmic.protocols import HEADS
from harmax_lab.algorithmic.runs import ARMS, TITLES, AlgorithmicSpec, Basis, Results, conclude_on
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.experiment import Summary, view
from harmax_lab.kit.tables import Table
from harmax_lab.tasks import PROTOCOLS

BODIES = {"mlp": "MLPs", "transformer": "transformers"}
# Our 95 % interval is for our median; theirs, a draw of 20 runs as well, would fall into it 83 times of 100 if the
# runs were alike. Of 20 such medians fewer than 14 inside then have a chance of 4 % if all are independent, and of 7 %
# if training and test of a model always fall together.
SHARE_INSIDE = 0.7
SIGNIFICANT = 0.05
MODES_APART, LEAST_IN_MODE = 2.0, 3


def _claim_gap(protocol: str, model: str) -> Claim:
    gaps = {key: theirs.test - theirs.train for key, theirs in anchors.GROKKING.items()}
    medians = ", ".join(
        f"{TITLES[task].lower()} {gaps[task, STANDARD_MLP]:g} against {gaps[task, HARMONIC_MLP]:g}" for task in TITLES
    )
    paper = f"Differences of the authors' medians, standard against harmonic MLP: {medians} epochs."
    return Claim(
        f"gap_smaller_{model}_{protocol}",
        f"From fitting to generalizing the harmonic {BODIES[model]} take fewer epochs than the standard ones, in every "
        f"task that has a gap; never generalizing counts as the longest gap ({protocol} protocol).",
        "Harmonic models grok less. " + (paper if model == "mlp" else "No epochs are known for transformers."),
        control=protocol == "matched",
    )


CLAIMS = (
    *(_claim_gap(protocol, model) for protocol in PROTOCOLS for model in BODIES),
    Claim(
        "authors_medians",
        "The authors' median epochs of the MLPs come back: at least 14 of 20 lie in our 95 % intervals, where 17 "
        "would if the runs were alike (authors protocol).",
        "Medians, over the runs that reach both, of training and test, standard and harmonic, in five tasks.",
    ),
    Claim(
        "authors_counts",
        "The numbers of runs that reach both accuracies come back: none of 20 differs (authors protocol; Fisher's "
        "exact test at 5 %, shared among the 20).",
        "Of 20 runs: "
        + "; ".join(
            f"{TITLES[task].lower()} " + ", ".join(str(anchors.REACHED[task, arm]) for arm in ARMS) for task in TITLES
        )
        + " (standard and harmonic MLP, standard and harmonic transformer).",
    ),
    Claim(
        "genealogy_two_modes",
        "The standard MLP on genealogy generalizes either early or late, with nothing between: a factor of 2 or more, "
        "wider than evenly spread epochs leave by chance (authors protocol).",
        "Not reported: a median hides it.",
        control=True,
    ),
)


def judge_gap(results: Results) -> Finding:
    """Judge one body's tasks under one protocol, leaving out those in which neither head has a gap.

    One larger gap is a choice among the tasks, so the level of the interval that tells it is shared out among them.
    """
    protocol, model = next((cell.protocol, cell.model) for cell in results)
    tasks = list(dict.fromkeys(cell.task for cell in results))
    found = {task: compare(results, protocol, task, model) for task in tasks}
    outcomes = {task: one.outcome if one else "undecided" for task, one in found.items()}
    strict = [compare(results, protocol, task, model, level=shared_level(len(tasks))) for task in tasks]
    broken = any(one is not None and one.outcome == "larger" for one in strict)
    kinds = set(outcomes.values()) - {"no gap in either"}
    holds = False if broken else True if kinds == {"smaller"} else None
    return Finding(
        holds,
        "Median gaps in epochs, standard against harmonic: "
        + "; ".join(
            f"{TITLES[task].lower()} {one.standard:g} against {one.harmonic:g} ({outcomes[task]})"
            if one
            else f"{TITLES[task].lower()} no pair"
            for task, one in found.items()
        )
        + ".",
        {f"difference_{task}": one.paired.difference._asdict() for task, one in found.items() if one},
    )


def judge_medians(results: Results) -> Finding:
    """Judge by how many of the authors' medians lie in our intervals."""
    tasks = {cell.task for cell in results}
    found = {key: pair for key, pair in authors_medians(results).items() if key[0] in tasks}
    outside = [key for key, pair in found.items() if not is_inside(*pair)]
    inside = len(found) - len(outside)
    words = [
        f"{TITLES[task].lower()}, {MODEL_STYLES[arm].label}, {side} {in_epochs(found[task, arm, side][0])}, authors' "
        f"{found[task, arm, side][1]:g}"
        for task, arm, side in outside
    ]
    return Finding(
        inside >= SHARE_INSIDE * len(found),
        f"{inside} of {len(found)} do. {'Outside: ' + '; '.join(words) + '.' if words else 'None lies outside.'}",
        {"inside": inside, "medians": len(found)},
    )


def judge_counts(results: Results) -> Finding:
    """Judge by the most surprising of the counts."""
    counts: dict[tuple[str, tuple[str, str]], tuple[int, int, float]] = {}
    for (task, arm), theirs in anchors.REACHED.items():
        times = times_of(results, "authors", task, arm)
        if times is None:
            continue
        ours, total = int(times.reached.sum()), len(times.seeds)
        counts[task, arm] = (ours, total, fisher_exact(ours, total, theirs, anchors.RUNS))
    apart = {key: found for key, found in counts.items() if found[2] < SIGNIFICANT / len(counts)}
    words = "; ".join(
        f"{MODEL_STYLES[arm].label} on {TITLES[task].lower()} {ours} of {total}, authors {anchors.REACHED[task, arm]} "
        f"of {anchors.RUNS} (p = {p:.1g})"
        for (task, arm), (ours, total, p) in apart.items()
    )
    alone = sum(p < SIGNIFICANT for *_, p in counts.values())
    return Finding(
        not apart,
        f"{len(apart)} of {len(counts)} differ{': ' + words if apart else ''}. Each taken alone, {alone} would.",
        {f"reached_{task}_{model}_{head}": ours for (task, (model, head)), (ours, _, _) in counts.items()},
    )


def judge_modes(results: Results) -> Finding:
    """Judge by the widest empty stretch between the sorted epochs: as a ratio, and against evenly spread epochs."""
    times = times_of(results, "authors", "genealogy", STANDARD_MLP)
    assert times is not None
    epochs = times.test[times.reached]
    if len(epochs) < 2 * LEAST_IN_MODE:
        return Finding(None, f"Only {len(epochs)} of {len(times.seeds)} runs reach both.", {"runs": len(epochs)})
    modes = two_modes(epochs, least=LEAST_IN_MODE)
    early, late = modes.early, modes.late
    return Finding(
        False if modes.ratio < MODES_APART else True if modes.p < SIGNIFICANT else None,
        f"{len(early)} runs generalize at epochs {early[0]:g} to {early[-1]:g}, {len(late)} at {late[0]:g} to "
        f"{late[-1]:g}, {len(times.seeds) - len(epochs)} never: the widest empty stretch with at least {LEAST_IN_MODE} "
        f"runs on either side is a factor of {modes.ratio:.2g} (counted as two modes from {MODES_APART:g}); evenly "
        f"spread epochs leave one as wide with p = {modes.p:.2g}.",
        {"early": len(early), "late": len(late), "factor": modes.ratio, "p": modes.p},
    )


JUDGES: dict[str, Basis] = {
    **{
        f"gap_smaller_{model}_{protocol}": Basis(protocol, tuple((model, h) for h in HEADS), tuple(TITLES), judge_gap)
        for protocol in PROTOCOLS
        for model in BODIES
    },
    "authors_medians": Basis("authors", (STANDARD_MLP, HARMONIC_MLP), tuple(TITLES), judge_medians),
    "authors_counts": Basis("authors", ARMS, tuple(TITLES), judge_counts),
    "genealogy_two_modes": Basis("authors", (STANDARD_MLP,), ("genealogy",), judge_modes),
}


def summarize(spec: AlgorithmicSpec, results: Results) -> Summary:
    """Judge every claim, and tabulate epochs, gaps and the authors' medians."""
    rows = [(protocol, task) for protocol in spec.protocols for task in spec.tasks]
    epochs = Table(
        "Median epochs and 95 % intervals; never counts as infinity",
        tuple(_epoch_row(results, protocol, task, arm) for protocol, task in rows for arm in ARMS),
    )
    gaps = Table(
        "Gap in epochs, harmonic minus standard, paired over seeds",
        tuple(_gap_row(results, protocol, task, model) for protocol, task in rows for model in BODIES),
    )
    medians = Table(
        "The authors' medians, and ours over the runs that reach both",
        tuple(
            {
                "task": TITLES[task],
                "model": MODEL_STYLES[arm].label,
                "accuracy": {"train": "training", "test": "test"}[side],
                "our runs": _reached(results, "authors", task, arm),
                "authors' runs": f"{anchors.REACHED[task, arm]} of {anchors.RUNS}",
                "ours [95 %]": in_epochs(ours),
                "authors'": theirs,
                "in our interval": yes_or_no(is_inside(ours, theirs)) if ours else "",
            }
            for (task, arm, side), (ours, theirs) in authors_medians(results).items()
        ),
    )
    verdicts = tuple(conclude_on(JUDGES[claim.id], claim.id, spec, results) for claim in CLAIMS)
    return Summary(verdicts, (epochs, gaps, medians))


def _epoch_row(results: Results, protocol: str, task: str, arm: tuple[str, str]) -> dict[str, Any]:
    times = times_of(results, protocol, task, arm)
    row: dict[str, Any] = {"protocol": protocol, "task": TITLES[task], "model": MODEL_STYLES[arm].label}
    # Under the matched protocol there is no number of theirs to be held against.
    own = protocol == "authors"
    theirs = anchors.REACHED[task, arm]
    known: dict[str, Any] = {"authors' of 20": theirs if own else "", "p, Fisher": None if own else ""}
    if times is None:
        empty = dict.fromkeys(("training [95 %]", "test [95 %]"))
        return row | {"runs": 0, "learn": None, "generalize": None, "reach both": None} | known | empty
    both, total = int(times.reached.sum()), len(times.seeds)
    if own:
        known["p, Fisher"] = fisher_exact(both, total, theirs, anchors.RUNS)
    learned, general = (int(np.isfinite(one).sum()) for one in (times.train, times.test))
    train, test = (in_epochs(bootstrap_interval(one)) for one in (times.train, times.test))
    counts = {"runs": total, "learn": learned, "generalize": general, "reach both": both}
    return row | counts | known | {"training [95 %]": train, "test [95 %]": test}


def _reached(results: Results, protocol: str, task: str, arm: tuple[str, str]) -> str:
    times = times_of(results, protocol, task, arm)
    return f"{int(times.reached.sum())} of {len(times.seeds)}" if times is not None else "none"


def _gap_row(results: Results, protocol: str, task: str, model: str) -> dict[str, Any]:
    found = compare(results, protocol, task, model)
    paired = found.paired if found else None
    return {
        "protocol": protocol,
        "task": TITLES[task],
        "models": BODIES[model],
        "pairs": pairs_of(paired) if paired else 0,
        "standard's median": found.standard if found else None,
        "harmonic's median": found.harmonic if found else None,
        "difference [95 %]": in_epochs(paired.difference) if paired else None,
        "smaller on": paired.less if paired else None,
        "larger on": paired.greater if paired else None,
        "p, sign test": paired.sign_p if paired else None,
        "p, signed ranks": paired.rank_p if paired else None,
        "harmonic's gap is": found.outcome if found else "undecided",
        "pairs that reach": pairs_of(found.reaching) if found and found.reaching else 0,
        "their difference [95 %]": in_epochs(found.reaching.difference) if found and found.reaching else None,
    }


EXPERIMENT = view(
    runs.EXPERIMENT,
    name="grokking",
    title="How long the test waits for the training",
    figure="Fig. 3 c",
    claims=CLAIMS,
    old_summarize=summarize,
    old_figures=figures,
)
