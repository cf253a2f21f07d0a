"""The published rows of the five full studies give the verdicts that were published with them."""

import json
from pathlib import Path

import pytest

from harmax_lab.experiments import EXPERIMENTS
from harmax_lab.kit.published import read_rows

RESULTS = Path(__file__).parent.parent.parent / "results"


@pytest.mark.parametrize("name", ["ablation", "confounds", "exponents", "rivals_mlp", "rivals_transformer"])
def test_published_rows_give_the_published_verdicts(name: str) -> None:
    study = EXPERIMENTS[name]
    rows = read_rows(study, RESULTS / name)
    assert len(rows) == len(study.work.cells(study.profiles["full"]))
    # Rows from before `measure` have what it needs of each run, but for the search's arrays.
    found = {one.claim: one for one in study.summarize(rows.spec, rows).verdicts}
    published = json.loads((RESULTS / name / "summary.json").read_text())["verdicts"]
    assert {one["claim"]: one["verdict"] for one in published} == {claim: one.verdict for claim, one in found.items()}
    for one in published:
        for key, numbers in one["numbers"].items():
            if isinstance(numbers, dict) and "estimate" in numbers:
                assert found[one["claim"]].numbers[key] == pytest.approx(numbers, abs=2e-6)
