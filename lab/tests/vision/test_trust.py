"""Calibration and outliers: stacks are what torch trains, the numbers are right, planted verdicts come out."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from harmax.analysis import fit_temperature
from harmax.data.images import Images, has_images, load_images
from harmax.figures import house_style
from harmax.functional import harmonic_logits, squared_distance
from harmax_lab.experiments import run
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED
from harmax_lab.kit.experiment import Context
from harmax_lab.kit.store import CellResult, Run
from harmax_lab.report.svg import to_svg
from harmax_lab.vision import trust
from harmax_lab.vision.mnist_training import Data, as_data
from harmax_lab.vision.one_layer import BIASED, HARMONIC, STANDARD, Profiles
from harmax_lab.vision.stacks import Arm, Formula, StackSpec, initial_network, train_stack
from harmax_lab.vision.trust import (
    BODIES,
    CLAIMS,
    EXPERIMENT,
    LAYER,
    MLP,
    TRANSFORMS,
    TrustCell,
    TrustSpec,
    cells,
    run_cells,
    split,
    transformed,
)
from harmax_lab.vision.trust_measures import SCORES, Answers, detection_key, measure_trust


def blobs(images: int = 60, classes: int = 3, features: int = 16, seed: int = 0) -> Data:
    """Return rows whose class lights its own part of the features."""
    draws = np.random.default_rng(seed)
    y = np.arange(images) % classes
    means = np.kron(np.eye(classes), np.ones(features // classes + 1))[:, :features]
    x = torch.from_numpy((means[y] + 0.3 * draws.standard_normal((images, features))).astype(np.float32))
    return Data(x, torch.from_numpy(y), classes)


@pytest.mark.parametrize("hidden", [None, 8])
@pytest.mark.parametrize("arm", range(4))
def test_a_run_of_the_stack_is_the_run_that_torch_makes_alone(arm: int, hidden: int | None) -> None:
    data, seeds = blobs(), [5, 9, 2, 3, 4, 7]  # more than are trained together
    rows = torch.stack([torch.arange(10, 50) for _ in seeds])
    spec = StackSpec(seeds=tuple(seeds), batch_size=16, weight_decay=1e-2)
    arms = spec.arms
    assert [one.head for one in arms] == [HARMONIC, HARMONIC, STANDARD, BIASED]
    trained = train_stack(spec, data, rows, steps=7, learning_rate=1e-2, hidden=hidden).one(5, arm)
    start = initial_network([7], 1, 3, 16, hidden).one(0, 0)
    parts = [part.clone().requires_grad_() for part in start if part is not None]
    optimizer = torch.optim.AdamW(parts, lr=1e-2, weight_decay=1e-2)
    generator, done = torch.Generator().manual_seed(7), 0
    while done < 7:
        for places in torch.randperm(40, generator=generator)[:32].split(16)[: 7 - done]:
            x, y = data.x_ND[rows[0][places]], data.y_N[rows[0][places]]
            x = x if hidden is None else F.relu(F.linear(x, parts[2], parts[3]))
            head = arms[arm].head
            if head == HARMONIC:
                z = harmonic_logits(x, parts[0], exponent=arms[arm].exponent(hidden or 16))
            else:
                z = F.linear(x, parts[0], parts[1] if head == BIASED else None)
            optimizer.zero_grad()
            F.cross_entropy(z, y).backward()
            optimizer.step()
            done += 1
    torch.testing.assert_close(trained.weight_SAVF, parts[0].detach(), rtol=0, atol=2e-5)
    if hidden is not None:
        torch.testing.assert_close(trained.hidden_SAFD, parts[2].detach(), rtol=0, atol=2e-5)
    if arms[arm].head == BIASED:
        assert trained.bias_SAV.abs().min() > 0
        torch.testing.assert_close(trained.bias_SAV, parts[1].detach(), rtol=0, atol=2e-5)
    elif arms[arm].head == STANDARD:
        assert not trained.bias_SAV.any()


def test_arms_must_be_in_order() -> None:
    with pytest.raises(ValueError, match="must come first"):
        Formula.of([Arm(STANDARD), Arm(HARMONIC, 1.0)], 16, "cpu")


def test_planted_logits_give_the_numbers_one_can_count() -> None:
    # Three of four right at a confidence of 0.75: calibrated. Outside images are nearer to even odds, and farther away.
    inside = np.log([[0.75, 0.25]] * 4) + 1  # a shift changes no probability, but the energy
    outside, far = np.log([[0.7, 0.3], [0.8, 0.2]]), np.array([[3.0, 3.5], [0.5, 9.0]])
    near = np.array([[1.0, 2.0]] * 4)
    found = measure_trust(Answers(inside, near), np.array([0, 0, 0, 1]), {"other": Answers(outside, far)})
    assert found["accuracy"] == 0.75
    assert found["ece"] == pytest.approx(0, abs=1e-12)
    assert found["nll"] == pytest.approx(-0.75 * np.log(0.75) - 0.25 * np.log(0.25))
    assert found["brier"] == pytest.approx(0.75 * 2 * 0.25**2 + 0.25 * 2 * 0.75**2)
    assert found["other.max_softmax.auroc"] == 0.5  # one of two below, one above
    assert found["other.max_softmax.fpr95"] == 0.5
    assert found["other.nearest_distance.auroc"] == 0.5
    assert found["other.distance_ratio.auroc"] == 0.5  # 0.857 and 0.056 around 0.5
    assert (found["other.energy.auroc"], found["other.energy.fpr95"]) == (1, 0)


def test_without_distances_no_score_is_one() -> None:
    found = measure_trust(Answers(np.zeros((2, 2))), np.array([0, 1]), {"other": Answers(np.zeros((2, 2)))})
    assert "other.energy.auroc" in found
    assert not [key for key in found if "distance" in key]


def test_outside_sets_are_made_of_the_images() -> None:
    draws = np.random.default_rng(1)
    images = Images(draws.integers(0, 120, (50, 4, 4)).astype(np.uint8), np.zeros(50, int), ("only",))
    made = transformed(images)
    rows = as_data(images).x_ND
    assert list(made) == list(TRANSFORMS)
    np.testing.assert_array_equal(made["rotated"][3].reshape(4, 4), np.rot90(rows[3].reshape(4, 4)))
    # One permutation for all: columns are the same ones in another order.
    columns = {tuple(column) for column in rows.T.tolist()}
    assert {tuple(column) for column in made["permuted"].T.tolist()} == columns
    assert not torch.equal(made["permuted"], rows)
    assert float(made["noise"].mean()) == pytest.approx(float(rows.mean()), abs=0.02)
    assert float(made["noise"].std()) == pytest.approx(float(rows.std()), rel=0.1)


def test_what_a_seed_holds_out_it_does_not_learn_from() -> None:
    learned, held = split(TrustSpec(seeds=(0, 1), held_out=30), 100)
    for one, other in zip(learned.tolist(), held.tolist(), strict=True):
        assert sorted(one + other) == list(range(100))
    assert held[0].tolist() != held[1].tolist()
    with pytest.raises(ValueError, match="`held_out` must be 1 to 99 of 100"):
        split(TrustSpec(held_out=100), 100)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(EXPERIMENT, smoke=True, folder=tmp_path_factory.mktemp("smoke"))


def test_smoke_measures_every_arm_and_outside_set(smoke: Run) -> None:
    assert not smoke.failed
    assert smoke.summary is not None
    calibration, layer, mlp = smoke.summary["tables"]
    assert len(calibration["rows"]) == 8
    assert len(layer["rows"]) == len(mlp["rows"]) == 3 * len(SCORES) * 4
    for result in smoke.results.values():
        found = result.metrics
        assert found["accuracy"] > 0.6
        assert 0 < found["temperature"] < 10
        # Dividing by a temperature changes no answer, and helps the images it was fitted on: here it must not ruin.
        assert found["scaled_nll"] < found["nll"] + 0.1
        assert result.arrays["trained_counts"].sum() == 360
        gaps = np.abs(result.arrays["trained_accuracy"] - result.arrays["trained_confidence"])
        counts = result.arrays["trained_counts"]
        assert np.nansum(gaps * counts) / counts.sum() == pytest.approx(found["ece"])
    assert {verdict["verdict"] for verdict in smoke.summary["verdicts"]} == {NOT_DECIDED}


def test_a_cell_asked_for_alone_is_the_cell_of_the_run(smoke: Run) -> None:
    spec = EXPERIMENT.load_spec(smoke.config["spec"])
    cell = cells(spec)[5]
    ((_, alone),) = run_cells(spec, [cell], Context(Path("unused")))
    assert alone.metrics == smoke.results[cell.name].metrics


def test_every_figure_is_drawn_from_stored_results(smoke: Run) -> None:
    spec = EXPERIMENT.load_spec(smoke.config["spec"])
    results = EXPERIMENT.by_cell(spec, smoke.results)
    with house_style():
        pictures = EXPERIMENT.draw(spec, results)
        assert list(pictures) == ["trust_reliability", "trust_detection"]
        assert all(to_svg(picture.figure, name) for name, picture in pictures.items())
        some = {cell: result for cell, result in results.items() if cell.body == LAYER and cell.head == HARMONIC}
        assert all(to_svg(picture.figure, name) for name, picture in EXPERIMENT.draw(spec, some).items())
    assert EXPERIMENT.draw(spec, {}) == {}


def test_temperature_is_fitted_on_held_out_images(monkeypatch: pytest.MonkeyPatch) -> None:
    def made_up(name: str, side: str = "train") -> Images:
        data = blobs(120, seed=side == "test")
        pixels = np.clip(80 + 80 * data.x_ND.numpy(), 0, 255).astype(np.uint8).reshape(-1, 4, 4)
        return Images(pixels, data.y_N.numpy(), ("a", "b", "c"))

    seen: list[int] = []

    def fitted(logits: np.ndarray, labels: np.ndarray) -> float:
        seen.append(len(labels))
        return fit_temperature(logits, labels)

    monkeypatch.setattr(trust, "load_images", made_up)
    monkeypatch.setattr(trust, "fit_temperature", fitted)
    spec = TrustSpec(mlp_steps=60, learning_rate=3e-2, hidden=8, held_out=25)
    cell = TrustCell("digits", MLP, HARMONIC, 2.0, 0)
    ((_, found),) = run_cells(spec, [cell], Context(Path("unused")))
    assert seen == [25]
    assert found.metrics["accuracy"] > 0.8


def test_fashion_is_left_out_where_it_is_not_there() -> None:
    bare = Profiles(trust.SPECS, required={"full": ("mnist",)}, is_there=lambda name: name == "digits")["full"]
    assert (bare.datasets, bare.absent) == (("mnist",), ("fashion_mnist",))
    assert bare.outside == tuple(TRANSFORMS)
    there = Profiles(trust.SPECS, required={}, is_there=lambda name: True)["full"]
    assert there.outside == ("fashion_mnist", *TRANSFORMS)
    assert [row["dataset"] for row in EXPERIMENT.summarize(bare, {}).tables[-1].rows] == ["fashion_mnist"]


FULL = TrustSpec(seeds=tuple(range(10)), datasets=("mnist", "fashion_mnist"))
GOOD = {
    HARMONIC: {"nearest_distance": 0.97, "max_softmax": 0.9, "ece": 0.011, "scaled_ece": 0.011},
    STANDARD: {"nearest_distance": 0.95, "max_softmax": 0.88, "ece": 0.01, "scaled_ece": 0.01},
    BIASED: {"nearest_distance": 0.95, "max_softmax": 0.88, "ece": 0.01, "scaled_ece": 0.01},
}
BREAKS = {
    "distance": (STANDARD, {"max_softmax": 0.98}),
    "energy": (STANDARD, {"energy": 0.98}),
    "probability": (HARMONIC, {"max_softmax": 0.85}),
    "class_means": (STANDARD, {"nearest_distance": 0.99}),
    "own_probability": (HARMONIC, {"max_softmax": 0.98}),
    "calibrated": (HARMONIC, {"ece": 0.02}),
    "calibrated_scaled": (HARMONIC, {"scaled_ece": 0.02}),
}


def made_up(spec: TrustSpec, changes: dict[tuple[str, str], dict[str, float]]) -> dict[TrustCell, CellResult]:
    """Plant results; `changes` are of a body and a head."""
    results = {}
    for cell in cells(spec):
        values = GOOD[cell.head] | changes.get((cell.body, cell.head), {})
        shift = 1e-4 * (cell.seed % 3)
        detections = {
            detection_key(name, score, measure): values.get(score, 0.9) + shift
            for name in spec.outside
            for score in SCORES
            for measure in ("auroc", "fpr95")
        }
        others = {
            "accuracy": 0.92,
            "nll": 0.3,
            "brier": 0.1,
            "temperature": 1.0,
            "scaled_nll": 0.3,
            "scaled_brier": 0.1,
        }
        errors = {name: values[name] + shift for name in ("ece", "scaled_ece")}
        results[cell] = CellResult(metrics={**detections, **others, **errors})
    return results


def test_scores_below_chance_are_drawn_inside_their_panels() -> None:
    low = {"nearest_distance": 0.08, "energy": 0.05}
    results = made_up(FULL, {(MLP, HARMONIC): low})
    with house_style():
        figure = EXPERIMENT.draw(FULL, results)["trust_detection"].figure
        to_svg(figure, "trust_detection")
    drawn = [(axes.get_xlim(), line.get_xdata()) for axes in figure.axes for line in axes.get_lines()]
    assert min(np.min(x) for _, x in drawn) < 0.06
    assert all(left <= np.min(x) and np.max(x) <= right for (left, right), x in drawn)


def verdicts(spec: TrustSpec, results: dict[TrustCell, CellResult]) -> dict[str, str]:
    return {verdict.claim: verdict.verdict for verdict in EXPERIMENT.summarize(spec, results).verdicts}


def test_every_claim_can_hold() -> None:
    assert verdicts(FULL, made_up(FULL, {})) == {claim.id: REPRODUCED for claim in CLAIMS}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("claim", BREAKS)
def test_every_claim_can_fail_alone_and_with_one_body(claim: str, body: str) -> None:
    head, change = BREAKS[claim]
    found = verdicts(FULL, made_up(FULL, {(body, head): change}))
    broken = {name for name, verdict in found.items() if verdict == NOT_REPRODUCED}
    # If cross-entropy's probability beats the distance, it beats the probability that the distance beats.
    assert broken == ({claim, "probability"} if claim == "distance" else {claim})


def test_differences_within_the_noise_decide_nothing() -> None:
    results = made_up(FULL, {})
    for cell, result in results.items():
        if cell.head == HARMONIC:  # ahead on half of the seeds, behind on the others
            sign = 1 if cell.seed % 2 else -1
            change = {key: 0.88 + sign * 0.02 for key in result.metrics if key.endswith("nearest_distance.auroc")}
            results[cell] = CellResult(metrics={**result.metrics, **change})
    assert verdicts(FULL, results)["distance"] == NOT_DECIDED


def test_short_runs_few_seeds_and_missing_cells_decide_nothing() -> None:
    for less in ({"mlp_steps": 10}, {"layer_steps": 9}, {"hidden": 32}, {"seeds": (0, 1)}, {"datasets": ("digits",)}):
        short = replace(FULL, **less)
        assert set(verdicts(short, made_up(short, {})).values()) == {NOT_DECIDED}
    three = replace(FULL, seeds=(0, 1, 2))
    assert set(verdicts(three, made_up(three, {})).values()) == {REPRODUCED}
    words = replace(FULL, mlp_steps=10, layer_steps=9).short_of([TrustCell("mnist", MLP, HARMONIC, 2.0, 0)])
    assert words == "Less than in the full profile: hidden layer: 10 of 3440 steps."
    results = made_up(FULL, {})
    del results[TrustCell("mnist", MLP, STANDARD, 0.0, 3)]
    found = verdicts(FULL, results)
    assert found.pop("own_probability") == REPRODUCED  # it needs no cross-entropy
    assert set(found.values()) == {NOT_DECIDED}
    assert EXPERIMENT.summarize(FULL, {}).tables[0].rows[0]["accuracy"] is None


@pytest.mark.skipif(not has_images("mnist"), reason="MNIST is not in the data folder")
def test_noise_is_told_from_real_mnist() -> None:
    train, test = as_data(load_images("mnist")), load_images("mnist", "test")
    spec = StackSpec(factors=(2.0,), batch_size=128)
    rows = torch.randperm(60_000, generator=torch.Generator().manual_seed(0))[None, :20_000]
    network, noise = train_stack(spec, train, rows, steps=300, learning_rate=3e-3).one(0, 0), transformed(test)["noise"]

    def answers(x_ND: torch.Tensor) -> Answers:
        logits = network.logits(spec.arms[0], x_ND).double().numpy()
        return Answers(logits, squared_distance(x_ND, network.weight_SAVF).sqrt().numpy())

    found = measure_trust(answers(as_data(test).x_ND), test.labels, {"noise": answers(noise)})
    assert found["accuracy"] > 0.88
    assert found["noise.nearest_distance.auroc"] > 0.6
