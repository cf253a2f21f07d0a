"""Fields in hand-written text: numbers come from published results, and a field that names none says what is wrong."""

import json
import re
from pathlib import Path

import pytest

import build
import loss_page
from harmax_lab.experiments import EXPERIMENTS
from pages.fields import FIELD, TEMPLATES, Value, bare_numbers, fill, summaries, value_of, write
from pages.site import DOCS, ROOT

STUDIES = {
    "toy": {
        "verdicts": [
            {"claim": "ahead", "numbers": {"difference": {"estimate": -0.25, "low": -0.5, "high": -0.125}}},
            {"claim": "parity", "numbers": {"difference": [-0.0009, -0.0016, 0.0003]}},
        ],
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
            {
                "title": "Shares",
                "rows": [
                    {
                        **{"data": "MNIST", "share": 0.949, "share low": 0.94, "share high": 0.95},
                        **{"settings": "7 of 32", "papers": "469 [370, 686] (1050)"},
                    }
                ],
            },
        ],
    }
}
SETTINGS = {
    *("0", "1", "2", "3", "4", "5", "6", "8", "10", "12", "16", "20", "32", "80", "95", "100", "180", "256", "768"),
    *("1000", "2000", "3000", "4000", "7000", "10,000"),
    *("0.05", "0.0001", "0.002", "0.008", "0.01", "0.1", "0.25", "0.3", "0.5", "0.9"),
}
"""Numbers that a person chose: of seeds, rows, epochs and units, exponents, learning rates, weight decays, margins."""


COUNT_OF_RUNS = r"\b\d+ (?:runs )?of 20\b"
"""A count of runs is a result."""
PHRASES = (
    # names and places
    r"(?:Fig|Sec|App)\. ?[\d.A-H]+",
    r"(?:CIFAR|ResNet|GPT|SST|gpt)-?\d+",
    *(
        "layer 6",
        "[lL]2[_ ]",
        "case [12]",
        "stabilizer S3",
        "NC1",
        "F1",
        "with 16 points",
        r"with 128",
        r"1 / sqrt\(D\)",
        r"^\d\. ",
    ),
    # what was chosen: seeds, budgets, settings, thresholds of rules
    r"\} of\s+20\b",
    r"\b20 (?:seeds|standard|harmonic|runs|settings)",
    *(r"10,000 (?:steps|epochs)", "20,000 steps", "3,000 epochs", "7,000 epochs", r"7,000 to 10,000", "width 16"),
    *(
        "exponents? (?:2|4|28|56|768|1536)",
        r"exponent,\s+28",
        "and 56\\s",
        "n from 1 to 10",
        r"(?:decay|reaches|pass) 0\.[3-9]",
    ),
    *("32 x 32", "50 images", "with 1,000", r"19\.7M tokens", "6 layers of 384", "95 % (?:or|interval)", "99 % of"),
    *("modulo 31", "about 0 \\(noise\\) to 1", r"accuracy\s+of\s+90 %", "reaches 90 %", "numbers 0 to 30"),
    # what the paper reports
    r"\(paper: [^)]*\)",
    *("epoch 448", "epoch 1050", "5 % of the paper's"),
)
"""Where a number may stand in the other templates: behind or before these words."""


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
        ("{toy: Scores; task = Genealogy; runs | d}", "19"),
        ("{toy: Scores; loss = harmonic; rows | w}", "two"),
        ("{toy: Scores; loss = none; rows | w}", "none"),
        ("{toy: ahead; difference | .1fr}", "-0.5 to -0.1"),
        ("{toy: Shares; MNIST; share | .1pi}", "94.9 [94.0, 95.0]"),
        ("{toy: Shares; MNIST; settings | d}", "7"),
        ("{toy: Shares; MNIST; papers | .0fi}", "469 [370, 686]"),
        ("{toy: parity; difference | +.2pi}", "-0.09 [-0.16, +0.03]"),
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
    assert not re.findall(COUNT_OF_RUNS, text)
    assert len(FIELD.findall(text)) > 100


@pytest.mark.parametrize(("name", "least"), [("experiments", 150), ("what_holds", 20), ("film", 5)])
def test_numbers_of_the_readmes_are_fields_or_settings(name: str, least: int) -> None:
    text = (TEMPLATES / f"{name}.md").read_text()
    lines = "|".join(f"(?m:{phrase})".replace(" ", r"\s+") for phrase in PHRASES)
    assert bare_numbers(text, [lines]) == []
    assert not re.findall(COUNT_OF_RUNS, text)
    assert len(FIELD.findall(text)) >= least


def test_numbers_of_what_was_unexplained_are_fields_or_settings() -> None:
    text = (TEMPLATES / "unexplained.md").read_text()
    settings = (
        r"n = \d+(?: (?:to|and) \d+)?",
        r"--n 4 8 10",
        *(
            "float(?:32|64)",
            "p - 1",
            "6e-8",
            "3e-8",
            "near 1e-15",
            "and 0 where",
            "exponent [48]",
            "seed, 66",
            "7000 epochs",
            "to 1\\.",
        ),
        r"fractions? of 0\.[1-3](?: (?:to|and) 0\.[23])?|\sof 0\.1|at 0\.2,|[Aa]t 0\.1 |from 0\.3 on|0\.1 to 0\.3\.",
        "Exponents 4 to 10",
    )
    assert bare_numbers(text, [one.replace(" ", r"\s+") for one in settings]) == []
    assert len(FIELD.findall(text)) > 25


@pytest.mark.parametrize(("path", "names"), [("README.md", ("film", "holds")), ("lab/README.md", ("experiments",))])
def test_the_readmes_say_what_is_published(path: str, names: tuple[str, ...]) -> None:
    made = build.sections_of_results()
    for name in names:
        assert f"-->\n\n{made[name]}\n\n<!-- /{name} -->" in (ROOT / path).read_text(), "run make docs"


def test_the_readmes_count_the_experiments() -> None:
    assert f"as {len(EXPERIMENTS)} runnable experiments" in (ROOT / "lab/README.md").read_text()
    assert f"names all {len(EXPERIMENTS)} experiments" in (ROOT / "README.md").read_text()


def test_the_guide_leaves_numbers_of_results_to_their_pages() -> None:
    paragraphs = re.split(r"\n\n+", (DOCS / "guide.md").read_text())
    about = [one for one in paragraphs if "lab/results" in one]
    assert len(about) >= 4
    settings = ["CIFAR-10", r"exponents 8 and 23", r"rate of 0\.8", r"sqrt\(D\)"]
    assert [bare_numbers(one, settings) for one in about] == [[]] * len(about)
