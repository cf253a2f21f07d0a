"""The search for a recipe of classifiers trains real networks on what it may see, with equal budgets."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harmax_lab.search.finals import FINAL, run_finals
from harmax_lab.search.plan import Even, OneOf, Range, Trial, choices
from harmax_lab.search.trials import read_table, run_search
from harmax_lab.vision import recipe_search
from harmax_lab.vision.recipe_search import FAMILIES, KNOWN, NATURAL, SIZES, Trainer, opened, plan, vision_spec

SPACES = {name: space for name, (_, space) in FAMILIES.items()}
SMOKE = SIZES["smoke"]


def trial(family: str = "harmonic", place: float = 0.5, **more: Any) -> Trial:
    settings = {name: one.at(place) for name, one in SPACES[family].items()}
    return Trial(family, 0, "spread", more.pop("steps", 2), more.pop("seed", 0), {**settings, **more})


@pytest.mark.slow
def test_a_search_trains_every_family_equally_and_its_finals_follow(tmp_path: Path) -> None:
    path, few = tmp_path / "t.csv", iter(range(4))
    run_search(plan("smoke", path, "cpu"), path, wants_more=lambda: next(few, None) is not None)
    assert len(read_table(path, SPACES)) == 4
    trials = run_search(plan("smoke", path, "cpu"), path)
    for name in FAMILIES:
        own = [one for one in trials if one.family == name]
        assert (len(own), sum(one.steps for one in own)) == (SMOKE.rounds.runs, SMOKE.rounds.budget)
        assert all(one.loss == math.inf or one.loss == pytest.approx(1 - one.notes["accuracy"]) for one in own)
    finals = run_finals(plan("smoke", path, "cpu"), path, seeds=2)
    assert sorted((one.family, one.seed) for one in finals) == [
        (name, seed) for name in FAMILIES for seed in (100, 101)
    ]
    assert all(one.steps == SMOKE.epochs for one in finals)


def test_the_search_sees_no_test_image(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe_search.opened.cache_clear()
    recipe_search._side.cache_clear()
    asked: list[str] = []
    plain = recipe_search._side.__wrapped__
    monkeypatch.setattr(recipe_search, "_side", lambda dataset, side: asked.append(side) or plain(dataset, side))
    Trainer(SMOKE, "cpu")(trial(steps=1))
    assert asked == ["train"]
    Trainer(SMOKE, "cpu")(replace(trial(steps=1), round=FINAL, seed=100))
    assert asked == ["train", "train", "test"]
    recipe_search.opened.cache_clear()


def test_each_seed_holds_out_a_part_of_its_own_and_the_rest_is_learned_from() -> None:
    whole, one, other = (opened(SMOKE, "cpu", seed) for seed in (None, 0, 1))
    assert (whole.order.count, whole.test_count) == (512, 256)
    assert (one.order.count, one.test_count) == (384, 128)
    held = [{image.tobytes() for image in data._test.numpy()} for data in (one, other)]
    learned = {image.tobytes() for image in one._train[:, 1:-1, 1:-1].numpy()}
    assert held[0] != held[1]
    assert not held[0] & learned
    assert len(held[0] | learned) == 512
    assert np.bincount(one._test_labels).tolist() == [32] * 4


def test_settings_decide_a_run_and_it_learns() -> None:
    good = trial(lr=0.2, center_lr=1.0, exponent=8.0, label_smoothing=0.0, softening=0.01, weight_decay=1e-4)
    loss, notes = Trainer(SMOKE, "cpu")(replace(good, steps=6))
    assert loss < 0.5  # of four classes
    again, _ = Trainer(SMOKE, "cpu")(replace(good, steps=6))
    assert again == loss
    _, other = Trainer(SMOKE, "cpu")(replace(good, steps=6, settings={**good.settings, "softening": 50.0}))
    assert other["nll"] != notes["nll"]


def test_a_run_that_diverges_is_recorded() -> None:
    for family in ("harmonic", "cross_entropy"):
        loss, notes = Trainer(SMOKE, "cpu")(trial(family, steps=4, lr=1e30))
        assert loss == math.inf
        assert (notes["diverged_at"] in range(1, 5), notes["accuracy"]) == (True, None)


def test_lengths_include_the_full_one_and_budgets_are_equal() -> None:
    for name in ("cifar100", "tiny_imagenet"):
        assert set(SIZES[name].rounds.steps[1:]) == {SIZES[name].epochs}
    for name in SIZES:
        assert plan("full" if name != "smoke" else "smoke", Path("t"), "cpu", data=name).rounds == SIZES[name].rounds


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("place", [0.0, 0.999])
def test_every_corner_of_a_space_is_a_valid_run(family: str, place: float) -> None:
    spec = vision_spec(SMOKE, trial(family, place))
    assert spec.head == ("linear" if family == "cross_entropy" else "harmonic")
    ends = [choice.name for choice in choices(trial(family, place), SPACES[family], natural=NATURAL) if choice.at_end]
    numbers = {name for name, one in SPACES[family].items() if not isinstance(one, OneOf)}
    assert set(ends) == (numbers - set(NATURAL) if place == 0 else numbers)


def test_both_families_search_the_same_rates_decays_and_smoothing() -> None:
    shared = {"lr", "center_lr", "weight_decay", "center_decay", "label_smoothing"}
    for name in shared:
        assert SPACES["cross_entropy"][name] == SPACES["harmonic"][name] == SPACES["harmonic_root"][name]
        assert isinstance(SPACES["harmonic"][name], (Range, Even))
    assert SPACES["harmonic"].keys() - SPACES["harmonic_root"].keys() == {"exponent"}
    assert vision_spec(SIZES["cifar10"], trial("harmonic_root")).exponent is None  # the square root, by default


@pytest.mark.parametrize("family", FAMILIES)
def test_known_settings_lie_in_the_space_and_are_as_many_for_each_family(family: str) -> None:
    assert len(KNOWN[family]) == 2
    for settings in KNOWN[family]:
        for name, one in SPACES[family].items():
            assert 0 <= one.place(settings[name]) <= 1, name
        vision_spec(SIZES["cifar10"], Trial(family, 0, "spread", 8, 0, settings))


def test_an_unknown_data_set_is_refused() -> None:
    with pytest.raises(ValueError, match="`data` must be one of cifar10, cifar100, tiny_imagenet, got none"):
        plan("full", Path("t"), "cpu")
    with pytest.raises(ValueError, match="got 'cifar'; did you mean"):
        plan("full", Path("t"), "cpu", data="cifar")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
