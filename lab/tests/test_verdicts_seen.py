"""Claims that planted results never upheld, or never broke, are named."""

from types import SimpleNamespace

from verdicts_seen import lacking


def test_a_claim_needs_both_verdicts_unless_it_cannot_be_run() -> None:
    claims = [
        ("toy", SimpleNamespace(id=name, not_run=name == "large" and "Too large.")) for name in ("a", "b", "large")
    ]
    seen = {"toy/a": {"reproduced", "not decided", "not reproduced"}, "toy/b": {"reproduced"}}
    assert lacking(claims, seen) == {"toy/b": ["not reproduced"]}
    assert lacking(claims, {}) == {"toy/a": ["reproduced", "not reproduced"], "toy/b": ["reproduced", "not reproduced"]}
