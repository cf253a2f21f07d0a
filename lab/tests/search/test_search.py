"""A search finds good settings, has the same runs in any pieces or processes, and counts none twice; finals follow."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harmax.errors import DamagedError
from harmax_lab.search.finals import FINAL, FIRST_SEED, final_table, finals_path, run_finals
from harmax_lab.search.plan import (
    Even,
    OneOf,
    Outcome,
    Range,
    Rounds,
    Search,
    Trial,
    best,
    choices,
    chosen,
    next_trial,
)
from harmax_lab.search.trials import read_table, run_search, write_table

SPACE = {"lr": Range(1e-4, 1.0), "size": Range(1.0, 1000.0), "tied": OneOf((True, False))}
FAMILIES = {"ours": SPACE, "theirs": {"lr": SPACE["lr"], "decay": Range(0.01, 1.0)}}
ROUNDS = Rounds(spread=24, longer=8, near=12, full=3, steps=(10, 20, 40))


def bowl(trial: Trial) -> Outcome:
    """A loss with its least at lr 0.01 and size 100; large rates diverge, longer runs are better."""
    lr, size = trial.settings["lr"], trial.settings.get("size", 100.0)
    if lr > 0.5:
        return math.inf, {"diverged_at": 3.0}
    away = math.log10(lr / 0.01) ** 2 + math.log10(size / 100) ** 2
    noise = 1e-3 * math.sin(1000 * trial.seed) if trial.round == FINAL else 0.0
    return away + 1 / trial.steps + 0.5 * (not trial.settings.get("tied", True)) + noise, {"diverged_at": None}


PLAN = Search(families=FAMILIES, rounds=ROUNDS, train=bowl, final_steps=80)


def search(path: Path, **more: Any) -> list[Trial]:
    return run_search(PLAN, path, **more)


def with_training(train: Callable[[Trial], Outcome], **more: Any) -> Search:
    return Search(**{**vars(PLAN), "train": train, **more})


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
    again = run_search(with_training(lambda trial: pytest.fail("run twice")), tmp_path / "whole.csv")
    assert again == whole


def test_a_kill_between_two_runs_loses_the_unfinished_one_only(tmp_path: Path) -> None:
    seen = []

    def killed(trial: Trial) -> Outcome:
        seen.append(trial)
        if len(seen) == 6:
            raise KeyboardInterrupt
        return bowl(trial)

    with pytest.raises(KeyboardInterrupt):
        run_search(with_training(killed), tmp_path / "table.csv")
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


def test_families_side_by_side_have_the_same_runs(tmp_path: Path) -> None:
    search(tmp_path / "turns.csv")
    left = iter(range(40))
    search(tmp_path / "together.csv", wants_more=lambda: next(left, None) is not None)
    assert len(read_table(tmp_path / "together.csv", FAMILIES)) == 40
    search(tmp_path / "together.csv", side_by_side=True)
    assert (tmp_path / "together.csv").read_text() == (tmp_path / "turns.csv").read_text()


def test_some_families_go_on_in_the_table_of_all(tmp_path: Path) -> None:
    search(tmp_path / "table.csv", families=("theirs",))
    trials = search(tmp_path / "table.csv", families=("ours",))
    assert [trial.family for trial in trials].count("theirs") == ROUNDS.runs == len(trials) / 2
    with pytest.raises(ValueError, match="`families` must be one of ours, theirs, got 'hers'"):
        search(tmp_path / "table.csv", families=("hers",))


def test_seeds_of_the_last_round_choose_by_their_mean(tmp_path: Path) -> None:
    rounds = Rounds(spread=8, longer=4, near=0, full=6, steps=(1, 1, 2), seeds=(0, 1, 1, 2), repeats=3)

    def lucky_once(trial: Trial) -> Outcome:
        luck = 5.0 * (trial.seed == 3 and trial.settings["lr"] > 0.01)
        return bowl(trial)[0] - luck, {}

    path = tmp_path / "table.csv"
    assert chosen("ours", rounds, []) is None
    own = [one for one in run_search(with_training(lucky_once, rounds=rounds), path) if one.family == "ours"]
    full = [trial for trial in own if trial.round == "full"]
    assert [trial.seed for trial in own] == [0] * 8 + [1] * 4 + [2, 3, 4] * 2
    assert full[0].settings == full[2].settings != full[3].settings
    means = {id(full[at]): sum(one.loss or 0 for one in full[at : at + 3]) for at in (0, 3)}
    assert chosen("ours", rounds, own) in full
    assert means[id(chosen("ours", rounds, own))] == min(means.values())
    assert chosen("ours", rounds, own[:-1]) is None


def test_an_even_range_reaches_zero() -> None:
    smoothing = Even(0.0, 0.4)
    assert [smoothing.at(place) for place in (0, 0.5, 1)] == [0.0, 0.2, 0.4]
    assert smoothing.place(smoothing.at(0.3)) == pytest.approx(0.3)
    trial = Trial("ours", 0, "full", 1, 0, {"smoothing": 0.0})
    assert [one.at_end for one in choices(trial, {"smoothing": smoothing})] == [True]
    assert [one.at_end for one in choices(trial, {"smoothing": smoothing}, natural={"smoothing": (0.0,)})] == [False]


def test_finals_train_what_was_chosen_with_new_seeds_and_go_on(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    trials = search(path)
    left = iter(range(5))
    run_finals(PLAN, path, seeds=6, wants_more=lambda: next(left, None) is not None)
    begun = read_table(finals_path(path), FAMILIES)
    turns = [("ours", 0), ("theirs", 0), ("ours", 1), ("theirs", 1), ("ours", 2)]
    assert [(one.family, one.seed - FIRST_SEED) for one in begun] == turns
    finals = run_finals(PLAN, path, seeds=6)
    assert finals[:5] == begun
    for family in FAMILIES:
        own = [trial for trial in finals if trial.family == family]
        winner = chosen(family, ROUNDS, trials)
        assert winner is not None
        assert [one.seed for one in own] == list(range(FIRST_SEED, FIRST_SEED + 6))
        assert all(one.settings == winner.settings and (one.round, one.steps) == (FINAL, 80) for one in own)
    assert run_finals(with_training(lambda trial: pytest.fail("run twice")), path, seeds=6) == finals
    assert read_table(path, FAMILIES) == trials  # the search's own table has no final run


def test_the_table_of_finals_pairs_seeds(tmp_path: Path) -> None:
    search(tmp_path / "table.csv")
    finals = run_finals(PLAN, tmp_path / "table.csv", seeds=5)
    ours, theirs = final_table(PLAN, finals).rows
    losses = {family: [one.loss or 0 for one in finals if one.family == family] for family in FAMILIES}
    expected = sum(b - a for a, b in zip(losses["ours"], losses["theirs"], strict=True)) / 5
    paired = "minus ours [95 %], paired"
    assert (ours["runs"], ours["diverged"], ours[paired]) == (5, 0, None)
    estimate, low, high = (float(word.strip("[],")) for word in theirs[paired].split())
    assert estimate == pytest.approx(expected, abs=1e-5)
    assert 0 <= high - low < 1e-4  # the same noise in both arms of a pair
    lost = [Trial(**{**vars(finals[0]), "loss": math.inf}), *finals[1:]]
    ours, theirs = final_table(PLAN, lost).rows
    assert (ours["diverged"], ours["mean [95 %]"], theirs[paired]) == (1, None, None)
    assert theirs["mean [95 %]"] is not None


def test_finals_of_an_unfinished_search_or_of_another_choice_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    left = iter(range(60))
    search(path, wants_more=lambda: next(left, None) is not None)
    with pytest.raises(ValueError, match=r"the search of ours must be finished .*got 30 of 47 runs"):
        run_finals(PLAN, path, seeds=2)
    assert not finals_path(path).exists()
    search(path)
    run_finals(PLAN, path, seeds=2)
    finals_path(path).write_text(finals_path(path).read_text().replace(",101,", ",55,", 1))
    with pytest.raises(ValueError, match=r"must hold final runs of what .*table.csv has chosen for ours, got run 1"):
        run_finals(PLAN, path, seeds=3)


def test_known_settings_come_first_and_count(tmp_path: Path) -> None:
    known = {"lr": 0.5, "size": 7.0, "tied": False}
    plan = with_training(bowl, known={"ours": (known,)})
    trials = run_search(plan, tmp_path / "table.csv")
    plain = search(tmp_path / "other.csv")
    spread, usual = ([one.settings for one in found if one.family == "ours"][:24] for found in (trials, plain))
    assert (spread[0], spread[1:]) == (known, usual[1:])
    assert len(trials) == len(plain)
    with pytest.raises(ValueError, match="`known` must hold at most 24 settings of ours, each with the names lr, size"):
        with_training(bowl, known={"ours": ({"lr": 0.5},)})
