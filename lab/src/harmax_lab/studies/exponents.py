"""What the exponent does, from 1 to 20 with sqrt(D) = 4 and D = 16 among them, and the learnable one (App. E).

    harmax run exponents            MLPs, two tasks, 5 exponents, 2 seeds, cut short: seconds on two CPU cores
    harmax run exponents --full     five tasks, both models, 20 seeds; meant for a GPU

`exponent` is the power of the distance. The paper's n runs from 1 to 10. In its text n is the power of the distance; in
the authors' code it is the power of the *squared* distance, so that the exponent is 2 n. The paper's claims are judged
under the authors' protocol by the code's meaning, with which its figures were made. The same by the text's meaning are
controls.

Under the matched protocol exponents are compared on all five tasks, and a learnable one starts at 4. It is trained with
the weights, weight decay on its logarithm included. Everything else, the learning rate too, is that of the protocol's
harmonic arm: this study compares exponents at one setting, not each at its best.

All runs are trained with the exact cross-entropy. Where the exponent is large the loss is so small that the usual
gradient, which is p - 1 at the true class, is rounded to 0. lab/results/unexplained.md shows what that does.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from harmax.analysis import bootstrap_interval
from harmax.figures import Picture
from harmax_lab.algorithmic import anchors
from harmax_lab.algorithmic.protocols import Settings, settings
from harmax_lab.algorithmic.runs import BODIES, TITLES
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.experiment import Experiment
from harmax_lab.kit.results import Results, where
from harmax_lab.kit.rules import LEAST_RUNS
from harmax_lab.kit.tables import Table
from harmax_lab.paper.readings import ALMOST_ALL_RUNS, CRISP, HIGHEST, MINOR
from harmax_lab.studies import compare_arms as arms
from harmax_lab.studies import draw_exponents as draw
from harmax_lab.studies import judge_exponents as judge
from harmax_lab.studies.compare_arms import MARGIN, PAPERS_TASKS, QUICK, SMOKE, Place, Rule, StudySpec, minus
from harmax_lab.studies.draw_exponents import LEARNED, learned_exponents
from harmax_lab.studies.tables_and_figures import alone, run_tables, score_table, without_one

EXPONENTS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 20.0)
PAPERS_N = tuple(range(1, 11))
MEANINGS = {"code": 2, "text": 1}
"""What the authors' code, and the paper's text, multiply n by."""
BY_N = tuple(sorted({float(factor * n) for factor in MEANINGS.values() for n in PAPERS_N}))
START = 4.0
"""Of the learnable exponent: sqrt(D), as the head's default is."""
LATTICE, CIRCLE = PAPERS_TASKS
SLIGHTLY = (2, 3)
"""The n that are slightly larger than 1."""
PAPERS_FIGURES = {LATTICE: "Fig. 12", CIRCLE: "Fig. 13"}


@dataclass(frozen=True)
class ExponentCell(RunCell):
    """One model trained with one exponent; where the exponent is learned, its start."""

    exponent: float


@dataclass(frozen=True, kw_only=True)
class ExponentSpec(StudySpec):
    """Settings of the sweep."""

    exponents: tuple[float, ...] = EXPONENTS
    authors_exponents: tuple[float, ...] = BY_N
    """Under the authors' protocol."""
    authors_tasks: tuple[str, ...] = PAPERS_TASKS
    transformer_epochs: int = anchors.LONG_EPOCHS

    def arms(self, protocol: str) -> tuple[str, ...]:
        """Return the names of a protocol's arms."""
        if protocol == "authors":
            return tuple(map(arm_of, self.authors_exponents))
        return (*map(arm_of, self.exponents), LEARNED)

    def key(self, cell: Any) -> tuple[str, str, str, str]:
        """Name an arm by its exponent, or by the word that it is learned."""
        arm = LEARNED if cell.head == "learnable" else arm_of(cell.exponent)
        return cell.protocol, cell.model, cell.task, arm


FULL = ExponentSpec(seeds=anchors.SEEDS)


def arm_of(exponent: float) -> str:
    """Name an arm by its exponent.

    >>> arm_of(2.0)
    '2'
    """
    return f"{exponent:g}"


def cells(spec: ExponentSpec) -> list[ExponentCell]:
    """List every protocol, model, task, exponent and seed."""
    return [
        ExponentCell(place.protocol, task, place.model, head, spec.train_fraction, seed, exponent)
        for place in spec.places()
        for task, arm, seed in product(place.tasks, spec.arms(place.protocol), spec.seeds)
        for head, exponent in [("learnable", START) if arm == LEARNED else ("harmonic", float(arm))]
    ]


def settings_of(spec: ExponentSpec, cell: ExponentCell) -> Settings:
    """Return how a cell is trained: as the protocol's harmonic arm, but for the exponent and the exact loss."""
    how = settings(cell.protocol, cell.model, "harmonic", epochs=spec.epochs(cell.model))
    return replace(how, exponent=cell.exponent, stack_exponents=cell.head == "harmonic", exact=True)


def by_n(meaning: str) -> dict[int, str]:
    """Return the arm of each of the paper's n, in one of its meanings.

    >>> by_n("code")[10], by_n("text")[10]
    ('20', '10')
    """
    return {n: arm_of(MEANINGS[meaning] * n) for n in PAPERS_N}


def _stored(task: str, model: str) -> str:
    first, last = (f"{100 * anchors.SWEEP[task, model][place]:.1f} %" for place in (0, -1))
    return f"The authors' files: explained variance {first} at n = 1 and {last} at n = 10, means of four seeds."


def _papers_claims(meaning: str) -> list[Claim]:
    names, papers = by_n(meaning), meaning == "code"
    exponent = "2 n" if papers else "n"
    about: dict[str, Any] = {"full": FULL, "protocol": "authors", "seeds": LEAST_RUNS, "passing": arms.passed}

    def claim(
        name: str, model: str, task: str, said: str, rule: Rule, *sentences: str, some: Iterable[int] = PAPERS_N
    ) -> Claim:
        return arms.study_claim(
            name,
            said,
            rule,
            suffix=f"{model}{'' if papers else '_text'}",
            where=f"{BODIES[model]}, authors protocol, exponent {exponent}, untuned",
            model=model,
            arms=[names[n] for n in some],
            tasks=(task,),
            sentences=sentences if papers else (),
            paper=_stored(task, model) if papers else "",
            **about,
        )

    def by(judged: Callable[..., Finding], words: str, *scores: str, some: Iterable[int] = PAPERS_N) -> Rule:
        own = {n: names[n] for n in some}
        return Rule(words, lambda place: judged(place, own, *scores))

    in_plane = f"leaves at most {100 * CRISP:.0f} % of the variance in the plane of two components"
    best = (
        f"Holds where no other n is higher by more than {100 * HIGHEST:.0f} point on average and one is lower by more, "
        "with intervals; broken where one is higher. Where one n decides, its interval is corrected for their number"
    )
    gains = (
        "Holds where it is at one of them, by an interval corrected for their number; broken where it is lower at all"
    )
    found = []
    for model in BODIES:
        found += [
            claim(
                "lattice_stable",
                model,
                LATTICE,
                "The lattice is stable: crisp at every n from 1 to 10",
                by(
                    judge.judge_crisp,
                    f"At every n, in {100 * ALMOST_ALL_RUNS:.0f} % of the runs, one lattice {in_plane}",
                ),
                "Fig. 12/4",
            ),
            claim(
                "lattice_crisp",
                model,
                LATTICE,
                "The lattice is crisp at n = 1 already",
                by(
                    judge.judge_crisp, f"In {100 * ALMOST_ALL_RUNS:.0f} % of the runs one lattice {in_plane}", some=(1,)
                ),
                "Fig. 12/4",
                some=(1,),
            ),
            claim(
                "lattice_minor",
                model,
                LATTICE,
                "Other n have a minor impact on the quality of the lattice",
                by(
                    judge.judge_minor,
                    f"At every n the mean structure is within {100 * MINOR:.0f} points of that at n = 1, with its "
                    "interval; broken where one is outside, by an interval corrected for their number",
                ),
                "E/3",
            ),
            claim(
                "lattice_highest",
                model,
                LATTICE,
                "On the lattice n = 1 has the highest explained variance",
                by(judge.judge_best, best, "variance"),
                "E/3",
            ),
        ]
    found += [
        claim(
            "circle_one",
            "mlp",
            CIRCLE,
            "On modular addition n = 1 works well for MLPs: they prefer it",
            by(judge.judge_best, f"Judged by structure. {best}", "structure"),
            "Fig. 13/3",
            "E/4",
        ),
        claim(
            "circle_tighter",
            "transformer",
            CIRCLE,
            "Transformers form tighter circles at higher n",
            Rule(
                "Holds where the share of the plane that a circle explains rises with n: the rank correlation within a "
                "seed lies above 0 with its interval over seeds; broken where below",
                lambda place: judge.judge_trend(place, names.values(), "plane", falls=False),
            ),
            "Fig. 13/3",
        ),
        claim(
            "circle_larger",
            "transformer",
            CIRCLE,
            "On modular addition a larger n gives transformers more structure than n = 1",
            by(judge.judge_benefit, gains, "structure"),
            "Fig. 13/3",
        ),
        claim(
            "circle_slightly",
            "transformer",
            CIRCLE,
            "On modular addition a slightly larger n, 2 or 3, gives transformers more explained variance and structure",
            by(judge.judge_benefit, gains, "variance", "structure", some=(1, *SLIGHTLY)),
            "E/4",
            some=(1, *SLIGHTLY),
        ),
        _spread(meaning),
    ]
    return found


def _spread(meaning: str) -> Claim:
    names, papers = by_n(meaning), meaning == "code"

    def judged(results: Results) -> Finding:
        places = [place._replace(tasks=(CIRCLE,)) for place in results.spec.places(results) if place.runs]
        return judge.judge_spread(places, names)

    return Claim(
        f"circle_sensitive{'' if papers else '_text'}",
        "On modular addition MLPs are stable across seeds, and transformers more sensitive. Holds where the distance "
        "of a run's structure from the mean of its n is larger with transformers, on average over n, with its interval "
        f"over seeds; broken where smaller (authors protocol, exponent {'2 n' if papers else 'n'}, untuned).",
        sentences=("Fig. 13/3",) if papers else (),
        needs=where(lambda cell: arm_of(cell.exponent) in names.values(), protocol="authors", task=CIRCLE),
        judge=judged,
        seeds=LEAST_RUNS,
        passing=arms.passed,
    )


def _controls(model: str) -> list[Claim]:
    every = FULL.arms("matched")
    where = f"mean over tasks, {BODIES[model]}, matched protocol, untuned"
    suffix = f"{model}_matched"
    claim = partial(
        arms.study_claim, suffix=suffix, where=where, full=FULL, protocol="matched", model=model, arms=every
    )

    def unbeaten(name: str, ours: str, score: str) -> Claim:
        more = "more structure" if score == "structure" else "a higher test accuracy"
        than = {"4": "sqrt(D) = 4", LEARNED: "the learnable one"}.get(ours, ours)
        others = {arm: ours for arm in every if arm not in (ours, LEARNED)}
        rule = arms.none_ahead(others, {arm: f"exponent {arm}" for arm in every}, score, limit=MARGIN)
        said = f"No {'other ' * (ours != LEARNED)}fixed exponent gives {more} than {than} by more than {MARGIN}"
        return claim(name, said, rule, must=[ours])

    fixed = [arm for arm in every if arm != LEARNED]
    falls = "Structure falls as the exponent grows: the rank correlation of the two, taken within a seed, lies below 0"
    trend = Rule(
        "Holds with its 95 % interval over seeds; broken where it lies above",
        lambda place: judge.judge_trend(place, fixed, "structure", falls=True),
    )
    return [
        unbeaten("two_structure", "2", "structure"),
        unbeaten("root_accuracy", "4", "accuracy"),
        unbeaten("learned_accuracy", LEARNED, "accuracy"),
        unbeaten("learned_structure", LEARNED, "structure"),
        claim("trend", falls, trend, must=()),
    ]


CLAIMS = (
    *(claim for meaning in MEANINGS for claim in _papers_claims(meaning)),
    *(claim for model in BODIES for claim in _controls(model)),
)


def tables(results: Results) -> list[Table]:
    """Tabulate the paper's sweep, scores and epochs by exponent, and where the learnable one ends."""
    spec, made = results.spec, []
    places = spec.places(results)
    for protocol in spec.protocols:
        own, names = [place for place in places if place.protocol == protocol], spec.arms(protocol)
        labels = {arm: arm for arm in names}
        over_two = {f"exponent {arm} minus 2": minus(arm, "2") for arm in names if arm != "2" and "2" in names}
        epochs, *structures = run_tables(own, labels, "exponent")
        scores = score_table(f"Scores by exponent, {protocol} protocol: mean over seeds [95 %]", own, labels)
        made += [scores, without_one(own, over_two), epochs, *structures]
    return [_sweep_table(places), *made, _learned_table(places)]


def _sweep_table(places: Sequence[Place]) -> Table:
    """Tabulate the paper's sweep beside what the authors' files hold."""
    own = [place._replace(tasks=(task,)) for place in places for task in PAPERS_TASKS if place.protocol == "authors"]
    rows = []
    for place, (n, arm) in product(own, by_n("code").items()):
        if not place.per_seed({arm: 1.0}, "plane"):
            continue
        theirs = anchors.SWEEP[place.tasks[0], place.model][n - 1]
        means = {words: place.mean(arm, score) for score, words in judge.WORDS.items()}
        rows.append({**place.columns, "n": n, "exponent": arm, "authors' explained variance": theirs, **means})
    title = "The paper's sweep, n on the squared distance: mean over seeds [95 %], and the authors' four runs"
    return Table(title, tuple(rows))


def _learned_table(places: Sequence[Place]) -> Table:
    rows = []
    for place in alone(places):
        if values := learned_exponents(place):
            ends = {"median [95 %]": str(bootstrap_interval(values)), "least": min(values), "most": max(values)}
            rows.append({**place.columns, "runs": len(values), **ends})
    return Table(f"The learnable exponent after training, from {START:g}", tuple(rows))


def figures(results: Results) -> dict[str, Picture]:
    """Draw the paper's sweep as it does, token by token, and the scores of each protocol."""
    spec, drawn = results.spec, {}
    places = [place for place in spec.places(results) if place.runs]
    epochs = " and ".join(f"{spec.epochs(model)} epochs for {BODIES[model]}" for model in spec.models)
    for task in PAPERS_TASKS:
        own = [place._replace(tasks=(task,)) for place in places if place.protocol == "authors" and task in place.tasks]
        names = {n: arm for n, arm in by_n("code").items() if any((task, arm) in place.runs for place in own)}
        if names:
            drawn[f"sweep_{task}"] = Picture(
                draw.sweep(own, names),
                f"{TITLES[task]}: tokens in the plane of two components at each n, on which the squared distance is "
                f"raised, and below each panel the explained variance of the two. Authors' protocol, their first "
                f"{draw.COLUMNS} of {len(spec.seeds)} seeds; {epochs}. As in the paper's {PAPERS_FIGURES[task]}.",
            )
    for protocol in results.distinct("protocol"):
        drawn[f"exponents_{protocol}"] = Picture(
            draw.scores([place for place in places if place.protocol == protocol]),
            f"How scores change with the exponent of the distance, {protocol} protocol, {len(spec.seeds)} seeds; "
            f"{epochs}. A flat line means that the exponent does not matter. Lines: means; bands: 95 % intervals. "
            + "Marks in the gray strip: the learnable exponent, whose median end stands below."
            * (protocol == "matched"),
        )
    return drawn


EXPERIMENT = Experiment(
    name="exponents",
    title="The exponent from 1 to 20, and the learnable one",
    figure="App. E, Fig. 12 and 13",
    claims=CLAIMS,
    profiles={
        "smoke": replace(FULL, **SMOKE, authors_tasks=(LATTICE,), exponents=(1.0, 4.0), authors_exponents=(2.0, 20.0)),
        "quick": replace(
            FULL, **{**QUICK, "seeds": anchors.SEEDS[:2]}, protocols=("matched",), exponents=(1.0, 2.0, 4.0, 8.0, 16.0)
        ),
        "full": FULL,
    },
    work=arms.work(cells, settings_of, pieces=lambda cell: (cell.protocol, cell.model, cell.head)),
    tables=tables,
    figures=figures,
    version=2,
)
