"""ResNets with either head: two stages that do not leak, runs that go on, measures that are there."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from harmax.data.images import Images, has_images, load_images
from harmax.train.vision.step import VisionStep
from harmax_lab.experiments import run
from harmax_lab.kit.experiment import Context
from harmax_lab.kit.store import CellResult, Run
from harmax_lab.vision import classifiers_training
from harmax_lab.vision.classifiers import EXPERIMENT, run_cells
from harmax_lab.vision.classifiers_training import (
    Workbench,
    class_words,
    first_of_each,
    permute_pixels,
    read_side,
    read_sides,
    split,
)
from harmax_lab.vision.classifiers_tuning import (
    CIFAR100,
    FINAL,
    HARMONIC,
    HEADS,
    LINEAR,
    TINY,
    TUNING,
    ClassifierCell,
    ClassifierSpec,
    Held,
    Setting,
    cells,
    choose,
    final_cells,
    tuning_cells,
    vision_spec,
)

SMOKE = EXPERIMENT.profiles["smoke"]
DATASET = SMOKE.datasets[0]


def silent(fraction: float, message: str = "", /) -> None:
    pass


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Run:
    found = run(EXPERIMENT, smoke=True, folder=tmp_path_factory.mktemp("classifiers"))
    assert not found.failed
    return found


@pytest.fixture(scope="module")
def results(smoke: Run) -> dict[ClassifierCell, CellResult]:
    return EXPERIMENT.by_cell(SMOKE, smoke.results)


def test_both_heads_have_the_same_rates_and_as_many_settings() -> None:
    spec = ClassifierSpec()
    linear, harmonic = (tuning_cells(spec, "cifar10", head) for head in (LINEAR, HARMONIC))
    for exponent, scale in zip(spec.exponents, spec.scales, strict=True):
        assert [cell.lr for cell in harmonic if (cell.exponent, cell.scale) == (exponent, None)] == list(spec.lrs)
        assert [cell.lr for cell in linear if (cell.exponent, cell.scale) == (None, scale)] == list(spec.lrs)
    assert spec.exponents[1] == pytest.approx(512**0.5, abs=0.01)  # the paper's rule is among them
    assert 1.0 in spec.scales  # and so is plain cross-entropy
    assert len(linear) == len(harmonic) == 15


def test_data_sets_with_few_held_out_images_are_tuned_with_several_seeds_none_of_which_counts() -> None:
    spec = replace(ClassifierSpec(), seeds=(5, 6, 7, 8), scales=(1.0,))
    for dataset, seeds in (("cifar10", [5]), (CIFAR100, [5, 6]), (TINY, [5, 6])):
        grid = tuning_cells(spec, dataset, LINEAR)
        assert [(cell.lr, cell.seed) for cell in grid] == [(lr, seed) for lr in spec.lrs for seed in seeds]
        told = [vision_spec(spec, cell, cell.setting) for cell in grid]
        assert {one.seed for one in told} == {1000 + seed for seed in seeds}
    with pytest.raises(ValueError, match="`seeds` must be below 1000"):
        replace(spec, seeds=(5, 1000))


def test_other_seeds_and_repeats_decide_which_runs_count() -> None:
    spec = replace(ClassifierSpec(), seeds=(5, 6, 7, 8))
    assert [cell.seed for cell in final_cells(spec, "cifar10")] == [5, 5, 6, 6, 7, 7, 8, 8]  # of five it has four
    assert {cell.seed for cell in final_cells(replace(spec, repeats=(4, 3, 3)), CIFAR100)} == {5, 6, 7}


def test_both_heads_are_told_the_same_but_for_what_only_one_has() -> None:
    spec = ClassifierSpec()
    told = {
        head: vision_spec(spec, ClassifierCell("cifar10", head, FINAL, None, None, None, 3), setting)
        for head, setting in ((HARMONIC, Setting(0.4, exponent=128.0)), (LINEAR, Setting(0.4, scale=4.0)))
    }
    assert (told[HARMONIC].exponent, told[HARMONIC].center_start) == (128.0, "means")
    own = {"head": LINEAR, "exponent": None, "center_start": "linear", "scale": None, "logit_scale": 4.0}
    assert replace(told[HARMONIC], **own) == told[LINEAR]  # type: ignore[arg-type]
    assert (told[LINEAR].epochs, told[LINEAR].warmup, told[LINEAR].flip, told[LINEAR].cutout) == (64, 12.8, True, 8)
    cell = ClassifierCell("digits", LINEAR, TUNING, None, 1.0, 0.1, 0)
    digits = vision_spec(EXPERIMENT.profiles["quick"], cell, cell.setting)
    assert (digits.flip, digits.cutout, digits.epochs) == (False, 0, 2)


def test_a_setting_for_every_data_set() -> None:
    with pytest.raises(ValueError, match="`epochs` must have 3 entries, one per data set"):
        ClassifierSpec(epochs=(3,))
    with pytest.raises(ValueError, match="`tuning_seeds` must have 3 entries, one per data set"):
        ClassifierSpec(tuning_seeds=(1,))
    with pytest.raises(ValueError, match="`tuning_seeds` must be 1 or more each"):
        ClassifierSpec(tuning_seeds=(1, 0, 3))
    with pytest.raises(ValueError, match="`held_out` must lie between 0 and 1"):
        ClassifierSpec(held_out=1.0)


def test_the_most_accurate_is_chosen_and_likelihood_decides_between_equals() -> None:
    grid = tuning_cells(ClassifierSpec(lrs=(0.1, 0.4), exponents=(8.0, 64.0)), "cifar10", HARMONIC)
    held = [Held(0.90, 0.30), Held(0.92, 0.35), Held(0.92, 0.25), Held(0.25, float("inf"))]
    assert choose(dict(zip(grid, held, strict=True))) == Setting(0.1, 64.0)


def test_the_mean_over_tuning_seeds_chooses() -> None:
    grid = tuning_cells(
        ClassifierSpec(seeds=(0, 1, 2), tuning_seeds=(1, 1, 3), lrs=(0.1, 0.4), scales=(1.0,)), TINY, LINEAR
    )
    steady, lucky = (
        [Held(0.5, 1.0), Held(0.5, 1.2), Held(0.5, 1.1)],
        [Held(0.75, 1.0), Held(0.25, 9.0), Held(0.25, 9.0)],
    )
    assert choose(dict(zip(grid, lucky + steady, strict=True))) == Setting(0.4, scale=1.0)
    lost = [Held(0.75, 1.0), Held(0.5, 1.0), Held(0.25, float("inf"))]  # as accurate in the mean
    assert choose(dict(zip(grid, lost + steady, strict=True))) == Setting(0.4, scale=1.0)
    assert choose(dict(zip(grid, steady + lost, strict=True))) == Setting(0.1, scale=1.0)


def test_a_split_takes_a_share_of_every_class_and_no_image_twice() -> None:
    labels = np.repeat([0, 1, 2], (40, 20, 3))
    rest, part = split(labels, 0.1, seed=0)
    assert sorted([*rest, *part]) == list(range(63))
    assert np.bincount(labels[part]).tolist() == [4, 2, 1]
    assert not np.array_equal(part, split(labels, 0.1, seed=1)[1])


def test_a_part_of_a_set_has_as_many_of_each_class() -> None:
    images = Images(np.arange(8, dtype=np.uint8).reshape(8, 1, 1), np.array([0, 1, 1, 0, 0, 1, 0, 0]), ("a", "b"))
    part = first_of_each(images, 2)
    assert part.labels.tolist() == [0, 1, 1, 0]
    assert part.pixels.ravel().tolist() == [0, 1, 2, 3]


def test_permuted_images_have_the_same_pixels_elsewhere() -> None:
    pixels = np.arange(2 * 16 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    found = permute_pixels(pixels)
    assert not np.array_equal(found, pixels)
    for before, after in zip(pixels, found, strict=True):
        assert sorted(map(tuple, before.reshape(-1, 3))) == sorted(map(tuple, after.reshape(-1, 3)))


@pytest.mark.skipif(not has_images(CIFAR100), reason="needs CIFAR-100 in the data folder")
def test_cifar_100_is_taken_in_part() -> None:
    part = read_side(CIFAR100, "test")
    assert np.bincount(part.labels).tolist() == [20] * 100
    assert len(load_images(CIFAR100, "test", complete=False).labels) >= len(part.labels)


def test_wordnets_numbers_become_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARMAX_DATA", str(tmp_path))
    assert class_words(TINY, ("n01443537",)) == ["n01443537"]  # nothing there that knows better
    (tmp_path / TINY).mkdir()
    (tmp_path / TINY / "classes.tsv").write_text("n01443537\tgoldfish, Carassius auratus\n")
    assert class_words(TINY, ("n01443537", "n02")) == ["goldfish", "n02"]
    assert class_words(CIFAR100, ("aquarium_fish", "airplane")) == ["aquarium fish", "airplane"]


def test_tuning_never_looks_at_the_test_images(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = tuning_cells(SMOKE, DATASET, LINEAR)[0]
    expected = Held.of(Workbench(SMOKE, DATASET, "cpu").tune(cell, silent))

    def poisoned(dataset: str) -> tuple[Images, Images]:
        train, test = read_sides(dataset)
        return train, Images(255 - test.pixels, test.labels[::-1].copy(), test.classes)

    monkeypatch.setattr(classifiers_training, "read_sides", poisoned)
    assert Held.of(Workbench(SMOKE, DATASET, "cpu").tune(cell, silent)) == expected


def test_each_tuning_seed_holds_out_images_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[np.ndarray] = []

    class Stopped(Exception):
        pass

    def note(bench: Workbench, train: Images, test: Images) -> None:
        assert len(train.labels) + len(test.labels) == 512
        held.append(test.pixels)
        raise Stopped

    monkeypatch.setattr(Workbench, "_resident", note)
    spec = replace(SMOKE, tuning_seeds=(2,), lrs=(0.1,))
    for cell in tuning_cells(spec, DATASET, LINEAR) * 2:
        with pytest.raises(Stopped):
            Workbench(spec, DATASET, "cpu").tune(cell, silent)
    np.testing.assert_array_equal(held[0], held[2])
    np.testing.assert_array_equal(held[1], held[3])
    assert not np.array_equal(held[0], held[1])


@pytest.mark.parametrize("value", [0.0, 0.3])
def test_a_dead_network_is_a_result(value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(step: VisionStep, batches: Iterator[tuple[Tensor, int]]) -> Tensor:
        return torch.full((sum(count for _, count in batches), 16), value)

    spec = replace(SMOKE, seeds=(0,), repeats=(1,), lrs=(0.1,), epochs=(3,))
    monkeypatch.setattr(VisionStep, "features", dead)
    found = dict(run_cells(spec, cells(spec), Context(tmp_path)))
    assert [result.metrics["diverged_at"] for cell, result in found.items() if cell.stage == FINAL] == [1, 1]
    assert {verdict.verdict for verdict in EXPERIMENT.summarize(spec, found).verdicts} == {"not decided", "not run"}


def test_a_run_that_blows_up_is_a_result(tmp_path: Path) -> None:
    spec = replace(SMOKE, lrs=(1e30,), seeds=(0,), repeats=(1,))
    found = dict(run_cells(spec, cells(spec), Context(tmp_path)))
    for cell, result in found.items():
        assert result.metrics["diverged_at"] == 1, cell.name
        if cell.stage == TUNING:
            assert (result.metrics["accuracy"], result.metrics["nll"]) == (0.25, float("inf"))
    summary = EXPERIMENT.summarize(spec, found)
    assert {verdict.verdict for verdict in summary.verdicts} == {"not decided", "not run"}
    assert EXPERIMENT.draw(spec, found).keys() == {"classifiers_tuning"}


def test_the_runs_that_count_have_the_chosen_setting(results: dict[ClassifierCell, CellResult]) -> None:
    for head in HEADS:
        grid = tuning_cells(SMOKE, DATASET, head)
        best = max(results[cell].metrics["accuracy"] for cell in grid)
        chosen = {
            (result.metrics["lr"], result.metrics["exponent"], result.metrics["scale"])
            for cell, result in results.items()
            if cell.stage == FINAL and cell.head == head
        }
        assert len(chosen) == 1
        assert chosen <= {cell.setting for cell in grid if results[cell].metrics["accuracy"] == best}


def test_a_cell_whose_tuning_is_gone_tunes_again(results: dict[ClassifierCell, CellResult], tmp_path: Path) -> None:
    last = final_cells(SMOKE, DATASET)[-1]
    ((cell, found),) = run_cells(SMOKE, [last], Context(tmp_path))
    assert cell == last
    assert (tmp_path / "tuning.json").is_file()
    assert {key: found.metrics[key] for key in ("lr", "test_accuracy", "nll", "within_between")} == {
        key: results[last].metrics[key] for key in ("lr", "test_accuracy", "nll", "within_between")
    }


def test_what_tuning_found_is_read_and_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = cells(SMOKE)

    def interrupted() -> Iterator[Any]:
        yield next(iter(run_cells(SMOKE, [first, *others], Context(tmp_path))))

    list(interrupted())
    made: list[ClassifierCell] = []

    def note(bench: Workbench, cell: ClassifierCell, progress: Any) -> CellResult:
        made.append(cell)
        return CellResult(metrics=Held(0.5, 1.0)._asdict())

    monkeypatch.setattr(Workbench, "tune", note)
    monkeypatch.setattr(Workbench, "count", lambda *_: CellResult())
    list(run_cells(SMOKE, others, Context(tmp_path)))
    assert made == [cell for cell in others if cell.stage == TUNING]


def test_a_cell_holds_what_the_figures_and_claims_need(smoke: Run, results: dict[ClassifierCell, CellResult]) -> None:
    classes, width, count = 4, 16, 256
    for cell, result in results.items():
        if cell.stage == TUNING:
            continue
        arrays, metrics = result.arrays, result.metrics
        assert arrays["weight"].shape == (classes, width)
        assert arrays["right"].mean() == pytest.approx(metrics["test_accuracy"])
        assert arrays["reliability.counts"].sum() == count
        assert (metrics["train_images"], metrics["test_images"]) == (512, count)
        assert result.curves["snapshot_epoch"].tolist() == [1, 2]
        assert result.curves["within_between"][-1] == pytest.approx(metrics["within_between"], rel=1e-4)
        assert result.curves["test_accuracy"][-1] == pytest.approx(metrics["test_accuracy"])
        harmonic = cell.head == HARMONIC
        assert (metrics["center_distance"] is not None) == harmonic
        assert ("permuted.nearest_distance.auroc" in metrics) == harmonic
        assert ("nearest.pixels" in arrays) == (harmonic and cell.seed == SMOKE.seeds[0])
        if harmonic:
            assert (arrays["winner_distance"] <= arrays["runner_up_distance"]).all()
    sizes = [sum(file.stat().st_size for file in folder.iterdir()) for folder in (smoke.folder / "cells").iterdir()]
    assert max(sizes) < 3 * 2**20


def test_nearest_images_are_the_nearest(results: dict[ClassifierCell, CellResult]) -> None:
    found = results[final_cells(SMOKE, DATASET)[0]]
    train = read_sides(DATASET)[0]
    pixels, distance = found.arrays["nearest.pixels"], found.arrays["nearest.distance"]
    assert pixels.shape == (4, SMOKE.neighbors, 12, 12, 3)
    assert (np.diff(distance, axis=1) >= 0).all()
    for shown, label in zip(pixels.reshape(-1, 12, 12, 3), found.arrays["nearest.label"].ravel(), strict=True):
        (place,) = np.flatnonzero((train.pixels == shown).all((1, 2, 3)))
        assert train.labels[place] == label


def test_accuracy_gets_better_than_chance(results: dict[ClassifierCell, CellResult]) -> None:
    best = max(r.metrics["test_accuracy"] for c, r in results.items() if c.stage == FINAL)
    assert best > 0.4  # of four classes
