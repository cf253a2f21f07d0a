"""How the arms of a study are compared, on one seed first and then over seeds, and how claims about them are judged.

A comparison is a weighted sum of the scores of arms that ran on one seed, averaged over tasks where there are several.
Intervals and tests are over seeds: they speak of other seeds, not of other tasks. Effect sizes come first, then
p-values, corrected by Holm's rule. Where a level is shared among several intervals, the corrected p-value must agree,
because at such levels the bootstrap interval of 20 values is too short.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from harmax.analysis import PairedDifference, holm, paired_difference
from harmax_lab.algorithmic import anchors
from harmax_lab.algorithmic.protocols import Settings
from harmax_lab.algorithmic.runs import BODIES, TITLES
from harmax_lab.algorithmic.training import train
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.experiment import Context, Spec, Work
from harmax_lab.kit.judges import SIGNIFICANT, listed, shared_level, signed
from harmax_lab.kit.results import Results, compare, interval
from harmax_lab.kit.store import CellResult
from harmax_lab.paper.readings import PASSED
from harmax_lab.studies.score_runs import SCORES, compact
from harmax_lab.tasks import PROTOCOLS, TASKS

PAPERS_TASKS = ("lattice", "modular_addition")
"""The tasks of the paper's own ablation, exponents and rivals."""
MARGIN = 0.05
"""Of a score: a smaller difference is not worth a claim."""
FEW = 3  # differences that one sentence can list
BREAKING = "breaking"  # a key of a finding's numbers
SMOKE: dict[str, Any] = dict(seeds=(0, 1), models=("mlp",), tasks=("modular_addition",), mlp_epochs=2)
QUICK: dict[str, Any] = dict(  # questions of one length: one stack per head
    seeds=anchors.SEEDS[:3], models=("mlp",), tasks=("modular_addition", "permutation"), mlp_epochs=48
)
Weights = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class StudySpec(Spec):
    """Settings that the studies share; protocols.py of the algorithmic experiments says what a protocol fixes."""

    protocols: tuple[str, ...] = PROTOCOLS
    models: tuple[str, ...] = tuple(BODIES)
    tasks: tuple[str, ...] = tuple(TASKS)
    authors_tasks: tuple[str, ...] = tuple(TASKS)
    """Under the authors' protocol."""
    train_fraction: float = 0.8
    mlp_epochs: int = anchors.EPOCHS
    transformer_epochs: int = anchors.EPOCHS

    def tasks_under(self, protocol: str) -> tuple[str, ...]:
        """Return the tasks of a protocol."""
        return self.authors_tasks if protocol == "authors" else self.tasks

    def epochs(self, model: str) -> int:
        """Return how long a model is trained."""
        return self.mlp_epochs if model == "mlp" else self.transformer_epochs

    def short_of(self, cells: Sequence[Any]) -> str:
        """Compare the epochs with those of the full profile, which are the defaults."""
        for model in dict.fromkeys(cell.model for cell in cells):
            ran, asked = self.epochs(model), type(self)().epochs(model)
            if ran < asked:
                return f"Only {ran} of {asked} epochs were run with {BODIES[model]}."
        return ""

    def key(self, cell: Any) -> tuple[str, str, str, str]:
        """Return the protocol, model and task at which a cell is compared, and the name of its arm."""
        return cell.protocol, cell.model, cell.task, cell.head

    def places(self, found: Mapping[Any, CellResult] | None = None) -> list["Place"]:
        """List every protocol and model with all tasks of the protocol, and the finished runs there."""
        runs: dict[tuple[str, str], Any] = {at: {} for at in product(self.protocols, self.models)}
        for cell, result in (found or {}).items():
            protocol, model, task, arm = self.key(cell)
            runs[protocol, model].setdefault((task, arm), {})[cell.seed] = result
        return [Place(*at, self.tasks_under(at[0]), own) for at, own in runs.items()]


class Place(NamedTuple):
    """Where arms are compared: a model under a protocol, the tasks that are averaged over, and the runs there."""

    protocol: str
    model: str
    tasks: tuple[str, ...]
    runs: Mapping[tuple[str, str], Mapping[int, CellResult]] = {}
    """By task and arm, then by seed."""

    @property
    def words(self) -> str:
        """Name the task, or say how many there are."""
        return TITLES[self.tasks[0]] if len(self.tasks) == 1 else f"mean of {len(self.tasks)}"

    @property
    def columns(self) -> dict[str, Any]:
        """Begin a row of a table."""
        return {"protocol": self.protocol, "models": BODIES[self.model], "task": self.words}

    @property
    def arms(self) -> list[str]:
        """Names of the arms that have runs."""
        return list(dict.fromkeys(arm for _, arm in self.runs))

    def alone(self) -> list["Place"]:
        """List the tasks apart."""
        return [self._replace(tasks=(task,)) for task in self.tasks]

    def each(self) -> list["Place"]:
        """List the tasks apart and, where there are several, all together."""
        return [*self.alone(), self] if len(self.tasks) > 1 else self.alone()

    def metrics(self, arm: str) -> list[Mapping[str, Any]]:
        """List the metrics of an arm's runs on the first task."""
        return [result.metrics for result in self.runs.get((self.tasks[0], arm), {}).values()]

    def per_seed(self, weights: Weights, score: str) -> dict[int, float]:
        """Return a weighted sum of arms' scores for each seed that all of them have, averaged over the tasks."""

        def total(task: str, seed: int) -> float:
            return sum(weight * self.runs[task, arm][seed].metrics[score] for arm, weight in weights.items())

        seeds = set.intersection(*(set(self.runs.get(at, {})) for at in product(self.tasks, weights)))
        # Rounded, so that equal scores tie whatever the order of the sum.
        return {seed: round(float(np.mean([total(task, seed) for task in self.tasks])), 12) for seed in sorted(seeds)}

    def contrast(
        self, weights: Weights, score: str, limit: float = 0.0, level: float = 0.95
    ) -> PairedDifference | None:
        """Return a weighted sum of arms' scores minus a limit: mean over seeds, interval, tests; None without seeds."""
        found = list(self.per_seed(weights, score).values())
        return compare(found, [limit] * len(found), level=level) if found else None

    def epochs_later(self, arm: str, against: str) -> PairedDifference | None:
        """Return by how many epochs an arm generalizes later than another on one task: the median over seeds.

        Never is infinity; so there is no mean, and no mean over tasks.
        """
        (task,) = self.tasks
        one, two = (self.runs.get((task, name), {}) for name in (arm, against))
        if not (seeds := sorted(set(one) & set(two))):
            return None
        return paired_difference(*([runs[seed].metrics["test_epoch"] for seed in seeds] for runs in (one, two)))

    def mean(self, arm: str, score: str) -> str | None:
        """Write the mean over seeds of one arm's score, with its interval."""
        found = list(self.per_seed({arm: 1.0}, score).values())
        return str(interval(found)) if found else None


def minus(arm: str, against: str) -> dict[str, float]:
    """Return the weights of one arm minus another."""
    return {arm: 1.0, against: -1.0}


def switches(dot_harmax: str) -> dict[str, dict[str, float]]:
    """Return the weights of four arms in the two main effects and in the interaction of distance and HarMax.

    `dot_harmax` is the arm that stands for the inner product under HarMax.
    """
    return {
        "distance": {"l2": 0.5, "harmonic": 0.5, "linear": -0.5, dot_harmax: -0.5},
        "HarMax": {dot_harmax: 0.5, "harmonic": 0.5, "linear": -0.5, "l2": -0.5},
        "interaction": {"harmonic": 1.0, "l2": -1.0, dot_harmax: -1.0, "linear": 1.0},
    }


def written(found: PairedDifference | None, *, p: bool = False) -> str | None:
    """Write the mean and interval of a comparison with a sign, and the uncorrected p-value of its signed-rank test.

    >>> written(paired_difference([0.5, 0.6], [0.0, 0.0], statistic="mean"), p=True)
    '+0.550 [+0.500, +0.600], p 0.5'
    """
    return None if found is None else signed(found.difference, 3) + f", p {found.rank_p:.2g}" * p


def numbers_of(found: PairedDifference | None) -> dict[str, float] | None:
    """Return a difference with its interval as the numbers of a verdict."""
    return found.difference._asdict() if found else None


def _alike(found: PairedDifference) -> bool | None:
    _, low, high = found.difference
    return True if low > -MARGIN and high < MARGIN else False if low > MARGIN or high < -MARGIN else None


class Rule(NamedTuple):
    """How a claim is judged: in words, as part of its statement, and as a function of the place with its runs."""

    words: str
    judge: Callable[[Place], Finding]


def above(
    weights: Weights, words: str | Callable[[Place], str], score: str = "structure", *, alike: bool = False
) -> Rule:
    """Judge by a weighted sum of arms' scores: above 0, or (`alike`) near it; `words` say what the sum is."""

    def judge(place: Place) -> Finding:
        found = place.contrast(weights, score)
        holds = None if found is None else _alike(found) if alike else found.difference.above(0)
        named = words if isinstance(words, str) else words(place)
        sentence = f"{named}: {written(found, p=True)}, mean of {len(place.tasks)} tasks."
        return Finding(holds, sentence, {"difference": numbers_of(found)})

    where = f"within {MARGIN} of 0; broken where outside" if alike else "above 0; broken where below"
    return Rule(f"Holds where the 95 % interval of the mean over the tasks lies {where}", judge)


def none_ahead(
    pairs: Mapping[str, str], labels: Mapping[str, str], score: str, *, limit: float = 0.0, name_breaking: bool = False
) -> Rule:
    """Judge a claim about all of some arms: none passes its reference, as `pairs` has it, by more than a limit.

    It holds where every difference lies below the limit with its 95 % interval. This needs no correction: a claim that
    is wrong for one arm rarely passes for that arm. It is broken where one difference lies above the limit. One of many
    does so by chance; so it must do so at the level shared among them *and* by the signed-rank test against the limit,
    corrected by Holm's rule for all of them. `name_breaking` adds the arms that break it to the numbers.
    """

    def judge(place: Place) -> Finding:
        ran = {arm: against for arm, against in pairs.items() if arm in place.arms}

        def differences(**options: float) -> dict[str, PairedDifference]:
            tried = {arm: place.contrast(minus(arm, against), score, **options) for arm, against in ran.items()}
            return {arm: one for arm, one in tried.items() if one}

        if not (found := differences()):
            return Finding(None, "No seed has runs of two of these.", {})
        strict = differences(limit=limit, level=shared_level(len(ran)))
        p = dict(zip(strict, holm([one.rank_p for one in strict.values()]), strict=True))
        breaking = [arm for arm, one in strict.items() if one.difference.above(0) and p[arm] < SIGNIFICANT]
        behind = [arm for arm, one in found.items() if one.difference.above(limit) is False]
        holds = False if breaking else True if len(behind) == len(ran) else None
        best = max(found, key=lambda arm: found[arm].difference.estimate)
        some, few = (list(found), "") if len(found) <= FEW else ([best], "best of ")
        shown = {f"{labels[arm]} minus {labels[ran[arm]]}": written(found[arm]) for arm in some}
        sentence = (
            f"{SCORES[score].capitalize()}, mean of {len(place.tasks)} tasks: {few}{listed(shown)}. Clearly below "
            f"{limit:g}: {len(behind)} of {len(ran)}."
        )
        if holds is None and found[best].difference.above(limit):
            ends = ", ".join(f"{limit + end:+.3f}" for end in strict[best].difference[1:])
            sentence += f" Corrected for {len(found)}: [{ends}], p against {limit:g} {p[best]:.2g}: not decided."
        numbers = {f"difference_{arm}": numbers_of(one) for arm, one in found.items()}
        named = {BREAKING: {arm: ran[arm] for arm in breaking}} if name_breaking else {}
        return Finding(holds, sentence, {**numbers, **named})

    words = (
        f"Holds where every difference lies below {limit:g} with its 95 % interval; broken where one lies above by an "
        "interval and a signed-rank test, both corrected for the number of differences"
    )
    return Rule(words, judge)


def passed(result: CellResult) -> bool:
    """Return whether a run passes the test."""
    return bool(result.metrics["accuracy"] >= PASSED)


def study_claim(
    name: str,
    said: str,
    rule: Rule,
    *,
    suffix: str,
    where: str,
    full: StudySpec,
    protocol: str,
    model: str,
    arms: Iterable[str] = (),
    must: Collection[str] | None = None,
    tasks: tuple[str, ...] | None = None,
    **claim: Any,
) -> Claim:
    """Return a claim about the arms of one model under one protocol.

    It rests on `arms` (none: all that were run) and on `tasks` (None: all of the full spec, (): whichever were run).
    Nothing can be said without the arms in `must` (None: all). Nothing is decided while an arm or a task is missing.
    `claim` are further fields of the claim. Without `sentences` of the paper it is a control.
    """
    wanted, wanted_tasks = set(arms), set(full.tasks_under(protocol) if tasks is None else tasks)

    def needs(cell: Any) -> bool:
        *at, task, arm = full.key(cell)
        return at == [protocol, model] and (not wanted or arm in wanted) and (not tasks or task in tasks)

    def judge(results: Results[Any, Any]) -> Finding:
        place = next((one for one in results.spec.places(results) if one.runs), None)
        ran = set() if place is None else set(place.arms)
        if place is None or set(wanted if must is None else must) - ran or set(tasks or ()) - set(place.tasks):
            return Finding(None, "Not all arms and tasks that this claim needs were run.", {})
        finding = rule.judge(place._replace(tasks=tasks) if tasks else place)
        missing = [*sorted(wanted - ran), *sorted(wanted_tasks - set(place.tasks))]
        if not missing:
            return finding
        return finding._replace(holds=None, sentence=f"Not run: {', '.join(missing)}. {finding.sentence}")

    statement = f"{said}. {rule.words} ({where})."
    return Claim(f"{name}_{suffix}", statement, needs=needs, judge=judge, **claim)


def work(
    cells: Callable[[Any], Sequence[Any]],
    settings_of: Callable[[Any, Any], Settings],
    pieces: Callable[[Any], Hashable],
) -> Work:
    """Return the work of a study whose runs are trained as `settings_of(spec, cell)` says, scored and kept."""

    def run_cells(spec: Any, group: Sequence[Any], context: Context) -> Iterable[tuple[Any, CellResult]]:
        return compact(train(group, partial(settings_of, spec), context, snapshots=2, centers=True))

    # Side by side: a GPU never waits for a compiler or for a last straggler.
    return Work(cells, run_cells, group=lambda cell: None, pieces=pieces, accelerated=True, seeds_apart=True)
