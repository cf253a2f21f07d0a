"""The published rows of the full studies give the verdicts that were published with them."""

import json
from pathlib import Path

import pytest

from harmax_lab.experiments import EXPERIMENTS
from harmax_lab.kit.claims import NOT_DECIDED, NOT_RUN
from harmax_lab.kit.published import OLD_ROWS, ROWS, read_rows

RESULTS = Path(__file__).parent.parent.parent / "results"
STUDIES = ("ablation", "confounds", "exponents", "rivals_mlp", "rivals_transformer", "start")
PUBLISHED = [name for name in STUDIES if any((RESULTS / name / rows).is_file() for rows in (ROWS, OLD_ROWS))]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_rows_give_the_published_verdicts(name: str) -> None:
    study = EXPERIMENTS[name]
    summary = json.loads((RESULTS / name / "summary.json").read_text())
    published = summary["verdicts"]
    if summary.get("versions", [1]) != study.versions:
        assert {one["verdict"] for one in published} <= {NOT_DECIDED, NOT_RUN}
        pytest.skip("its rows are of another version, which decides nothing")
    if [one["claim"] for one in published] != [claim.id for claim in study.claims]:
        pytest.skip("its claims have changed: `make docs` judges the rows again")
    rows = read_rows(study, RESULTS / name)
    # Rows from before `measure` have what it needs of each run, but for the search's arrays.
    found = {one.claim: one for one in study.summarize(rows.spec, rows).verdicts}
    assert {one["claim"]: one["verdict"] for one in published} == {claim: one.verdict for claim, one in found.items()}
    for one in published:
        for key, numbers in one["numbers"].items():
            if isinstance(numbers, dict) and "estimate" in numbers:
                assert found[one["claim"]].numbers[key] == pytest.approx(numbers, abs=2e-6)
