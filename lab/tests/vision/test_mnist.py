"""One layer on pixels: the stack is right, stops when it should, finds planted pictures, and judges honestly."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from harmax.data.folder import find_data
from harmax.data.images import Images, has_images, load_images
from harmax.figures import house_style
from harmax.functional import harmonic_loss
from harmax.heads import HarmonicHead
from harmax_lab.experiments import run
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED
from harmax_lab.kit.experiment import Context
from harmax_lab.kit.store import CellResult, Run
from harmax_lab.report.svg import to_svg
from harmax_lab.vision import mnist
from harmax_lab.vision.mnist import CLAIMS, EXPERIMENT, cells, class_facts, run_cells
from harmax_lab.vision.mnist_training import Batch, Layer, as_data, gradients, initial_layer, scores, train
from harmax_lab.vision.one_layer import (
    AUTHORS,
    BIASED,
    HARMONIC,
    HEADS,
    MATCHED,
    PROTOCOLS,
    STANDARD,
    TEXT,
    TEXT_SQRT,
    OneLayerCell,
    OneLayerSpec,
    Profiles,
    exponent_of,
)


def silent(fraction: float, message: str = "", /) -> None:
    pass


def blobs(images: int = 96, pixels: int = 16, classes: int = 4, noise: float = 0.1, seed: int = 0) -> Images:
    """Return square images whose class lights its own quarter of the pixels, and no image the last three."""
    draws = np.random.default_rng(seed)
    labels = np.arange(images) % classes
    means = np.kron(np.eye(classes), np.ones(pixels // classes)) * 0.7
    values = np.clip(means[labels] + noise * draws.standard_normal((images, pixels)), 0, 1)
    values[:, -3:] = 0
    side = int(pixels**0.5)
    pixels_NHW = np.rint(255 * values).astype(np.uint8).reshape(-1, side, side)
    return Images(pixels_NHW, labels, tuple(map(str, range(classes))))


def test_losses_and_gradients_are_the_librarys() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2, 7, 16, generator=generator, dtype=torch.float64)
    y = torch.randint(4, (2, 7), generator=generator)
    batch = Batch(x, y, x.square().sum(2))
    layer = Layer(*(part.double() for part in initial_layer([3, 4], 4, 16)))
    loss, gradient = gradients(batch, layer, 8.0, 1e-4)
    for seed in range(2):
        weights = [layer.weight_SAVD[seed, place].clone().requires_grad_() for place in range(3)]
        bias = layer.bias_SV[seed].clone().requires_grad_()
        wanted = {
            HARMONIC: harmonic_loss(x[seed], weights[0], y[seed], exponent=8.0, softening=1e-4),
            STANDARD: F.cross_entropy(x[seed] @ weights[1].T, y[seed]),
            BIASED: F.cross_entropy(x[seed] @ weights[2].T + bias, y[seed]),
        }
        for place, head in enumerate(HEADS):
            value = wanted[head]
            assert isinstance(value, torch.Tensor)
            torch.testing.assert_close(loss[seed, place], value.detach(), rtol=1e-9, atol=0)
            value.backward()
            torch.testing.assert_close(gradient.weight_SAVD[seed, place], weights[place].grad, rtol=1e-7, atol=1e-12)
        torch.testing.assert_close(gradient.bias_SV[seed], bias.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("head", HEADS)
def test_a_run_of_the_stack_is_the_run_that_torch_makes_alone(head: str) -> None:
    images = blobs(70)  # the last batch of an epoch is smaller
    data, spec = as_data(images), OneLayerSpec(seeds=(5, 9), batch_size=32, fixed_epochs=3, epoch_images=1)
    trained = train(spec, TEXT_SQRT, data, silent)
    start = initial_layer([9], 4, 16)
    alone = HarmonicHead(16, 4) if head == HARMONIC else torch.nn.Linear(16, 4, bias=head == BIASED)
    with torch.no_grad():
        alone.weight.copy_(start.weight_SAVD[0, 0])
        if head == BIASED:
            alone.bias.copy_(start.bias_SV[0])
    optimizer = torch.optim.AdamW(alone.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(9)
    order = torch.randperm(70, generator=generator)
    for _ in range(3):
        for rows in order[torch.randperm(70, generator=generator)].split(32):
            optimizer.zero_grad()
            F.cross_entropy(alone(data.x_ND[rows]), data.y_N[rows]).backward()
            optimizer.step()
    torch.testing.assert_close(
        trained.layer.weight_SAVD[1, HEADS.index(head)], alone.weight.detach(), rtol=0, atol=2e-5
    )
    if head == BIASED:
        torch.testing.assert_close(trained.layer.bias_SV[1], alone.bias.detach(), rtol=0, atol=2e-5)


def test_exponents_are_those_of_the_paper_and_of_the_authors_code() -> None:
    assert [exponent_of(protocol, 784) for protocol in (TEXT_SQRT, TEXT, AUTHORS, MATCHED)] == [28, 56, 56, 56]


def test_heads_of_a_seed_start_alike_and_seeds_do_not() -> None:
    weight, _ = initial_layer([0, 1], 10, 784)
    assert torch.equal(weight[0, 0], weight[0, 2])
    assert not torch.equal(weight[0, 0], weight[1, 0])
    assert weight.std().item() == pytest.approx(1 / 28, rel=0.02)


def test_authors_runs_stop_when_the_training_loss_no_longer_falls() -> None:
    spec = OneLayerSpec(seeds=(0,), patience=3, least_improvement=1e9, most_epochs=20, epoch_images=1)
    trained = train(spec, "authors", as_data(blobs()), silent)
    assert trained.epochs_SA.tolist() == [[4, 4, 4]]  # the first is better than nothing, then three that are not
    assert np.isfinite(trained.loss_SAE[..., :4]).all()
    assert np.isnan(trained.loss_SAE[..., 4:]).all()
    going = train(replace(spec, least_improvement=0.0, most_epochs=6), "authors", as_data(blobs()), silent)
    assert going.epochs_SA.tolist() == [[6, 6, 6]]


def test_matched_runs_keep_the_weights_of_their_best_epoch() -> None:
    noisy = blobs(60, noise=0.6)
    scrambled = noisy._replace(labels=np.random.default_rng(1).permutation(noisy.labels))  # nothing to learn: overfits
    spec = OneLayerSpec(seeds=(0, 1), learning_rate=0.05, patience=5, most_epochs=60, epoch_images=1, held_out=0.3)
    trained = train(spec, "matched", as_data(scrambled), silent)
    assert (trained.kept_SA < trained.epochs_SA).all()
    assert (trained.epochs_SA - trained.kept_SA == 5)[trained.epochs_SA < 60].all()
    best = np.nanmin(trained.watched_SAE, axis=2)
    kept = np.take_along_axis(trained.watched_SAE, trained.kept_SA[..., None] - 1, 2)[..., 0]
    assert (kept <= best + spec.least_improvement * 60).all()
    # The kept weights are those that gave that loss, on the images which that seed held out.
    data, held = as_data(scrambled), torch.randperm(60, generator=torch.Generator().manual_seed(0))[:18]
    z = scores(data.pick(held[None]), Layer(*(part[:1] for part in trained.layer)), 8.0, 0.0)[0][0]
    again = [F.cross_entropy(z[place].T, data.y_N[held]).item() for place in range(3)]
    np.testing.assert_allclose(kept[0], again, rtol=1e-4)


def test_held_out_images_are_not_learnt_from() -> None:
    images = blobs(40)
    spec = OneLayerSpec(seeds=(3,), most_epochs=2, epoch_images=1, held_out=0.25)
    held = torch.randperm(40, generator=torch.Generator().manual_seed(3))[:10].numpy()
    other = images._replace(pixels=images.pixels.copy())
    other.pixels[held] = 255 - other.pixels[held]
    one, two = (train(spec, "matched", as_data(some), silent) for some in (images, other))
    np.testing.assert_array_equal(one.loss_SAE, two.loss_SAE)
    assert (one.watched_SAE != two.watched_SAE).all()
    whole = train(spec, "authors", as_data(other), silent)
    assert (whole.loss_SAE != train(spec, "authors", as_data(images), silent).loss_SAE).all()


def planted(monkeypatch: pytest.MonkeyPatch) -> dict[str, CellResult]:
    monkeypatch.setattr(mnist, "load_images", lambda name, split: blobs(400, noise=0.2, seed=split == "test"))
    spec = OneLayerSpec(seeds=(0,), protocols=("authors",), learning_rate=1e-2, epoch_images=4000, most_epochs=40)
    group = cells(spec)
    return {cell.head: result for cell, result in run_cells(spec, group, Context(Path("unused")))}


def test_planted_pictures_are_found_by_harmonic_weights_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = planted(monkeypatch)
    means = class_facts(blobs(400, noise=0.2))[0].reshape(4, 16)
    assert means[0, :4] == pytest.approx(0.7, abs=0.05)
    harmonic, standard = found[HARMONIC], found[BIASED]
    assert harmonic.metrics["test_accuracy"] == standard.metrics["test_accuracy"] == 1
    assert harmonic.arrays["correlation"].min() > 0.98
    assert standard.arrays["correlation"].max() < harmonic.arrays["correlation"].min()
    weight = harmonic.arrays["weight"].reshape(4, 16)
    cosine = (weight * means).sum(1) / np.linalg.norm(weight, axis=1) / np.linalg.norm(means, axis=1)
    assert cosine.min() > 0.98
    assert harmonic.metrics["dark_pixels"] == 3
    assert harmonic.metrics["near_zero_dark"] == 1
    assert standard.metrics["near_zero_dark"] < 0.5


def test_shares_of_small_weights_count_the_right_pixels() -> None:
    weights = np.array([[0.0, 0.5, 0.5, 0.0], [0.5, 0.5, 0.005, 0.5]])
    lit = np.array([[True, True, False, False], [False, True, True, False]])
    found = mnist.near_zero(weights, lit, 0.01)
    assert found == {"dark_pixels": 1, "near_zero_dark": 0.5, "near_zero_outside": 0.25, "near_zero": 0.375}
    everywhere = mnist.near_zero(weights, np.ones_like(lit), 0.01)
    assert everywhere["near_zero_dark"] is everywhere["near_zero_outside"] is None


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(EXPERIMENT, smoke=True, folder=tmp_path_factory.mktemp("smoke"))


def test_smoke_gives_rows_a_program_can_read(smoke: Run) -> None:
    assert not smoke.failed
    assert smoke.summary is not None
    rows = smoke.summary["tables"][0]["rows"]
    assert {(row["dataset"], row["protocol"]) for row in rows} == {("digits", protocol) for protocol in PROTOCOLS}
    harmonic = {row["protocol"]: row for row in rows if row["head"] == "harmonic"}
    assert {protocol: row["exponent"] for protocol, row in harmonic.items()} == {
        "text": 16,
        "text_sqrt": 8,
        "authors": 16,
        "matched": 16,
    }
    for row in rows:
        assert row["test_accuracy low"] <= row["test_accuracy"] <= row["test_accuracy high"]
        assert 0.6 < row["test_accuracy"] < 1
    assert {verdict["verdict"] for verdict in smoke.summary["verdicts"]} == {NOT_DECIDED}


def test_a_cell_asked_for_alone_is_the_cell_of_the_run(smoke: Run) -> None:
    spec = EXPERIMENT.load_spec(smoke.config["spec"])
    cell = cells(spec)[-1]
    ((_, alone),) = run_cells(spec, [cell], Context(Path("unused")))
    assert alone.metrics == smoke.results[cell.name].metrics
    np.testing.assert_array_equal(alone.curves["train_loss"], smoke.results[cell.name].curves["train_loss"])


def test_every_figure_is_drawn_from_stored_results(smoke: Run) -> None:
    spec = EXPERIMENT.load_spec(smoke.config["spec"])
    with house_style():
        pictures = EXPERIMENT.draw(spec, EXPERIMENT.by_cell(spec, smoke.results))
        assert list(pictures) == ["weights_digits", "signed_weights_digits", "mnist_accuracy", "mnist_correlation"]
        svg = {name: to_svg(picture.figure, name) for name, picture in pictures.items()}
    # Three rows (the mean images and two heads) of ten pictures, and the scale of the second figure.
    assert svg["weights_digits"].count("<image") == 30
    assert svg["signed_weights_digits"].count("<image") == 30 + 1


def test_a_failure_in_a_thread_ends_the_training() -> None:
    broken = as_data(blobs())
    before = set(_threads())  # other tests leave pools that wait for more work
    with pytest.raises((IndexError, RuntimeError)):
        train(OneLayerSpec(seeds=tuple(range(6))), TEXT_SQRT, replace(broken, y_N=broken.y_N + 100), silent)
    assert not [thread for thread in set(_threads()) - before if "ThreadPool" in thread]


def test_an_interrupt_does_not_wait_for_the_last_epoch() -> None:
    told = iter([None])

    def interrupt(fraction: float, message: str = "", /) -> None:
        next(told, None)
        raise KeyboardInterrupt

    before = torch.get_num_threads()
    spec = OneLayerSpec(seeds=tuple(range(6)), epoch_images=10_000, most_epochs=10**6, patience=10**6)
    with pytest.raises(KeyboardInterrupt):
        train(spec, "authors", as_data(blobs()), interrupt)
    assert torch.get_num_threads() == before


def _threads() -> Iterator[str]:
    import threading

    return (thread.name for thread in threading.enumerate())


def test_a_profile_leaves_out_what_is_not_there_and_says_so() -> None:
    specs = {
        "quick": OneLayerSpec(datasets=("mnist", "digits")),
        "full": OneLayerSpec(datasets=("mnist", "fashion_mnist")),
    }
    bare = Profiles(specs, required={"full": ("mnist",)}, is_there=lambda name: name == "digits")
    assert (bare["quick"].datasets, bare["quick"].absent) == (("digits",), ("mnist",))
    assert (bare["full"].datasets, bare["full"].absent) == (("mnist",), ("fashion_mnist",))
    there = Profiles(specs, required={}, is_there=lambda name: True)
    assert there["quick"] == specs["quick"]
    assert EXPERIMENT.key(bare["quick"]) != EXPERIMENT.key(there["quick"])
    summary = EXPERIMENT.summarize(bare["quick"], {})
    assert "the files were not there: mnist." in summary.verdicts[0].sentence
    assert [row["dataset"] for row in summary.tables[-1].rows] == ["mnist"]


def test_without_mnist_the_full_profile_fails_with_the_files_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARMAX_DATA", str(tmp_path))
    full = EXPERIMENT.profiles["full"]
    assert full.datasets[0] == "mnist"
    with pytest.raises(FileNotFoundError, match=r"train-images-idx3-ubyte\.gz"):
        next(iter(run_cells(full, cells(full)[:1], Context(tmp_path))))


FULL = OneLayerSpec(seeds=tuple(range(10)), datasets=("mnist",))
STANDARDS = {"test_accuracy": 0.925, "correlation": 0.2, "near_zero_dark": 0.3, "near_zero_outside": 0.2}
GOOD = {
    HARMONIC: {"test_accuracy": 0.9245, "correlation": 0.97, "near_zero_dark": 0.99, "near_zero_outside": 0.95},
    STANDARD: STANDARDS | {"weight_norm": 30.0},
    BIASED: STANDARDS | {"weight_norm": 30.0},
}
OTHERS = {
    "contrast": 0.5,
    "near_zero": 0.4,
    "dark_pixels": 67,
    "weight_norm": 10.0,
    "distance_to_mean": 0.5,
    "epochs": 80,
    "test_loss": 0.3,
}
ABOUT_WEIGHTS = {
    "more_interpretable": (False, {"correlation": 0.98}),
    "aligned": (True, {"correlation": 0.72}),
    "peripheral_zero": (True, {"near_zero_dark": 0.8}),
    "peripheral_standard": (False, {"near_zero_dark": 0.95}),
    "class_background": (True, {"near_zero_outside": 0.8}),
    "norm": (False, {"weight_norm": 12.0}),
}
BREAKS = {
    "accuracy": (TEXT, STANDARD, {"test_accuracy": 0.935}),
    "accuracy_code": (AUTHORS, BIASED, {"test_accuracy": 0.915}),
    "accuracy_sqrt": (TEXT_SQRT, HARMONIC, {"test_accuracy": 0.918}),
    "matched": (MATCHED, HARMONIC, {"test_accuracy": 0.915}),
    **{name: (AUTHORS, HARMONIC if own else BIASED, change) for name, (own, change) in ABOUT_WEIGHTS.items()},
    **{
        f"{name}_elsewhere": (protocol, HARMONIC if own else STANDARD, change)
        for (name, (own, change)), protocol in zip(ABOUT_WEIGHTS.items(), 3 * (TEXT, MATCHED), strict=True)
    },
}


def made_up(spec: OneLayerSpec) -> dict[OneLayerCell, CellResult]:
    results = {}
    for cell in cells(spec):
        metrics = OTHERS | GOOD[cell.head]
        results[cell] = CellResult(
            metrics=metrics | {"test_accuracy": metrics["test_accuracy"] + 1e-4 * (cell.seed % 3)}
        )
    return results


def changed(
    results: dict[OneLayerCell, CellResult], protocol: str, head: str, change: Callable[[int], dict[str, float]]
) -> dict[OneLayerCell, CellResult]:
    """The same results, those of one protocol and head changed, seed by seed."""
    return {
        cell: CellResult(metrics={**found.metrics, **change(cell.seed)})
        if (cell.protocol, cell.head) == (protocol, head)
        else found
        for cell, found in results.items()
    }


def verdicts(spec: OneLayerSpec, results: dict[OneLayerCell, CellResult]) -> dict[str, str]:
    return {verdict.claim: verdict.verdict for verdict in EXPERIMENT.summarize(spec, results).verdicts}


def test_every_claim_can_hold() -> None:
    assert verdicts(FULL, made_up(FULL)) == {claim.id: REPRODUCED for claim in CLAIMS}
    assert set(BREAKS) == {claim.id for claim in CLAIMS}


@pytest.mark.parametrize("claim", BREAKS)
def test_every_claim_can_fail_alone(claim: str) -> None:
    protocol, head, change = BREAKS[claim]
    found = verdicts(FULL, changed(made_up(FULL), protocol, head, lambda seed: change))
    assert [name for name, verdict in found.items() if verdict == NOT_REPRODUCED] == [claim]
    assert set(found.values()) == {REPRODUCED, NOT_REPRODUCED}


@pytest.mark.parametrize("claim", BREAKS)
def test_seeds_that_disagree_decide_nothing(claim: str) -> None:
    protocol, head, change = BREAKS[claim]
    ((name, broken),) = change.items()
    held = (OTHERS | GOOD[head])[name]
    limits = {"correlation": 0.95 if head == HARMONIC else 0.97, "near_zero_dark": 0.9, "near_zero_outside": 0.9}
    limits |= {"test_accuracy": 0.9195 if claim == "matched" else 0.928 if broken > held else 0.922, "weight_norm": 20}
    apart = 0.5 * (broken - limits[name])
    around = changed(made_up(FULL), protocol, head, lambda seed: {name: limits[name] + apart * (-1) ** seed})
    assert verdicts(FULL, around)[claim] == NOT_DECIDED


def test_the_papers_sentences_about_mnist_have_their_entries() -> None:
    named = {claim.id: claim.sentences for claim in CLAIMS if not claim.control}
    assert named == {
        "accuracy": ("4/5",),
        "more_interpretable": ("4/6",),
        "aligned": ("4/7",),
        "peripheral_zero": ("4/8",),
        "peripheral_standard": ("4/8",),
    }


def test_weights_of_runs_that_fail_the_test_decide_nothing() -> None:
    def some_fail(seed: int) -> dict[str, float]:
        return {"test_accuracy": 0.3, "correlation": -0.9} if seed < 5 else {}

    summary = EXPERIMENT.summarize(FULL, changed(made_up(FULL), AUTHORS, HARMONIC, some_fail))
    found = next(verdict for verdict in summary.verdicts if verdict.claim == "aligned")
    assert found.verdict == NOT_DECIDED
    assert "Runs that pass the test say the opposite" in found.sentence
    everything = changed(made_up(FULL), AUTHORS, HARMONIC, lambda seed: {"test_accuracy": 0.3, "correlation": -0.9})
    assert verdicts(FULL, everything)["aligned"] == NOT_REPRODUCED


def test_short_runs_few_seeds_and_missing_cells_decide_nothing() -> None:
    short = replace(FULL, most_epochs=30)
    found = verdicts(short, made_up(short))
    assert [name for name, verdict in found.items() if verdict != NOT_DECIDED] == ["accuracy", "accuracy_sqrt"]
    assert short.short_of([OneLayerCell("mnist", MATCHED, HARMONIC, 0)]) == "Only 30 of up to 100 epochs were run."
    few = replace(FULL, seeds=(0, 1))
    assert set(verdicts(few, made_up(few)).values()) == {NOT_DECIDED}
    three = replace(FULL, seeds=(0, 1, 2))
    assert set(verdicts(three, made_up(three)).values()) == {REPRODUCED}
    results = made_up(FULL)
    del results[OneLayerCell("mnist", AUTHORS, STANDARD, 3)]  # with which nothing is compared
    assert set(verdicts(FULL, results).values()) == {REPRODUCED}
    del results[OneLayerCell("mnist", AUTHORS, BIASED, 3)]
    found = verdicts(FULL, results)
    assert {name for name, verdict in found.items() if verdict == NOT_DECIDED} == {"accuracy_code", *ABOUT_WEIGHTS}


@pytest.mark.skipif(find_data() is None or not has_images("mnist"), reason="MNIST is not in the data folder")
def test_real_mnist_is_learnt_in_an_epoch() -> None:
    spec = OneLayerSpec(seeds=(0,), fixed_epochs=1)
    trained = train(spec, TEXT_SQRT, as_data(load_images("mnist")), silent)
    test = as_data(load_images("mnist", "test"))
    right = (
        (scores(test.pick(torch.arange(10000)[None]), trained.layer, 28.0, 0.0)[0].argmax(2) == test.y_N)
        .float()
        .mean(2)[0]
    )
    assert right[HEADS.index(HARMONIC)] > 0.87
    assert right[HEADS.index(BIASED)] > 0.89
    assert int((~class_facts(load_images("mnist"))[1].any(0)).sum()) == 67
