"""Few labeled images: what chooses is neither learned from nor the test set, and verdicts follow the numbers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from harmax.data.images import has_images
from harmax.figures import house_style
from harmax_lab.experiments import run
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED
from harmax_lab.kit.experiment import Context
from harmax_lab.kit.store import CellResult, Run
from harmax_lab.report.svg import to_svg
from harmax_lab.vision import little_data_features
from harmax_lab.vision.little_data import (
    BOTH,
    CLAIMS,
    EXPERIMENT,
    LittleDataCell,
    LittleDataSpec,
    cells,
    choose,
    run_cells,
)
from harmax_lab.vision.little_data_features import (
    MEAN_SQUARE,
    SOURCES,
    backbone_spec,
    draw_images,
    generate_rows,
    open_rows,
    split_classes,
)
from harmax_lab.vision.one_layer import BIASED, HARMONIC

NOWHERE = Context(Path("unused"))


def test_a_draw_has_as_many_of_each_class_and_larger_ones_hold_it() -> None:
    y = torch.arange(60) % 5
    few, more = (draw_images(y, images, seed=3) for images in (2, 6))
    assert torch.bincount(y[few]).tolist() == [2] * 5
    assert torch.bincount(y[more]).tolist() == [6] * 5
    assert set(few.tolist()) < set(more.tolist())
    assert set(few.tolist()) != set(draw_images(y, 2, seed=4).tolist())
    with pytest.raises(ValueError, match="every class must have 13 images"):
        draw_images(y, 13, seed=0)


def test_what_chooses_is_never_learnt_from() -> None:
    y = torch.arange(60) % 5
    chosen, pool = split_classes(y, 4, seed=0)
    assert torch.bincount(y[chosen]).tolist() == [4] * 5
    assert sorted(chosen.tolist() + pool.tolist()) == list(range(60))
    rows = open_rows("digits", LittleDataSpec(), NOWHERE)
    assert torch.bincount(rows.validation.y_N).tolist() == [40] * 10
    assert torch.bincount(rows.pool.y_N).min() >= SOURCES["digits"].most
    assert len(rows.pool.y_N) + len(rows.validation.y_N) == 1437
    assert len(rows.test.y_N) == 360


def test_rows_go_to_a_device_once_and_stay_where_they_are() -> None:
    rows = open_rows("generated", LittleDataSpec(), NOWHERE)
    for before, after in zip(rows[:3], rows.to("cpu")[:3], strict=True):
        assert after.x_ND is before.x_ND
    sent = rows.to("meta")
    assert {side.x_ND.device.type for side in sent[:3]} == {side.y_N.device.type for side in sent[:3]} == {"meta"}
    assert sent.facts == rows.facts


def test_generated_classes_have_the_scale_of_pixels_and_the_same_means_on_both_sides() -> None:
    train, test = generate_rows(200, 0), generate_rows(200, 1)
    assert float(train.x_ND.square().mean()) == pytest.approx(MEAN_SQUARE, rel=0.2)
    one, two = (torch.stack([side.x_ND[side.y_N == label].mean(0) for label in range(10)]) for side in (train, test))
    assert float((one - two).norm(dim=1).max()) < 0.3 * float((one[0] - one[1]).norm())
    assert not torch.equal(train.x_ND, test.x_ND)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(EXPERIMENT, smoke=True, folder=tmp_path_factory.mktemp("smoke"), device="cpu")


def test_more_images_are_better_and_rows_say_what_was_chosen(smoke: Run) -> None:
    assert not smoke.failed
    assert smoke.summary is not None
    chosen, paired = smoke.summary["tables"]
    for dataset in ("generated", "digits"):
        for head in ("harmonic", "cross-entropy"):
            rows = [row for row in chosen["rows"] if (row["dataset"], row["head"]) == (dataset, head)]
            accuracies = [row["test_accuracy"] for row in rows]
            assert [row["images per class"] for row in rows] == [1, 5, 20]
            assert 0.2 < accuracies[0] < accuracies[-1]
            assert accuracies[-1] > 0.75
            assert all((row["bias"] is None) == (head == "harmonic") for row in rows)
    # Where the classes are round and equally wide, nearest mean is the best there is, and the harmonic head is near it.
    last = next(row for row in paired["rows"] if (row["dataset"], row["images per class"]) == ("generated", 20))
    assert last["nearest class mean"] > 0.9
    assert last["difference"] > 0
    assert {verdict["verdict"] for verdict in smoke.summary["verdicts"]} == {NOT_DECIDED}


def test_a_cell_asked_for_alone_is_the_cell_of_the_run(smoke: Run) -> None:
    spec = EXPERIMENT.load_spec(smoke.config["spec"])
    cell = LittleDataCell("digits", 5, 1)
    ((_, alone),) = run_cells(spec, [cell], NOWHERE)
    np.testing.assert_array_equal(alone.arrays["test"], smoke.results[cell.name].arrays["test"])


def test_the_figure_is_drawn_from_stored_results(smoke: Run) -> None:
    spec = EXPERIMENT.load_spec(smoke.config["spec"])
    results = EXPERIMENT.by_cell(spec, smoke.results)
    with house_style():
        pictures = EXPERIMENT.draw(spec, results)
        assert list(pictures) == ["little_data"]
        assert "nearest class mean" in to_svg(pictures["little_data"].figure, "little_data")
        some = {cell: result for cell, result in results.items() if cell.dataset == "digits" and cell.images < 20}
        assert to_svg(EXPERIMENT.draw(spec, some)["little_data"].figure, "little_data")
    assert EXPERIMENT.draw(spec, {}) == {}


def test_validation_chooses_and_the_test_does_not() -> None:
    spec = LittleDataSpec(learning_rates=(0.1, 1.0))
    validation = np.array([[0.5, 0.6], [0.7, 0.4], [0.8, 0.8], [0.1, 0.9]])
    cell = LittleDataCell("digits", 1, 0)
    results = {cell: CellResult(arrays={"validation": validation, "test": 1 - validation}, metrics={"nearest_mean": 0})}
    harmonic, standard = (choose(EXPERIMENT.results(spec, results), head) for head in BOTH)
    assert (harmonic.arm, harmonic.rate, harmonic.test_S) == ((HARMONIC, 2.0), 0, [pytest.approx(0.3)])
    assert (standard.arm, standard.rate, standard.test_S) == ((BIASED, 0.0), 1, [pytest.approx(0.1)])
    rows = EXPERIMENT.summarize(spec, results).tables[0].rows
    chosen = {(row["dataset"], row["images per class"], row["head"]): row["learning rate"] for row in rows}
    assert (chosen["digits", 1, "harmonic"], chosen["digits", 1, "cross-entropy"]) == (0.1, 1.0)
    assert chosen["digits", 2, "cross-entropy"] is None  # nothing finished


def test_a_backbone_on_a_cpu_is_refused_with_what_to_do() -> None:
    full = LittleDataSpec(datasets=("cifar10_linear",))
    with pytest.raises(RuntimeError, match="must be trained on a GPU, got the CPU"):
        next(iter(run_cells(full, cells(full)[:1], NOWHERE)))


@pytest.mark.parametrize("head", ["linear", "harmonic"])
def test_features_of_a_backbone_are_made_once_and_found_again(
    head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    from harmax.train.vision.data import generate_images

    monkeypatch.setattr(
        little_data_features, "load_images", lambda name, side: generate_images(96, start=2000 + 96 * (side == "test"))
    )
    name = f"cifar10_{head}"
    monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], most=8, validation=4))
    spec = LittleDataSpec(
        datasets=(name,),
        images=(1, 8),
        learning_rates=(1e-2,),
        steps=30,
        backbone="tiny",
        backbone_epochs=2,
        backbone_batch=32,
        backbone_exponent=8.0,
    )
    context = Context(tmp_path / "scratch")
    found = dict(run_cells(spec, cells(spec), context))
    most = found[LittleDataCell(name, 8, 0)]
    assert most.metrics["backbone_accuracy"] > 0.3
    assert most.arrays["test"].max() > 0.5  # four classes
    rows = open_rows(name, spec, context)
    assert len(rows.validation.y_N) == 4 * 4
    # All 24 images a class that do not choose can be drawn, so that seeds with the largest draws learn from others.
    assert torch.bincount(rows.pool.y_N).tolist() == [20] * 4
    draws = [set(draw_images(rows.pool.y_N, SOURCES[name].most, seed).tolist()) for seed in (0, 1)]
    assert len(draws[0] & draws[1]) < 0.7 * len(draws[0])
    both = {tuple(row) for row in rows.pool.x_ND.tolist()} & {tuple(row) for row in rows.validation.x_ND.tolist()}
    assert not both
    assert float(torch.cat([rows.pool.x_ND, rows.validation.x_ND]).square().mean()) == pytest.approx(MEAN_SQUARE)

    def refuse(*arguments: object, **more: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr("harmax.train.vision.train.train_classifier", refuse)
    again = dict(run_cells(spec, cells(spec)[1:], context))
    np.testing.assert_array_equal(again[LittleDataCell(name, 8, 0)].arrays["test"], most.arrays["test"])


def test_both_backbones_have_one_recipe() -> None:
    linear, harmonic = (backbone_spec(head, LittleDataSpec(), "cuda") for head in ("linear", "harmonic"))
    assert (harmonic.exponent, harmonic.center_start) == (128, "means")
    assert replace(harmonic, head="linear", exponent=None, center_start="linear", scale=None) == linear
    assert (linear.dataset, linear.model, linear.features) == ("tiny_imagenet32", "resnet18", 512)


FULL = LittleDataSpec(seeds=tuple(range(10)), datasets=("mnist", "cifar10_linear", "cifar10_harmonic"))
BREAKS = {
    "few_pixels": ("mnist", range(1, 11), -0.02),
    "many_pixels": ("mnist", range(100, 1001), -0.02),
    "few_features": ("cifar10_harmonic", range(1, 11), -0.02),
    "many_features": ("cifar10_linear", range(100, 1001), -0.02),
}


def made_up(
    spec: LittleDataSpec, changes: dict[str, tuple[range, float]], *, means: float = 0.6, rate: int = 2
) -> dict[LittleDataCell, CellResult]:
    """Plant accuracies; the harmonic head is 2 points ahead, or what `changes` say of a data set and sizes.

    Validation chooses the learning rate with the number `rate`, at 5 images per class of all.
    """
    results = {}
    for cell in cells(spec):
        sizes, ahead = changes.get(cell.dataset, (range(0), 0.0))
        ahead = ahead if cell.images in sizes else 0.02
        test = np.full((4, len(spec.learning_rates)), 0.7 + 1e-3 * (cell.seed % 3))
        test[:2] += ahead + 1e-4 * (cell.seed % 2)
        metrics = {"nearest_mean": means, "backbone_accuracy": 0.4}
        validation = np.full_like(test, 0.5)
        validation[:, rate if cell.images == 5 else 2] = 0.6
        results[cell] = CellResult(arrays={"validation": validation, "test": test}, metrics=metrics)
    return results


def verdicts(spec: LittleDataSpec, results: dict[LittleDataCell, CellResult]) -> dict[str, str]:
    return {verdict.claim: verdict.verdict for verdict in EXPERIMENT.summarize(spec, results).verdicts}


def test_every_claim_can_hold() -> None:
    assert verdicts(FULL, made_up(FULL, {})) == {claim.id: REPRODUCED for claim in CLAIMS}


@pytest.mark.parametrize("claim", BREAKS)
def test_every_claim_can_fail_alone(claim: str) -> None:
    dataset, *change = BREAKS[claim]
    found = verdicts(FULL, made_up(FULL, {dataset: tuple(change)}))  # type: ignore[dict-item]
    assert [name for name, verdict in found.items() if verdict == NOT_REPRODUCED] == [claim]


@pytest.mark.parametrize("rate", [0, 5])
def test_a_learning_rate_at_an_end_of_its_grid_at_one_size_decides_nothing(rate: int) -> None:
    summary = EXPERIMENT.summarize(FULL, made_up(FULL, {}, rate=rate))
    found = {verdict.claim: verdict for verdict in summary.verdicts}
    open_ones = {"few_pixels", "few_features", "class_means"}
    assert {name for name, one in found.items() if one.verdict == NOT_DECIDED} == open_ones
    value = f"{FULL.learning_rates[rate]:g}"
    assert f"MNIST pixels, 5 per class, cross-entropy, learning rate {value}" in found["few_pixels"].sentence
    assert "cross-entropy" not in found["class_means"].sentence  # it rests on the harmonic layer alone
    assert "So far: MNIST pixels: 72" in found["few_pixels"].sentence


def test_draws_that_disagree_decide_nothing() -> None:
    results = made_up(FULL, {})
    for cell, found in results.items():
        test = found.arrays["test"].copy()
        test[:2] = test[2] + (0.02 if cell.seed % 2 else -0.02) - (cell.images >= 100) * 0.005
        results[cell] = CellResult(arrays={**found.arrays, "test": test}, metrics={"nearest_mean": float(test[2, 0])})
    assert set(verdicts(FULL, results).values()) == {NOT_DECIDED}


def test_class_means_can_be_better_than_both() -> None:
    found = verdicts(FULL, made_up(FULL, {}, means=0.9))
    assert [name for name, verdict in found.items() if verdict == NOT_REPRODUCED] == ["class_means"]


def test_a_little_behind_is_no_worse_with_many_but_not_better_with_few() -> None:
    found = verdicts(FULL, made_up(FULL, {"mnist": (range(1, 1001), -0.003)}))
    assert (found["few_pixels"], found["many_pixels"]) == (NOT_REPRODUCED, REPRODUCED)


def test_short_runs_few_seeds_missing_sizes_and_cells_decide_nothing() -> None:
    for short in (replace(FULL, steps=10), replace(FULL, seeds=(0, 1)), replace(FULL, images=(1, 200))):
        assert set(verdicts(short, made_up(short, {})).values()) == {NOT_DECIDED}
    three = replace(FULL, seeds=(0, 1, 2))
    assert set(verdicts(three, made_up(three, {})).values()) == {REPRODUCED}
    results = made_up(FULL, {})
    del results[LittleDataCell("cifar10_linear", 5, 3)]
    found = verdicts(FULL, results)
    assert [name for name, verdict in found.items() if verdict == NOT_DECIDED] == ["few_features"]
    bare = replace(FULL, datasets=("mnist",), absent=("cifar10_linear", "cifar10_harmonic"))
    summary = EXPERIMENT.summarize(bare, {})
    sentences = {verdict.claim: verdict.sentence for verdict in summary.verdicts}
    assert "the files were not there: cifar10_linear, cifar10_harmonic" in sentences["few_features"]
    assert len(summary.tables[-1].rows) == 2
    half = replace(FULL, datasets=("mnist", "cifar10_linear"), absent=("cifar10_harmonic",))
    found = verdicts(half, made_up(half, {}))
    assert (found["few_features"], found["few_pixels"]) == (NOT_DECIDED, REPRODUCED)


@pytest.mark.skipif(not has_images("mnist"), reason="MNIST is not in the data folder")
def test_a_few_real_images_are_worth_something() -> None:
    spec = LittleDataSpec(datasets=("mnist",), images=(5,), learning_rates=(1e-2,), steps=60)
    ((_, found),) = run_cells(spec, cells(spec), NOWHERE)
    assert found.arrays["test"].min() > 0.5
    assert found.arrays["validation"].shape == (4, 1)
    assert 0.5 < found.metrics["nearest_mean"] < 0.8
