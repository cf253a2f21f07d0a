"""The same small search for every loss: learning rate and weight decay, on seeds that are used for nothing else.

A setting's score is the test accuracy over the last tenth of its training, averaged over held-out seeds and the tasks
of the search; a diverged run has 0. Of all settings within 0.01 of the best score the one with the highest
accuracy over the whole training is taken: the one that gets there soonest.
"""

# L learning rates, W weight decays, T tasks, R held-out seeds

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harmax.errors import DamagedError
from harmax.files import read_json, write_json
from harmax_lab.algorithmic.protocols import Settings
from harmax_lab.algorithmic.training import train
from harmax_lab.ensemble import Job
from harmax_lab.kit.experiment import Context
from harmax_lab.kit.store import CellResult
from harmax_lab.studies.arms import ARMS, RivalCell, settings_of
from harmax_lab.studies.outcomes import LATE, StudySpec, mean_accuracy

TIE = 0.01
SHARE_OF_WORK = 0.6  # for progress: about what the search takes of all


@dataclass(frozen=True, kw_only=True)
class SearchSpec(StudySpec):
    """Settings of the search."""

    learning_rates: tuple[float, ...] = (5e-4, 2e-3, 8e-3, 3.2e-2, 1.28e-1)
    weight_decays: tuple[float, ...] = (0.0, 0.01, 0.3, 1.0)
    search_seeds: tuple[int, ...] = (2001, 2002, 2003, 2004, 2005)
    search_tasks: tuple[str, ...] = ("modular_addition", "genealogy", "permutation")
    """Questions of one length, so that a loss's whole search is one stack."""
    search_mlp_epochs: int = 4000
    """As long as the final runs: a search cut short favors what starts fast."""
    search_transformer_epochs: int = 2000
    """Two thirds of the final runs: what is left fits into an hour on a GPU."""

    def __post_init__(self) -> None:
        both = sorted(set(self.seeds) & set(self.search_seeds))
        if both:
            raise ValueError(
                f"`search_seeds` must be held out, got {both}, which are among `seeds`; take seeds below 2001."
            )

    def search_epochs(self, model: str) -> int:
        """Return how long a model is trained in the search."""
        return self.search_mlp_epochs if model == "mlp" else self.search_transformer_epochs

    def search_cut(self, full: "SearchSpec", model: str) -> str:
        """Say that this search is less than the full one's, so that nothing tuned by it is decided; else nothing."""
        grids = ("learning_rates", "weight_decays", "search_tasks")
        whole = all(set(getattr(full, grid)) <= set(getattr(self, grid)) for grid in grids)
        enough = len(self.search_seeds) >= len(full.search_seeds)
        long = self.search_epochs(model) >= full.search_epochs(model)
        return "" if whole and enough and long else "The search was cut down."


@dataclass(frozen=True)
class Trial(RivalCell):
    """One run of the search."""

    learning_rate: float
    weight_decay: float


class Searched(NamedTuple):
    """What the search found for one loss and model."""

    late: np.ndarray
    """Test accuracy at the end, (L, W, T, R)."""
    whole: np.ndarray
    """Test accuracy over the whole training, (L, W, T, R)."""

    @property
    def choice(self) -> tuple[int, int]:
        """Places of the chosen learning rate and weight decay."""
        return choose(self.late.mean((2, 3)), self.whole.mean((2, 3)))


def choose(late_LW: np.ndarray, whole_LW: np.ndarray) -> tuple[int, int]:
    """Return the places of the chosen learning rate and weight decay.

    >>> choose(np.array([[0.90, 0.5], [0.895, 0.2]]), np.array([[0.3, 0.4], [0.6, 0.1]]))
    (1, 0)
    """
    ranked = np.where(late_LW >= late_LW.max() - TIE, whole_LW, -np.inf)
    rate, decay = np.unravel_index(int(ranked.argmax()), ranked.shape)
    return int(rate), int(decay)


def ends_of(spec: SearchSpec, choice: Sequence[int]) -> list[str]:
    """Return which numbers of a choice lie at an end of their grid, where a better one may lie beyond.

    There is no weight decay below 0.

    >>> ends_of(SearchSpec(), (4, 0)), ends_of(SearchSpec(), (1, 3))
    (['learning rate'], ['weight decay'])
    """
    rate, decay = choice
    lowest = decay == 0 and spec.weight_decays[0] > 0
    at_end = {
        "learning rate": rate in (0, len(spec.learning_rates) - 1),
        "weight decay": lowest or decay == len(spec.weight_decays) - 1,
    }
    return [name for name, there in at_end.items() if there]


def search(
    spec: SearchSpec, pairs: Sequence[tuple[str, str]], context: Context, *, ahead: Iterable[Job] = ()
) -> Iterator[tuple[tuple[str, str], Searched]]:
    """Search for every pair of loss and model, or read what an interrupted call has found; yield each as it comes.

    Args:
        spec: the grid, the tasks, the seeds.
        pairs: of loss and model.
        context: where to compute, and to keep what is found.
        ahead: what is trained afterwards, as for `train`.
    """
    path = context.scratch / "search.json"
    known = _read(path)
    yield from ((pair, known[pair]) for pair in pairs if pair in known)
    todo = [pair for pair in pairs if pair not in known]
    part = replace(context, progress=lambda fraction, message="": context(SHARE_OF_WORK * fraction, message))
    done: dict[tuple[str, str], dict[Trial, CellResult]] = {}
    wanted = trials(spec, todo)
    for trial, result in train(wanted, lambda trial: trial_settings(spec, trial), part, snapshots=2, ahead=ahead):
        pair = trial.loss, trial.model
        own = done.setdefault(pair, {})
        own[trial] = result
        if len(own) == len(wanted) // len(todo):
            found = _gather(spec, own)
            context.scratch.mkdir(parents=True, exist_ok=True)
            everything = {**_read(path), pair: found}  # another process may have added to it
            write_json(path, {",".join(key): [array.tolist() for array in one] for key, one in everything.items()})
            yield pair, found


def with_their_search(results: Mapping[RivalCell, CellResult]) -> dict[tuple[str, str], CellResult]:
    """Return one run of each loss and model that has its search beside it."""
    return {(cell.loss, cell.model): result for cell, result in results.items() if "search_late" in result.arrays}


def trials(spec: SearchSpec, pairs: Iterable[tuple[str, str]]) -> list[Trial]:
    """List every run of the search, in the order of its arrays."""
    return [
        Trial("matched", task, model, ARMS[loss].head, spec.train_fraction, seed, loss, rate, decay)
        for loss, model in pairs
        for rate, decay, task, seed in itertools.product(
            spec.learning_rates, spec.weight_decays, spec.search_tasks, spec.search_seeds
        )
    ]


def trial_settings(spec: SearchSpec, trial: Trial) -> Settings:
    """Return how a trial is trained: as the final runs, for its own epochs and with its own two numbers."""
    how = settings_of(trial.protocol, trial.model, trial.loss, epochs=spec.search_epochs(trial.model))
    return replace(how, learning_rate=trial.learning_rate, weight_decay=trial.weight_decay)


def _gather(spec: SearchSpec, results: Mapping[Trial, CellResult]) -> Searched:
    shape = (len(spec.learning_rates), len(spec.weight_decays), len(spec.search_tasks), len(spec.search_seeds))
    pair = next((trial.loss, trial.model) for trial in results)
    ordered = [results[trial] for trial in trials(spec, [pair])]
    both = [[_accuracy(result, share) for result in ordered] for share in (LATE, 1.0)]
    late, whole = (np.array(some, dtype=np.float64).reshape(shape) for some in both)
    return Searched(late, whole)


def _accuracy(result: CellResult, share: float) -> float:
    if result.metrics["diverged_at"] is not None:
        return 0.0
    return mean_accuracy(result.curves["test_accuracy"], share)


def _read(path: Path) -> dict[tuple[str, str], Searched]:
    if not path.exists():
        return {}
    try:
        stored: dict[str, Any] = read_json(path)
        return {_pair(key): Searched(*map(np.array, both)) for key, both in stored.items()}
    except (DamagedError, TypeError, ValueError):
        return {}  # it costs a search, not a result


def _pair(key: str) -> tuple[str, str]:
    loss, model = key.split(",")
    return loss, model
