"""Harmonic loss against the losses people would otherwise use, each at its best (appendix).

    harmax run rivals_mlp                  three losses, one task, cut short: under a minute on two CPU cores
    harmax run rivals_mlp --full           17 losses and 5 variants, five tasks, 20 seeds; meant for a GPU
    harmax run rivals_transformer --full   the same with transformers; a study of its own, since nothing is compared
                                           across models

Matched protocol: every arm's learning rate and weight decay come from one and the same search on held-out seeds
(search.py); then it is trained on the authors' 20 seeds, which no search has seen. Authors' protocol: the losses of the
paper's appendix on its two tasks, all at the authors' learning rate and weight decay. What the search finds is kept as
it comes, and beside each run that was trained with it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harmax_lab.algorithmic import anchors
from harmax_lab.algorithmic.protocols import Settings
from harmax_lab.algorithmic.training import stacks_of, train
from harmax_lab.kit.experiment import Context, Experiment, Summary
from harmax_lab.kit.store import CellResult
from harmax_lab.studies.arms import APPENDIX, ARMS, RivalCell, find_arm, settings_of
from harmax_lab.studies.outcomes import BODIES, PAPERS_TASKS, compact
from harmax_lab.studies.rivals_claims import claims_of, judge
from harmax_lab.studies.rivals_figures import figures
from harmax_lab.studies.rivals_tables import tables
from harmax_lab.studies.search import SHARE_OF_WORK, Searched, SearchSpec, search

Results = Mapping[RivalCell, CellResult]


@dataclass(frozen=True, kw_only=True)
class RivalsSpec(SearchSpec):
    """Settings of the comparison."""

    losses: tuple[str, ...] = tuple(ARMS)
    authors_tasks: tuple[str, ...] = PAPERS_TASKS
    mlp_epochs: int = 4000
    """Fewer than the authors' 7000, as for transformers, so that all of it stays within minutes on a GPU."""
    transformer_epochs: int = 3000


def cells(spec: RivalsSpec) -> list[RivalCell]:
    """List every protocol, loss, model, task and seed; the authors' protocol has the losses of the appendix alone."""
    return [
        RivalCell(place.protocol, task, place.model, find_arm(loss).head, spec.train_fraction, seed, loss)
        for place in spec.places()
        for loss in spec.losses
        if place.protocol == "matched" or loss in APPENDIX
        for task in place.tasks
        for seed in spec.seeds
    ]


def run_cells(spec: RivalsSpec, group: Sequence[RivalCell], context: Context) -> Iterator[tuple[RivalCell, CellResult]]:
    """Search for the losses of the matched protocol, and train all runs, those with what was found.

    What is searched for does not change a GPU's code, which is therefore compiled during the search. A loss whose
    search fails has no runs; its error is raised after those of the others.
    """
    pairs = dict.fromkeys((cell.loss, cell.model) for cell in group if cell.protocol == "matched")

    def usual(cell: RivalCell) -> Settings:
        return settings_of(cell.protocol, cell.model, cell.loss, epochs=spec.epochs(cell.model))

    def how(cell: RivalCell) -> Settings:
        if cell.protocol != "matched":
            return usual(cell)
        rate, decay = found[cell.loss, cell.model].choice
        return replace(usual(cell), learning_rate=spec.learning_rates[rate], weight_decay=spec.weight_decays[decay])

    ahead = (job for _, job in stacks_of(group, usual, context.device, snapshots=2))
    found: dict[tuple[str, str], Searched] = {}
    failure: Exception | None = None
    try:
        for pair, searched in search(spec, list(pairs), context, ahead=ahead):
            found[pair] = searched
    except Exception as error:
        failure = error
    group = [cell for cell in group if cell.protocol != "matched" or (cell.loss, cell.model) in found]

    def tell(fraction: float, message: str = "", /) -> None:
        before = SHARE_OF_WORK if pairs else 0.0
        context(before + (1 - before) * fraction, message)

    for cell, result in compact(train(group, how, replace(context, progress=tell), snapshots=2, centers=True)):
        tuned = cell.protocol == "matched"
        yield cell, with_search(result, found[cell.loss, cell.model]) if tuned else result
    if failure is not None:
        raise failure


def with_search(result: CellResult, searched: Searched) -> CellResult:
    """Put the whole search, and what it chose, beside a run that was trained with it."""
    late, whole = (np.asarray(array, dtype=np.float32) for array in searched)
    return replace(
        result,
        arrays={**result.arrays, "search_late": late, "search_whole": whole},
        metrics={**result.metrics, "choice": list(searched.choice)},
    )


def summarize(spec: RivalsSpec, results: Results) -> Summary:
    """Judge every claim, and tabulate verdicts, comparisons, the search and epochs."""
    wanted = cells(spec)
    asked = [claim for model in spec.models for claim in claims_of(model)]
    return Summary(tuple(judge(claim, spec, FULL, wanted, results) for claim in asked), tables(spec, results))


FULL = RivalsSpec(seeds=anchors.SEEDS)
"""Of both models; a study has one of them."""
FEW: dict[str, Any] = dict(
    tasks=("modular_addition",),
    learning_rates=(2e-3, 8e-3),
    search_seeds=(2001,),
    search_tasks=("modular_addition",),
)


def experiment_of(model: str, *, quick: dict[str, Any]) -> Experiment[RivalsSpec, RivalCell]:
    """Return the study of one model.

    Args:
        model: a key of `BODIES`.
        quick: how many epochs the quick profile trains, by the names of the spec.
    """
    smoke: dict[str, Any] = {name: 1 for name in quick}
    return Experiment(
        name=f"rivals_{model}",
        title=f"Harmonic loss against its rivals, each tuned: {BODIES[model]}",
        figure="Appendix on other losses",
        claims=claims_of(model),
        profiles={
            "smoke": RivalsSpec(
                seeds=(0, 1),
                models=(model,),
                losses=("harmonic", "linear", "supcon"),
                authors_tasks=("lattice",),
                weight_decays=(0.01,),
                **FEW,
                **smoke,
            ),
            "quick": RivalsSpec(
                seeds=anchors.SEEDS[:3],
                models=(model,),
                losses=("harmonic", "linear", "supcon", "harmonic_untied", "linear_untied"),
                protocols=("matched",),
                weight_decays=(0.0, 0.3),
                **FEW,
                **quick,
            ),
            "full": replace(FULL, models=(model,)),
        },
        cells=cells,
        run_cells=run_cells,
        old_summarize=summarize,
        old_figures=figures,
        group=lambda cell: None,  # side by side: a GPU is never left waiting for a compiler, or for a last straggler
        pieces=lambda cell: (cell.protocol, cell.model, cell.loss),
        accelerated=True,
    )


MLP = experiment_of("mlp", quick=dict(mlp_epochs=48, search_mlp_epochs=10))
TRANSFORMER = experiment_of("transformer", quick=dict(transformer_epochs=8, search_transformer_epochs=3))
