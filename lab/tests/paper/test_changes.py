"""The page of what became of claims holds each claim of the paper once, then and now."""

from collections import Counter

from harmax_lab.experiments import EXPERIMENTS
from pages.changes import before, changes, changes_page

CLAIMS = {f"{name}/{claim.id}": claim for name, one in EXPERIMENTS.items() for claim in one.claims}


def test_each_claim_of_the_paper_stands_in_one_change() -> None:
    named = Counter(key for change in changes() for key in change.now)
    assert set(named) <= set(CLAIMS)
    assert {key for key, claim in CLAIMS.items() if not claim.control} <= set(named)
    assert set(named.values()) == {1}


def test_each_claim_of_before_stands_in_one_change_with_its_reason() -> None:
    named = Counter(key for change in changes() for key in change.before)
    assert set(before()) <= set(named)
    assert set(named.values()) == {1}
    assert all(change.why for change in changes())


def test_the_page_counts_all_of_them() -> None:
    page = changes_page()
    (moves,) = [part for part in page.split("\n\n") if part.startswith("| before | reproduced")]
    numbers = [int(entry) for entry in moves.replace("|", " ").split() if entry.isdigit()]
    assert sum(numbers) == len(before())
    (reasons,) = [part for part in page.split("\n\n") if part.startswith("|  | reason")]
    counted = sum(int(line.split(" | ")[2]) for line in reasons.splitlines()[2:])
    assert f"{counted} not decided" in page.split("Now, of ")[1]
