"""A search finds good settings, has the same runs in any pieces, and counts none twice."""

import math
from pathlib import Path
from typing import Any

import pytest

from harmax.errors import DamagedError
from harmax_lab.kit.search import (
    OneOf,
    Range,
    Rounds,
    Trial,
    best,
    choices,
    next_trial,
    read_table,
    run_search,
    write_table,
)

SPACE = {"lr": Range(1e-4, 1.0), "size": Range(1.0, 1000.0), "tied": OneOf((True, False))}
FAMILIES = {"ours": SPACE, "theirs": {"lr": SPACE["lr"], "decay": Range(0.01, 1.0)}}
ROUNDS = Rounds(spread=24, longer=8, near=12, full=3, steps=(10, 20, 40))


def bowl(trial: Trial) -> tuple[float, dict[str, Any]]:
    """A loss with its least at lr 0.01 and size 100; large rates diverge, longer runs are better."""
    lr, size = trial.settings["lr"], trial.settings.get("size", 100.0)
    if lr > 0.5:
        return math.inf, {"diverged_at": 3.0}
    away = math.log10(lr / 0.01) ** 2 + math.log10(size / 100) ** 2
    return away + 1 / trial.steps + 0.5 * (not trial.settings.get("tied", True)), {"diverged_at": None}


def search(path: Path, **more: Any) -> list[Trial]:
    return run_search(FAMILIES, ROUNDS, path, bowl, **more)


def test_it_comes_close_to_the_best_settings(tmp_path: Path) -> None:
    trials = [trial for trial in search(tmp_path / "table.csv") if trial.family == "ours"]
    chosen = best([trial for trial in trials if trial.round == "full"], 1)[0]
    first = best([trial for trial in trials if trial.round == "spread"], 1)[0]
    assert chosen.settings["tied"] is True
    assert 0.003 < chosen.settings["lr"] < 0.03
    assert 40 < chosen.settings["size"] < 250
    assert bowl(chosen)[0] <= bowl(first)[0]


def test_families_have_equal_budgets(tmp_path: Path) -> None:
    trials = search(tmp_path / "table.csv")
    for family in FAMILIES:
        own = [trial for trial in trials if trial.family == family]
        assert len(own) == ROUNDS.runs == 47
        assert sum(trial.steps for trial in own) == ROUNDS.budget == 24 * 10 + 20 * 20 + 3 * 40
        assert [trial.round for trial in own] == ["spread"] * 24 + ["longer"] * 8 + ["near"] * 12 + ["full"] * 3


@pytest.mark.parametrize("piece", [1, 7])
def test_pieces_give_the_same_runs_as_one_go(tmp_path: Path, piece: int) -> None:
    whole = search(tmp_path / "whole.csv")
    for _ in range(200):
        left = iter(range(piece))
        found = search(tmp_path / "pieces.csv", wants_more=lambda left=left: next(left, None) is not None)
        if len(found) == len(whole):
            break
    assert (tmp_path / "pieces.csv").read_text() == (tmp_path / "whole.csv").read_text()
    assert found == whole
    again = run_search(FAMILIES, ROUNDS, tmp_path / "whole.csv", lambda trial: pytest.fail("run twice"))
    assert again == whole


def test_a_kill_between_two_runs_loses_the_unfinished_one_only(tmp_path: Path) -> None:
    seen = []

    def killed(trial: Trial) -> tuple[float, dict[str, Any]]:
        seen.append(trial)
        if len(seen) == 6:
            raise KeyboardInterrupt
        return bowl(trial)

    with pytest.raises(KeyboardInterrupt):
        run_search(FAMILIES, ROUNDS, tmp_path / "table.csv", killed)
    assert len(read_table(tmp_path / "table.csv", FAMILIES)) == 5
    assert search(tmp_path / "table.csv") == search(tmp_path / "other.csv")


def test_diverged_runs_are_rows_and_are_never_chosen(tmp_path: Path) -> None:
    trials = search(tmp_path / "table.csv")
    diverged = [trial for trial in trials if trial.loss == math.inf]
    assert diverged
    assert all(trial.notes["diverged_at"] == 3 for trial in diverged)
    assert all(trial.round in ("spread", "near") for trial in diverged)


def test_a_choice_at_an_end_is_seen() -> None:
    trial = Trial("ours", 0, "full", 1, 0, {"lr": 0.9999, "size": 30.0, "tied": True})
    ends = {choice.name: choice.at_end for choice in choices(trial, SPACE)}
    assert ends == {"lr": True, "size": False}
    assert not any(choice.at_end for choice in choices(trial, SPACE, natural={"lr": (1.0,)}))


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    trials = search(path)
    write_table(path, [*trials, trials[0]])
    with pytest.raises(DamagedError, match="must hold the runs of ours once each"):
        read_table(path, FAMILIES)
    write_table(path, trials)
    path.write_text(path.read_text().replace("ours,3,", "nobody,3,", 1))
    with pytest.raises(DamagedError, match=r"table.csv, line \d+: not a run of this search"):
        read_table(path, FAMILIES)


def test_the_next_run_depends_on_the_table_alone() -> None:
    assert next_trial("ours", SPACE, ROUNDS, []) == next_trial("ours", SPACE, ROUNDS, [])
    assert next_trial("ours", SPACE, ROUNDS, []) != next_trial("other", SPACE, ROUNDS, [])
