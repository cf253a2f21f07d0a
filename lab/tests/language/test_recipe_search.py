"""The search for a recipe trains real models, holds tokens out, and goes on from its table."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harmax.data.text import TokenShards
from harmax.train.language.text import generate_shards
from harmax_lab.language import recipe_search
from harmax_lab.language.recipe_search import FAMILIES, SIZES, hold_out, plan
from harmax_lab.search.finals import run_finals
from harmax_lab.search.plan import Trial
from harmax_lab.search.trials import read_table, run_search

SPACES = {name: family.space for name, family in FAMILIES.items()}


def search(table: Path, **more: Any) -> list[Trial]:
    return run_search(plan("smoke", table, "cpu"), table, **more)


@pytest.mark.slow
def test_a_search_trains_every_family_equally_and_goes_on_from_its_table(tmp_path: Path) -> None:
    said: list[str] = []
    few = iter(range(5))
    search(tmp_path / "t.csv", wants_more=lambda: next(few, None) is not None, report=lambda t: said.append(t.family))
    assert len(read_table(tmp_path / "t.csv", SPACES)) == len(said) == 5
    trials = search(tmp_path / "t.csv")
    rounds = SIZES["smoke"].rounds
    for name in FAMILIES:
        own = [trial for trial in trials if trial.family == name]
        assert (len(own), sum(trial.steps for trial in own)) == (rounds.runs, rounds.budget)
        assert all(trial.loss is not None and trial.loss > 0 for trial in own)
    assert len({trial.loss for trial in trials}) > len(trials) / 2

    finals = run_finals(plan("smoke", tmp_path / "t.csv", "cpu"), tmp_path / "t.csv", seeds=2)
    assert sorted((one.family, one.seed) for one in finals) == [(name, 100 + at) for name in FAMILIES for at in (0, 1)]
    assert all(one.steps == rounds.steps[2] and one.loss is not None and one.loss < math.inf for one in finals)


def test_final_runs_see_the_corpus_and_no_other_run_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate_shards(tmp_path / "corpus", vocab=64)
    monkeypatch.setattr(recipe_search, "HELD_OUT", 5000)
    monkeypatch.setattr(recipe_search, "unpacked_corpus", lambda: tmp_path / "corpus")
    size = replace(SIZES["smoke"], training=replace(SIZES["smoke"].training, embedded=False))
    monkeypatch.setitem(SIZES, "smoke", size)
    seen: list[tuple[str, Path]] = []
    monkeypatch.setattr(recipe_search, "train", lambda size, tokens, trial, device: seen.append((trial.round, tokens)))
    train = plan("smoke", tmp_path / "t.csv", "cpu").train
    for name in ("spread", "full", "final"):
        train(Trial("harmonic", 0, name, 1, 0, {}))
    assert seen == [("spread", tmp_path / "t-tokens"), ("full", tmp_path / "t-tokens"), ("final", tmp_path / "corpus")]
    assert TokenShards(tmp_path / "t-tokens", "val").tokens == 5000


def test_the_same_settings_give_the_same_loss(tmp_path: Path) -> None:
    generate_shards(tmp_path, vocab=64)
    trial = search(tmp_path / "t.csv", wants_more=iter([True, False]).__next__)[0]
    size = SIZES["smoke"].training
    again, _ = recipe_search.train(size, tmp_path / "t-tokens", trial, "cpu")
    assert again == trial.loss
    other, _ = recipe_search.train(size, tmp_path / "t-tokens", replace(trial, steps=40), "cpu")
    assert other != again


def test_a_run_that_diverges_has_an_infinite_loss(tmp_path: Path) -> None:
    generate_shards(tmp_path / "tokens", vocab=64)
    trial = search(tmp_path / "t.csv", wants_more=iter([True, False]).__next__)[0]
    wild = replace(trial, steps=60, settings={**trial.settings, "lr": 1e30})
    loss, notes = recipe_search.train(SIZES["smoke"].training, tmp_path / "tokens", wild, "cpu")
    assert loss == math.inf
    assert notes["diverged_at"] > 0


def test_held_out_tokens_are_the_last_ones_and_are_not_trained_on(tmp_path: Path) -> None:
    generate_shards(tmp_path / "corpus", vocab=64)
    whole = np.fromfile(tmp_path / "corpus/train-00000.bin", "<u2")
    hold_out(tmp_path / "corpus", tmp_path / "tuning", 5000)
    train, judge = (TokenShards(tmp_path / "tuning", split) for split in ("train", "val"))
    train.verify()
    judge.verify()
    assert (train.tokens, judge.tokens) == (len(whole) - 5000, 5000)
    assert np.array_equal(np.fromfile(tmp_path / "tuning/val-held-out.bin", "<u2"), whole[-5000:])
    hold_out(tmp_path / "corpus", tmp_path / "tuning", 5000)  # it is there
    with pytest.raises(ValueError, match="`count` must be below"):
        hold_out(tmp_path / "corpus", tmp_path / "other", 10**9)
