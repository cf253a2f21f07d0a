"""`harmax search`: where its tables lie, what it prints, and what it refuses."""

import re
from pathlib import Path
from typing import Any

import pytest

from harmax.cli.main import main
from harmax_lab.cli import search as verb
from harmax_lab.search.plan import Outcome, Range, Rounds, Search, Trial
from harmax_lab.search.trials import read_table

Capture = pytest.CaptureFixture[str]
FAMILIES = {"cross_entropy": {"lr": Range(0.01, 1.0)}, "harmonic": {"lr": Range(0.01, 1.0)}}


def train(trial: Trial) -> Outcome:
    """The higher the rate, the better; the second family is better by a tenth."""
    loss = 2.0 - trial.settings["lr"] - 0.1 * (trial.family == "harmonic") + 1e-3 * (trial.seed % 3)
    return loss, {"accuracy": 1 - loss}


def bowls(size: str, table: Path, device: str, data: str | None = None) -> Search:
    if data == "nothing":
        raise ValueError("`data` must be one of some, got 'nothing'; choose one of them.")
    rounds = Rounds(spread=4, longer=2, near=4, full=2, steps=(1, 2, 2), repeats=1)
    return Search(families=FAMILIES, rounds=rounds, train=train, final_steps=2, unit="epochs")


@pytest.fixture(autouse=True)
def only_bowls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(verb, "load_verb", lambda place: bowls)


def search(*words: str) -> int:
    return main(["search", "vision", "--data", "some", "--device", "cpu", *words])


def test_a_search_says_what_it_chose_and_which_ends_won(capsys: Capture) -> None:
    assert search() == 0
    printed = capsys.readouterr().out
    assert "harmonic: 12 of 12 runs, 20 of 20 epochs; the best of 2 epochs:" in printed
    assert re.search(r"  chosen: lr=\S+\n  at an end of what was tried: harmonic, lr 1\n", printed)
    assert printed.endswith("table of runs: runs/search/vision-some.csv\n")
    assert len(read_table(Path("runs/search/vision-some.csv"), FAMILIES)) == 24


def test_finals_come_after_a_search_and_are_compared(capsys: Capture) -> None:
    assert search("--finals") == 2
    assert "the search of cross_entropy must be finished before its final runs, got 0 of 12" in capsys.readouterr().err
    assert search() == search("--finals", "--seeds", "4") == 0
    printed = capsys.readouterr().out
    assert "minus cross_entropy [95 %], paired" in printed
    found = re.search(r"loss +harmonic +4 +0 +\S+ \[.*\] +(\S+) \[(\S+), (\S+)\]", printed)
    assert found
    assert all(float(number) < -0.05 for number in found.groups())
    rows = read_table(Path("runs/search/vision-some-finals.csv"), FAMILIES)
    assert len(rows) == 8
    assert search("--finals", "--seeds", "4") == 0
    assert read_table(Path("runs/search/vision-some-finals.csv"), FAMILIES) == rows


def test_no_time_means_no_run(capsys: Capture) -> None:
    assert search("--minutes", "0") == 0
    assert "harmonic: 0 of 12 runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["visions"], "`name` must be one of language, vision, speedrun, got 'visions'; did you mean 'vision'?"),
        (["language", "--data", "some"], "`data` must be left out for language, got 'some'"),
        (["vision", "--script", "a.py"], "`script` must be left out for vision, got 'a.py'"),
        (["vision", "--data", "nothing"], "`data` must be one of some, got 'nothing'"),
        (["vision", "--families", "ours"], "`families` must be one of cross_entropy, harmonic, got 'ours'"),
        (["vision", "--seeds", "0"], "`seeds` must be at least 1, got 0"),
    ],
)
def test_bad_usage_is_one_line(capsys: Capture, words: list[str], message: str) -> None:
    assert main(["search", *words, "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("harmax: ")
    assert message in error


def test_every_search_can_be_loaded() -> None:
    from harmax.cli.verbs import load_verb

    for place, options in verb.SEARCHES.values():
        wanted: Any = load_verb(place)
        assert wanted.__code__.co_varnames[:3] == ("size", "table", "device")
        assert set(wanted.__code__.co_varnames[3 : wanted.__code__.co_argcount]) == set(options)
