"""Claims that planted results never upheld, or never broke, are named."""

from pathlib import Path
from types import SimpleNamespace

from verdicts_seen import WHOLE, lacking


def test_the_markers_of_a_whole_run_are_those_of_make_test() -> None:
    makefile = Path(__file__).parents[2] / "Makefile"
    assert f"pytest -m '{WHOLE[1]}' " in makefile.read_text()


def test_a_claim_needs_both_verdicts_unless_it_cannot_be_run() -> None:
    claims = [
        ("toy", SimpleNamespace(id=name, not_run=name == "large" and "Too large.")) for name in ("a", "b", "large")
    ]
    seen = {"toy/a": {"reproduced", "not decided", "not reproduced"}, "toy/b": {"reproduced"}}
    assert lacking(claims, seen) == {"toy/b": ["not reproduced"]}
    assert lacking(claims, {}) == {"toy/a": ["reproduced", "not reproduced"], "toy/b": ["reproduced", "not reproduced"]}
