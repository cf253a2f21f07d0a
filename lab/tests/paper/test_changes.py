"""The page of what became of claims names claims that exist."""

import re
from pathlib import Path

import pytest

from harmax_lab.experiments import EXPERIMENTS

PAGE = (Path(__file__).parents[2] / "results/changes.md").read_text()
NAMED = sorted(set(re.findall(r"`(\w+/\w+)`", PAGE)) - {"experiment/claim"})
CLAIMS = {f"{name}/{claim.id}": claim for name, one in EXPERIMENTS.items() for claim in one.claims}


def test_it_names_most_claims_of_the_paper() -> None:
    papers = {name for name, claim in CLAIMS.items() if not claim.control}
    assert len(papers & set(NAMED)) > 0.7 * len(papers)


@pytest.mark.parametrize("name", NAMED)
def test_a_claim_that_is_named_exists(name: str) -> None:
    assert name in CLAIMS
