"""The rule book: what leaves a claim undecided, in the same way for every experiment."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from harmax_lab.kit.claims import (
    NOT_DECIDED,
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
    Claim,
    Finding,
    conclude,
    verdict_words,
)
from harmax_lab.kit.experiment import Cell, Spec
from harmax_lab.kit.results import BOOTSTRAP_FROM, Results, compare
from harmax_lab.kit.rules import Choice, rule_book
from harmax_lab.kit.store import CellResult


@dataclass(frozen=True, kw_only=True)
class Numbers(Spec):
    generated: bool = False
    epochs: int = 100

    def stand_in(self) -> str:
        return "Generated numbers say nothing." if self.generated else ""

    def short_of(self, cells: Any) -> str:
        return f"Only {self.epochs} of the paper's 100 epochs were run." if self.epochs < 100 else ""


@dataclass(frozen=True)
class Number(Cell):
    seed: int


def results(values: dict[int, float], wanted: int = 3, **fields: Any) -> Results[Any, Any]:
    found = {Number(seed): CellResult(metrics={"x": value, "accuracy": value}) for seed, value in values.items()}
    return Results(Numbers(**fields), found, [Number(seed) for seed in range(wanted)])


def judge(found: Results[Any, Any]) -> Finding:
    values = found.metric("x").values
    if not values:
        return Finding(None, "There is nothing.", {})
    return Finding(sum(values) > 0, f"Their sum is {sum(values):g}.", {"sum": sum(values)})


POSITIVE = Claim("positive", "The sum is positive.", judge=judge)
WHOLE = results({0: 1.0, 1: 2.0, 2: 3.0})


@pytest.mark.parametrize(("values", "verdict"), [((1.0, 2.0, 3.0), REPRODUCED), ((-1.0, -2.0, 1.0), NOT_REPRODUCED)])
def test_a_run_that_meets_all_rules_decides(values: tuple[float, ...], verdict: str) -> None:
    found = conclude(POSITIVE, results(dict(enumerate(values))))
    assert (found.verdict, found.sentence) == (verdict, f"Their sum is {sum(values):g}.")


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (results({0: 1.0, 1: 2.0}), "Some cells that this claim needs are not finished."),
        (results({}, wanted=0), "This profile has no cell for this claim."),
        (results({0: 1.0, 1: 2.0, 2: 3.0}, generated=True), "Generated numbers say nothing. So far: Their sum is 6."),
        (
            results({0: 1.0, 1: 2.0, 2: 3.0}, epochs=7),
            "Only 7 of the paper's 100 epochs were run. So far: Their sum is 6.",
        ),
        (results({0: 1.0}, wanted=1), "Only 1 of at least 3 seeds were run. So far: Their sum is 1."),
    ],
)
def test_each_rule_leaves_a_claim_undecided_and_says_why(found: Results[Any, Any], reason: str) -> None:
    verdict = conclude(POSITIVE, found)
    assert (verdict.verdict, verdict.sentence) == (NOT_DECIDED, reason)


def test_a_share_of_runs_needs_more_of_them() -> None:
    verdict = conclude(replace(POSITIVE, seeds=10), WHOLE)
    assert verdict.verdict == NOT_DECIDED
    assert verdict.sentence.startswith("Only 3 of at least 10 seeds")


@pytest.mark.parametrize(
    ("value", "natural", "verdict"),
    [(0.1, (), NOT_DECIDED), (1e-3, (), NOT_DECIDED), (0.01, (), REPRODUCED), (0.1, (0.1,), REPRODUCED)],
)
def test_a_choice_at_an_end_of_its_grid_decides_nothing(value: float, natural: tuple[float, ...], verdict: str) -> None:
    choice = Choice("ours", "lr", value, (1e-3, 0.01, 0.1), natural)
    found = conclude(replace(POSITIVE, choices=lambda results: [choice]), WHOLE)
    assert found.verdict == verdict
    assert ("ours, lr 0." in found.sentence) == (verdict == NOT_DECIDED)


def test_runs_that_pass_the_test_may_not_say_the_opposite() -> None:
    def passes(result: CellResult) -> bool:
        return bool(result.metrics["accuracy"] >= 0.9)

    claim = replace(POSITIVE, passing=passes)
    assert conclude(claim, WHOLE).verdict == REPRODUCED
    failing_ones_decide = results({0: 1.0, 1: 2.0, 2: -4.0})
    assert conclude(POSITIVE, failing_ones_decide).verdict == NOT_REPRODUCED
    found = conclude(claim, failing_ones_decide)
    assert found.verdict == NOT_DECIDED
    assert found.sentence == ("Runs that pass the test say the opposite: Their sum is 3. All runs: Their sum is -1.")
    assert conclude(claim, results({0: -1.0, 1: -2.0, 2: -4.0})).verdict == NOT_REPRODUCED  # none passes


def test_what_cannot_be_run_has_smaller_evidence_beside_it() -> None:
    reason = "ImageNet is not available here."
    assert conclude(replace(POSITIVE, judge=None, not_run=reason), WHOLE).sentence == reason
    found = conclude(replace(POSITIVE, not_run=reason), WHOLE)
    assert (found.verdict, found.sentence) == (NOT_RUN, f"{reason} In something smaller: Their sum is 6.")
    assert found.numbers == {"sum": 6.0}


def test_a_claim_quotes_its_sentences() -> None:
    claim = replace(POSITIVE, sentences=("3.2/11",), paper="One figure.")
    assert claim.source == 'Sec. 3.2: "Only Harmonic MLP recovers the underlying tree representation." One figure.'
    assert POSITIVE.source == "Not in the paper."


def test_few_pairs_have_students_interval() -> None:
    few = compare([1.0, 2.0, 3.0], [0.0, 0.0, 0.0])
    assert few.difference.low < 0 < few.difference.high
    many = compare([1.0, 2.0] * (BOOTSTRAP_FROM // 2), [0.0] * BOOTSTRAP_FROM)
    assert many.difference.low > 1


def test_the_rule_book_names_every_rule() -> None:
    names = [name for name, _ in rule_book()]
    assert len(set(names)) == len(names)
    assert {"unfinished runs", "few seeds", "ends of grids", "runs that fail the test"} <= set(names)


def test_a_claim_is_the_papers_where_it_names_sentences_and_a_control_elsewhere() -> None:
    papers = replace(POSITIVE, sentences=("3.2/6",))
    assert not papers.control
    assert POSITIVE.control
    assert (verdict_words(NOT_REPRODUCED, papers), verdict_words(NOT_REPRODUCED, POSITIVE)) == (
        "not reproduced",
        "does not hold",
    )
