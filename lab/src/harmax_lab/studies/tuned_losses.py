"""The losses that are compared, how each is trained under a protocol, and the search that tunes it.

Every loss has the settings for which `harmax_lab.losses` gives a source; only learning rate and weight decay are
searched. All losses are tied to the embedding, except those whose weight reads classes off features that it must not
train, and none has a bias. For the two losses that the paper compares, tying and bias are crossed as arms of their own;
one more arm is harmonic loss with the square root of the width as its exponent. Losses over pairs of rows have larger
batches than the protocol's, so with as many epochs they have fewer updates.

The search is the same for every loss, on seeds that are used for nothing else. The score of a setting is the test
accuracy over the last tenth of its training, averaged over held-out seeds and the tasks of the search; a diverged run
has 0. Among the settings within 0.01 of the best score, the one with the highest accuracy over the whole training is
chosen: the one that gets there soonest.
"""

# L learning rates, W weight decays, T tasks, R held-out seeds

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harmax.errors import DamagedError, unknown
from harmax.files import read_json, write_json
from harmax_lab.algorithmic.protocols import Settings, settings
from harmax_lab.algorithmic.training import RunCell, stacks_of, train
from harmax_lab.ensemble import Job
from harmax_lab.kit.experiment import Context
from harmax_lab.kit.rules import Choice
from harmax_lab.kit.store import CellResult
from harmax_lab.losses import LOSSES as HEADS
from harmax_lab.losses import LossHead
from harmax_lab.studies.compare_arms import StudySpec
from harmax_lab.studies.score_runs import LATE, compact, mean_accuracy

SOFTENING_OF_T = 1.0  # t-SNE's kernel
PAIRS_BATCH = 256
"""Rows per batch of the losses over pairs, in the search and in the final runs, under both protocols. In the protocols'
32 a row of modular addition has one other of its class on average, and a third of the rows have none. With those a
supervised contrastive MLP stays collapsed for 6000 updates at rates from 2e-3 to 3.2e-2; with 256 it has a test
accuracy above 0.9 after 1500 from 8e-3 on. Transformers there stay collapsed for 3000 updates with either."""
ROOT = 4.0
"""The square root of the width, the default exponent of `HarmonicHead`. It is not the paper's: its text has 1 for small
models, its code 2, and its rule, sqrt(D), speaks of the intrinsic dimension of the data."""


@dataclass(frozen=True)
class Arm:
    """One loss with its tying and bias."""

    head: str
    """A name in `harmax_lab.losses.LOSSES`."""
    label: str
    tied: bool = True
    bias: bool = False
    options: tuple[tuple[str, float], ...] = ()
    """Given to the head in place of its defaults."""
    exponent: float | None = None
    """In place of the protocol's."""


ARMS: dict[str, Arm] = {
    "harmonic": Arm("harmonic", "harmonic"),
    "linear": Arm("linear", "cross-entropy"),
    "l2": Arm("l2", "distance, softmax"),
    "gaussian": Arm("gaussian", "Gaussian prototypes", options=(("precision", 2.0),)),  # the squared distance itself
    "student_t": Arm("student_t", "Student-t"),
    "spherical": Arm("spherical", "spherical softmax"),
    "stablemax": Arm("stablemax", "StableMax"),
    "large_margin": Arm("large_margin", "large-margin softmax"),
    "normface": Arm("normface", "NormFace"),
    "cosface": Arm("cosface", "CosFace"),
    "arcface": Arm("arcface", "ArcFace"),
    "isomax_plus": Arm("isomax_plus", "IsoMax+"),
    "dismax": Arm("dismax", "DisMax"),
    "center": Arm("center", "center loss"),
    "supcon": Arm("supcon", "supervised contrastive", tied=False),
    "infonce": Arm("infonce", "InfoNCE", tied=False),
    "contrastive": Arm("contrastive", "contrastive, margin", tied=False),
    "linear_bias": Arm("linear", "cross-entropy, bias", bias=True),
    "linear_untied": Arm("linear", "cross-entropy, untied", tied=False),
    "linear_untied_bias": Arm("linear", "cross-entropy, untied, bias", tied=False, bias=True),
    "harmonic_untied": Arm("harmonic", "harmonic, untied", tied=False),
    "harmonic_root": Arm("harmonic", f"harmonic, exponent {ROOT:g}", exponent=ROOT),
}
LABELS = {name: arm.label for name, arm in ARMS.items()}
VARIANTS = ("linear_bias", "linear_untied", "linear_untied_bias", "harmonic_untied", "harmonic_root")
"""Tying, bias and exponent of the paper's two losses; these are no rivals, and are left out where losses are ranked."""
LOSSES = tuple(name for name in ARMS if name not in VARIANTS)
CONTRASTIVE = ("supcon", "infonce", "contrastive")
APPENDIX = ("harmonic", "linear", "spherical", "large_margin", "normface", "cosface", "arcface", *CONTRASTIVE)
"""Under the authors' protocol too: the paper's two losses, and published ones of the three families that its appendix
discusses, contrastive, margin-based and spherical. The losses that the appendix runs are in `authors_losses`."""


@dataclass(frozen=True)
class RivalCell(RunCell):
    """One model trained with one arm, a key of `ARMS`."""

    loss: str


def find_arm(name: str) -> Arm:
    """Return the arm of that name; the error for a name that does not exist lists those that are near."""
    if name not in ARMS:
        raise ValueError(unknown("loss", name, ARMS))
    return ARMS[name]


def reads_out(name: str) -> bool:
    """Whether an arm's loss is over pairs of rows, and its weight only reads classes off features it does not train.

    >>> reads_out("supcon"), reads_out("linear_untied")
    (True, False)
    """
    head = HEADS[find_arm(name).head]
    return issubclass(head, LossHead) and head.reads_out


def settings_of(protocol: str, model: str, loss: str, *, epochs: int) -> Settings:
    """Return how an arm is trained before any search.

    Under the authors' protocol their two arms are as in their code. The others are tied where they can be, like the
    authors' standard models, and have no bias.
    """
    arm = find_arm(loss)
    how = settings(protocol, model, "harmonic" if arm.head == "harmonic" else "linear", epochs=epochs)
    if protocol == "authors" and loss in ("linear", "harmonic"):
        return how
    return replace(
        how,
        tied=arm.tied,
        bias=arm.bias,
        exponent=how.exponent if arm.exponent is None else arm.exponent,
        softening=SOFTENING_OF_T if arm.head == "student_t" else how.softening,
        batch_size=PAIRS_BATCH if reads_out(loss) else how.batch_size,
        options=arm.options,
    )


def reference_of(loss: str, base: str, protocol: str) -> str:
    """Return what an arm is compared with: the reference, or its untied variant where the arm is untied too.

    A variant of the reference itself is compared with the reference: the difference is what tying or bias do. Under the
    authors' protocol there are no variants, and the reference is tied or not as in their code.

    >>> reference_of("arcface", "harmonic", "matched"), reference_of("supcon", "harmonic", "matched")
    ('harmonic', 'harmonic_untied')
    >>> reference_of("harmonic_untied", "harmonic", "matched"), reference_of("supcon", "harmonic", "authors")
    ('harmonic', 'harmonic')
    """
    arm = ARMS[loss]
    alike = arm.tied or arm.head == ARMS[base].head
    return base if alike or protocol == "authors" else f"{base}_untied"


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
    """Two thirds of the final runs, so that the rest fits into an hour on a GPU."""

    def __post_init__(self) -> None:
        both = sorted(set(self.seeds) & set(self.search_seeds))
        if both:
            raise ValueError(f"`search_seeds` must be held out, got {both}, also among `seeds`; take seeds below 2001.")

    def search_epochs(self, model: str) -> int:
        """Return how long a model is trained in the search."""
        return self.search_mlp_epochs if model == "mlp" else self.search_transformer_epochs

    @property
    def axes(self) -> tuple[tuple[Any, ...], ...]:
        """What the search crosses, in the order of its arrays."""
        return self.learning_rates, self.weight_decays, self.search_tasks, self.search_seeds

    @property
    def grid(self) -> list[str]:
        """Name every setting by its two numbers, in the order of the search's arrays."""
        return [f"{rate:g}, {decay:g}" for rate in self.learning_rates for decay in self.weight_decays]

    def short_of(self, cells: Sequence[Any]) -> str:
        """Say that the runs, or the search behind the tuned ones, are smaller than the full profile's."""
        full, tuned = type(self)(), {cell.model for cell in cells if cell.protocol == "matched"}
        grids = ("learning_rates", "weight_decays", "search_tasks")
        whole = all(set(getattr(full, grid)) <= set(getattr(self, grid)) for grid in grids)
        enough = len(self.search_seeds) >= len(full.search_seeds)
        long = all(self.search_epochs(model) >= full.search_epochs(model) for model in tuned)
        return super().short_of(cells) or "The search was cut down." * (bool(tuned) and not (whole and enough and long))

    def choices_of(self, loss: str, metrics: Mapping[str, Any]) -> list[Choice]:
        """Return what the search chose for an arm, given the metrics of one of its runs.

        >>> spec = SearchSpec()
        >>> [str(one) for one in spec.choices_of("l2", {"learning_rate": 0.128, "weight_decay": 0.0}) if one.at_end]
        ['distance, softmax, learning rate 0.128']
        """
        grids = {"learning rate": (self.learning_rates, ()), "weight decay": (self.weight_decays, (0.0,))}
        return [
            Choice(LABELS[loss], name, metrics[name.replace(" ", "_")], tried, natural)
            for name, (tried, natural) in grids.items()
        ]


@dataclass(frozen=True)
class Trial(RivalCell):
    """One run of the search."""

    learning_rate: float
    weight_decay: float


class Searched(NamedTuple):
    """What the search found for one loss and model: test accuracies, (L, W, T, R)."""

    late: np.ndarray
    """At the end of the training."""
    whole: np.ndarray
    """Over the whole training."""

    @property
    def choice(self) -> tuple[int, int]:
        """Places of the chosen learning rate and weight decay."""
        late_LW, whole_LW = (array.mean((2, 3)) for array in self)
        ranked = np.where(late_LW >= late_LW.max() - TIE, whole_LW, -np.inf)
        rate, decay = np.unravel_index(int(ranked.argmax()), ranked.shape)
        return int(rate), int(decay)


def search(
    spec: SearchSpec, pairs: Sequence[tuple[str, str]], context: Context, *, ahead: Iterable[Job] = ()
) -> Iterator[tuple[tuple[str, str], Searched]]:
    """Search for every pair of loss and model, or read what an interrupted call has found; yield each as it comes.

    Each pair's result is kept in a file of its own, so that processes can share it. `ahead` is as for `train`.
    """
    paths = {pair: context.scratch / "search" / f"{','.join(pair)}.json" for pair in pairs}
    known = {pair: found for pair, path in paths.items() if (found := _read(path))}
    yield from known.items()
    todo = [pair for pair in pairs if pair not in known]
    part = _part_of(context, 0.0, SHARE_OF_WORK)
    done: dict[tuple[str, str], dict[Trial, CellResult]] = {}
    wanted = trials(spec, todo)
    for trial, result in train(wanted, partial(trial_settings, spec), part, snapshots=2, ahead=ahead):
        pair = trial.loss, trial.model
        own = done.setdefault(pair, {})
        own[trial] = result
        if len(own) == len(wanted) // len(todo):
            found = _gather(spec, pair, own)
            write_json(paths[pair], [array.tolist() for array in found])
            yield pair, found


def trials(spec: SearchSpec, pairs: Iterable[tuple[str, str]]) -> list[Trial]:
    """List every run of the search, in the order of its arrays."""
    return [
        Trial("matched", task, model, ARMS[loss].head, spec.train_fraction, seed, loss, rate, decay)
        for (loss, model), (rate, decay, task, seed) in product(pairs, product(*spec.axes))
    ]


def trial_settings(spec: SearchSpec, trial: Trial) -> Settings:
    """Return how a trial is trained: as the final runs, for its own epochs and with its own two numbers."""
    how = settings_of(trial.protocol, trial.model, trial.loss, epochs=spec.search_epochs(trial.model))
    return replace(how, learning_rate=trial.learning_rate, weight_decay=trial.weight_decay)


def _gather(spec: SearchSpec, pair: tuple[str, str], results: Mapping[Trial, CellResult]) -> Searched:
    shape = [len(one) for one in spec.axes]
    ordered = [results[trial] for trial in trials(spec, [pair])]

    def accuracy(share: float) -> np.ndarray:
        means = [mean_accuracy(one.curves["test_accuracy"], share) for one in ordered]
        diverged = [one.metrics["diverged_at"] is not None for one in ordered]
        return np.where(diverged, 0.0, means).reshape(shape)

    return Searched(accuracy(LATE), accuracy(1.0))


def _part_of(context: Context, start: float, end: float) -> Context:
    return replace(context, progress=lambda fraction, message="": context(start + (end - start) * fraction, message))


def _read(path: Path) -> Searched | None:
    try:
        return Searched(*map(np.array, read_json(path)))
    except (DamagedError, TypeError, ValueError):
        return None  # it costs a search, not a result


def run_cells(spec: SearchSpec, group: Sequence[RivalCell], context: Context) -> Iterator[tuple[RivalCell, CellResult]]:
    """Search for the losses of the matched protocol, then train all runs, those losses with what was found.

    The code that a GPU needs does not depend on what the search finds, so it is compiled during the search. A loss
    whose search fails has no runs; its error is raised after the runs of the others.
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
    rest = _part_of(context, SHARE_OF_WORK if pairs else 0.0, 1.0)
    for cell, result in compact(train(group, how, rest, snapshots=2, centers=True)):
        if cell.protocol == "matched":
            own = found[cell.loss, cell.model]
            arrays = {f"search_{name}": np.asarray(array, dtype=np.float32) for name, array in own._asdict().items()}
            metrics = {**result.metrics, "choice": list(own.choice)}
            result = replace(result, arrays={**result.arrays, **arrays}, metrics=metrics)
        yield cell, result
    if failure is not None:
        raise failure


def measure(spec: SearchSpec, cell: RivalCell, result: CellResult) -> dict[str, Any]:
    """Return, for a tuned run, the accuracies of its search, and which chosen numbers lie at an end of the grid."""
    if cell.protocol != "matched":
        return {}
    rate, decay = result.metrics["learning_rate"], result.metrics["weight_decay"]
    ends = [choice.name for choice in spec.choices_of(cell.loss, result.metrics) if choice.at_end]
    found: dict[str, Any] = {"at_end": " and ".join(ends)}
    if (late_LWTR := result.arrays.get("search_late")) is not None:
        found |= dict(zip(map("search {}".format, spec.grid), map(float, late_LWTR.mean((2, 3)).flat), strict=True))
        late_LWT = late_LWTR.mean(3)
        chosen_T = late_LWT[spec.learning_rates.index(rate), spec.weight_decays.index(decay)]
        for which, accuracy_T in (("chosen", chosen_T), ("best", late_LWT.max((0, 1)))):
            names = (f"search {task}, {which}" for task in spec.search_tasks)
            found |= dict(zip(names, map(float, accuracy_T), strict=True))
    return found
