"""Fields in hand-written text: numbers come from published results, and a field that names none says what is wrong."""

import json
import re
from pathlib import Path

import pytest

import loss_page
from pages.fields import FIELD, Value, bare_numbers, fill, summaries, value_of, write

STUDIES = {
    "toy": {
        "verdicts": [{"claim": "ahead", "numbers": {"difference": {"estimate": -0.25, "low": -0.5, "high": -0.125}}}],
        "tables": [
            {
                "title": "Scores: mean over seeds [95 %]",
                "rows": [
                    {"loss": "distance, softmax", "task": "Lattice", "runs": 20, "score": "0.912 [0.9, 0.925]"},
                    {"loss": "harmonic", "task": "Lattice", "runs": 20, "score": "1 [1, 1]"},
                    {"loss": "harmonic", "task": "Genealogy", "runs": 19, "score": None},
                ],
            },
            {"title": "Epochs", "rows": [{"loss": "harmonic", "median": "1032 [870.5, inf]"}]},
        ],
    }
}
SETTINGS = {
    *("0", "1", "2", "3", "4", "5", "6", "8", "10", "12", "16", "20", "32", "80", "95", "100", "180", "256", "768"),
    *("1000", "2000", "3000", "4000", "7000", "10,000"),
    *("0.05", "0.0001", "0.002", "0.008", "0.01", "0.1", "0.25", "0.3", "0.5", "0.9"),
}
"""Numbers that a person chose: of seeds, rows, epochs and units, exponents, learning rates, weight decays, margins."""


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("{toy: ahead; difference | .2f}", "-0.25"),
        ("{toy: ahead; difference | .2fi}", "-0.25 [-0.50, -0.12]"),
        ("{-toy: ahead; difference | .2fi}", "0.25 [0.12, 0.50]"),
        ("{toy: Scores; distance, softmax; score | .2fi}", "0.91 [0.90, 0.93]"),
        ("{toy: Scores; harmonic; Genealogy; runs | d}", "19"),
        ("{toy: Scores; harmonic; 20; score | .0%}", "100 %"),
        ("{toy: epochs; Harmonic; Median | .0fi}", "1032 [870, inf]"),
        ("{toy: Scores;\n  distance,\n  softmax; runs\n  | d}", "20"),
    ],
)
def test_a_field_is_a_number_of_a_verdict_or_an_entry_of_a_table(field: str, text: str) -> None:
    assert fill(f"It is {field}, yes.", STUDIES) == f"It is {text}, yes."


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("{other: ahead; difference | .2f}", "nothing is published of 'other'"),
        ("{toy: ahead | .2f}", "must name a number or a column"),
        ("{toy: ahead; lead | .2f}", "'lead' must be a number of this verdict, which are 'difference'"),
        ("{toy: Points; harmonic; score | .2f}", "got 0 tables"),
        ("{toy: Scores; harmonic; score | .2f}", "got 2 rows"),
        ("{toy: Scores; linear; score | .2f}", "got 0 rows"),
        ("{toy: Scores; distance, softmax; share | .2f}", "'share' must be a column of this table"),
        ("{toy: Scores; harmonic; Genealogy; score | .2f}", "the entry must be a number, got None"),
        ("{toy: Scores; distance, softmax; runs | di}", "this number has no interval"),
        ("{toy: Scores; distance, softmax; runs | zz}", "Unknown format code"),
    ],
)
def test_a_field_that_names_nothing_says_so(field: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as found:
        fill(field, STUDIES)
    assert str(found.value).startswith(field)


def test_other_braces_stay() -> None:
    text = '{inner product, distance} x {softmax, HarMax}, profiles={"full": spec}'
    assert fill(text, STUDIES) == text


def test_zero_has_no_sign() -> None:
    assert write(Value(-0.001, -0.2, 0.1), ".1fi") == "0.0 [-0.2, 0.1]"
    assert value_of(0.5) == Value(0.5)


def test_summaries_are_read_by_folder(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy/summary.json").write_text(json.dumps(STUDIES["toy"]))
    assert fill("{toy: Epochs; median | .0f}", summaries(tmp_path)) == "1032"


def test_a_bare_number_is_found_and_what_is_no_result_is_not() -> None:
    text = "In 2025 it has 0.71 ({toy: Epochs; median | .0f} epochs, `lr=3`, [there](a/4.md)).\n\n```\nx = 5\n```\n"
    assert bare_numbers(text, [r"20\d\d"]) == ["In 2025 it has 0.71 ({toy: Epochs; median |"]
    assert bare_numbers(text, [r"20\d\d", r"0\.71"]) == []


def test_numbers_of_the_page_about_losses_are_fields_or_settings() -> None:
    text = loss_page.TEMPLATE.read_text()
    chosen = "|".join(rf"(?<![\d.,]){re.escape(one)}(?![\d]|[.,]\d)" for one in SETTINGS)
    assert bare_numbers(text, [chosen, r"\b(?:19|20)\d\d\b"]) == []
    assert not re.findall(r"\b\d+ (?:runs )?of 20\b", text)  # a count of runs is a result
    assert len(FIELD.findall(text)) > 100
