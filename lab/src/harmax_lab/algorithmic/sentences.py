"""The paper's sentences about these runs as claims, and the judgments that several of them share.

A sentence is judged under the authors' protocol. The same under the matched protocol is a control.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from harmax_lab.kit.claims import Claim
from harmax_lab.kit.judges import Judge
from harmax_lab.kit.results import Results, where
from harmax_lab.kit.rules import LEAST_SEEDS
from harmax_lab.kit.store import CellResult
from harmax_lab.paper.readings import PASSED
from harmax_lab.tasks import PROTOCOLS


def said(
    name: str,
    sentences: tuple[str, ...],
    statement: str,
    judge: Judge,
    *,
    paper: str = "",
    seeds: int = LEAST_SEEDS,
    **cells: Any,
) -> tuple[Claim, ...]:
    """Return the paper's claim about what embeddings look like, and the same under the matched protocol as a control.

    Args:
        name: of the paper's claim; the control's ends in "_matched".
        sentences: that say so.
        statement: what they say, and how they are read; without the last dot.
        judge: judges the cells of one protocol.
        paper: what the paper or the authors' files report besides.
        seeds: how many are needed.
        cells: fields of the cells that the claim needs, besides the protocol.
    """
    return tuple(
        Claim(
            f"{name}{'_matched' * (protocol != 'authors')}",
            f"{statement} ({protocol} protocol).",
            paper if protocol == "authors" else "",
            sentences=sentences if protocol == "authors" else (),
            needs=where(protocol=protocol, **cells),
            judge=judge,
            seeds=seeds,
            passing=passes,
        )
        for protocol in PROTOCOLS
    )


def passes(result: CellResult) -> bool:
    """Return whether a run passes the test at its last epoch; a view must measure `test_accuracy`."""
    return bool(result.metrics["test_accuracy"] >= PASSED)


def over_seeds(results: Results, metric: str, effect: Callable[[float, float], float]) -> list[float]:
    """Return one number per seed: the mean effect of the harmonic head over its tasks and models.

    Args:
        results: of one protocol.
        metric: of each run.
        effect: of the metrics of the harmonic and of the standard run with the same task, model and seed.
    """
    found: dict[int, list[float]] = {}
    pairs = results.pairs(metric, "head", "harmonic", "linear", on=("seed", "task", "model"))
    for (seed, _, _), pair in pairs.items():
        found.setdefault(seed, []).append(effect(*pair))
    return [float(np.mean(effects)) for effects in found.values()]
