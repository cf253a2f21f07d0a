"""Planted results: every claim about the ResNets can hold, can break, and is left open where runs cannot tell."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harmax.figures import house_style
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, NOT_RUN, REPRODUCED, Verdict
from harmax_lab.kit.store import CellResult
from harmax_lab.report.svg import to_svg
from harmax_lab.vision.classifiers import CLAIMS, EXPERIMENT
from harmax_lab.vision.classifiers_tuning import (
    FINAL,
    HARMONIC,
    HEADS,
    LINEAR,
    TUNING,
    ClassifierCell,
    ClassifierSpec,
    cells,
)
from harmax_lab.vision.trust_measures import SCORES, detection_key

FULL = EXPERIMENT.profiles["full"]
COLLAPSE = (
    "equinorm_means",
    "equinorm_weights",
    "simplex_means",
    "simplex_weights",
    "self_duality",
    "disagreement",
    "plain_train_accuracy",
)
IMAGES = 2000  # of a test set
CIFAR10_RUN = ClassifierCell("cifar10", LINEAR, FINAL, None, None, None, 0)
Changes = dict[str, tuple[float, float]]
"""Metric to what the harmonic and the linear head have."""


def planted(spec: ClassifierSpec, changes: Changes, noise: float = 0.001) -> dict[ClassifierCell, CellResult]:
    """Results of every cell: both heads alike but for what is changed, and seeds a little apart."""
    return {
        cell: _tuned(cell) if cell.stage == TUNING else _counted(spec, cell, changes, noise) for cell in cells(spec)
    }


def _tuned(cell: ClassifierCell) -> CellResult:
    return CellResult(metrics={"accuracy": 0.9 - (cell.lr or 0) / 10, "nll": 0.3, "diverged_at": None})


def _counted(spec: ClassifierSpec, cell: ClassifierCell, changes: Changes, noise: float) -> CellResult:
    draws = np.random.default_rng([cell.seed, HEADS.index(cell.head)])
    plain = {"test_accuracy": 0.95, "test_top5": 0.99, "nll": 0.2, "ece": 0.02, "brier": 0.1, "within_between": 0.05}
    plain |= dict.fromkeys(COLLAPSE, 0.1) | {"center_distance": 0.05}
    plain |= {detection_key("cifar100", score, "auroc"): 0.9 for score in SCORES}
    plain |= {detection_key("cifar100", score, "fpr95"): 0.3 for score in SCORES}
    own = {name: pair[HEADS.index(cell.head)] for name, pair in changes.items()}
    metrics = {name: value * (1 + noise * draws.standard_normal()) for name, value in (plain | own).items()}
    if cell.head != HARMONIC:
        metrics = {name: value for name, value in metrics.items() if "distance" not in name}
    epochs = np.array(spec.snapshot_epochs(cell.dataset))
    curves = {name: 1.0 / epochs for name in (*COLLAPSE, "within_between")} | {"snapshot_epoch": epochs}
    right = np.arange(IMAGES) < metrics["test_accuracy"] * IMAGES
    arrays: dict[str, np.ndarray] = {
        "right": right.astype(np.uint8),
        "max_softmax": -draws.random(IMAGES).astype(np.float32),
        "reliability.counts": np.array([20, 0, 30]),
        "reliability.confidence": np.array([0.5, np.nan, 0.9]),
        "reliability.accuracy": np.array([0.6, np.nan, 0.8]),
    }
    if cell.head == HARMONIC:
        first = draws.random(IMAGES)
        arrays |= {"winner_distance": first, "runner_up_distance": first + 1}
        if cell.seed == spec.seeds[0]:
            arrays |= {
                "nearest.pixels": draws.integers(256, size=(2, 3, 32, 32, 3)).astype(np.uint8),
                "nearest.distance": np.sort(draws.random((2, 3)), axis=1),
                "nearest.label": np.tile(np.arange(2)[:, None], 3),
            }
    names = [f"class_{number}" for number in range(200)]
    own = {"exponent": 22.63, "scale": None} if cell.head == HARMONIC else {"exponent": None, "scale": 1.0}
    known: dict[str, Any] = {"lr": 0.4, **own, "diverged_at": None, "classes": names}
    known["test_images"] = 10_000
    return CellResult(curves=curves, arrays=arrays, metrics={**known, **metrics})


def label(head: str) -> str:
    return "harmonic" if head == HARMONIC else "cross-entropy"


def with_metrics(
    results: dict[ClassifierCell, CellResult], change: Callable[[ClassifierCell], dict[str, Any]]
) -> dict[ClassifierCell, CellResult]:
    """The same results, some metrics of the runs that count changed."""
    return {
        cell: CellResult(found.curves, found.arrays, {**found.metrics, **change(cell)})
        if cell.stage == FINAL
        else found
        for cell, found in results.items()
    }


def tables_of(results: dict[ClassifierCell, CellResult], spec: ClassifierSpec = FULL) -> dict[str, Any]:
    """Rows by the title's first word."""
    return {table.title.split()[0].strip(":"): table.rows for table in EXPERIMENT.summarize(spec, results).tables}


def judge(claim: str, spec: ClassifierSpec, results: dict[ClassifierCell, CellResult]) -> Verdict:
    return next(one for one in EXPERIMENT.summarize(spec, results).verdicts if one.claim == claim)


def verdict_of(claim: str, changes: Changes) -> str:
    return judge(claim, FULL, planted(FULL, changes)).verdict


CASES: dict[str, tuple[Changes, Changes]] = {
    "tiny_imagenet": ({"test_accuracy": (0.47, 0.45)}, {"test_accuracy": (0.45, 0.47)}),
    "centers": ({"center_distance": (0.05, 0.0)}, {"center_distance": (0.4, 0.0)}),
    "baseline": ({"test_accuracy": (0.90, 0.95)}, {"test_accuracy": (0.95, 0.93)}),
    "cifar10": ({"test_accuracy": (0.948, 0.95)}, {"test_accuracy": (0.93, 0.95)}),
    "few_images": ({"test_accuracy": (0.40, 0.35)}, {"test_accuracy": (0.35, 0.40)}),
    "collapse": ({"within_between": (0.05, 0.05)}, {"within_between": (0.08, 0.05)}),
    "calibration": ({"ece": (0.01, 0.02)}, {"ece": (0.03, 0.02)}),
    "outliers": (
        {"cifar100.nearest_distance.auroc": (0.92, 0.0), "cifar100.max_softmax.auroc": (0.8, 0.9)},
        {"cifar100.nearest_distance.auroc": (0.88, 0.0), "cifar100.max_softmax.auroc": (0.95, 0.9)},
    ),
}


def test_every_claim_has_a_judge_and_a_case() -> None:
    assert all(claim.judge for claim in CLAIMS)
    assert {claim.id for claim in CLAIMS if claim.control} == set(CASES)


def test_imagenet_is_not_run_and_has_the_smaller_comparison_beside_it() -> None:
    assert {claim.id: claim.sentences for claim in CLAIMS if not claim.control} == {"imagenet": ("H.1/6",)}
    for changes in CASES["tiny_imagenet"]:
        results = planted(FULL, changes)
        found, evidence = judge("imagenet", FULL, results), judge("tiny_imagenet", FULL, results)
        assert found.verdict == NOT_RUN
        assert found.sentence.startswith("ImageNet is not available here.")
        assert found.sentence.endswith(evidence.sentence)


@pytest.mark.parametrize("claim", list(CASES))
def test_a_claim_can_hold_and_can_break(claim: str) -> None:
    holding, breaking = CASES[claim]
    assert verdict_of(claim, holding) == REPRODUCED
    assert verdict_of(claim, breaking) == NOT_REPRODUCED


@pytest.mark.parametrize("less", [{"seeds": (0, 1)}, {"epochs": (2, 2, 2)}, {"model": "tiny"}])
def test_two_seeds_few_epochs_or_a_small_network_decide_nothing(less: dict[str, Any]) -> None:
    spec = replace(FULL, **less)
    results = planted(spec, {"test_accuracy": (0.97, 0.95)})
    for claim in CASES:
        found = judge(claim, spec, results)
        assert found.verdict == NOT_DECIDED
        assert "So far:" in found.sentence


def test_fewer_epochs_are_told_for_the_data_sets_of_the_claim() -> None:
    spec = replace(FULL, epochs=(64, 2, 25))
    assert judge("few_images", spec, planted(spec, CASES["few_images"][0])).sentence.startswith(
        "Less than in the full profile: 2 of 80 epochs on cifar100. So far:"
    )
    assert judge("cifar10", spec, planted(spec, CASES["cifar10"][0])).verdict == REPRODUCED


@pytest.mark.parametrize("claim", ["tiny_imagenet", "cifar10", "few_images", "calibration", "outliers"])
def test_heads_that_seeds_cannot_tell_apart_decide_nothing(claim: str) -> None:
    results = planted(FULL, {"test_accuracy": (0.5, 0.505) if claim == "cifar10" else (0.5, 0.5)})
    for cell, result in results.items():
        ahead = (cell.seed % 2 == 0) == (cell.head == HARMONIC)  # now one head, now the other
        told = {
            key: value for key, value in result.metrics.items() if key in ("test_accuracy", "ece") or "auroc" in key
        }
        moved = {key: value + (0.02 if ahead else -0.02) for key, value in told.items()}
        results[cell] = CellResult(result.curves, result.arrays, {**result.metrics, **moved})
    assert judge(claim, FULL, results).verdict == NOT_DECIDED


@pytest.mark.parametrize("claim", ["tiny_imagenet", "few_images"])
def test_three_seeds_that_agree_by_chance_decide_nothing(claim: str) -> None:
    ahead = {0: 0.001, 1: 0.002, 2: 0.012, 3: 0.0}  # a bootstrap's interval of the first three ends at 0.001
    spec = replace(FULL, repeats=(4, 3, 3))
    results = with_metrics(
        planted(spec, {}), lambda cell: {"test_accuracy": 0.5 + (ahead[cell.seed] if cell.head == HARMONIC else 0)}
    )
    found = judge(claim, spec, results)
    estimate, low, high = found.numbers["difference_over_seeds"]
    assert found.verdict == NOT_DECIDED
    assert (estimate, low, high) == pytest.approx((0.005, 0.005 - 0.015111, 0.005 + 0.015111), abs=1e-6)


def test_seeds_that_agree_do_not_decide_what_hangs_on_the_choice_of_images() -> None:
    results = planted(FULL, {"test_accuracy": (0.951, 0.948)}, noise=1e-5)
    assert judge("tiny_imagenet", FULL, results).verdict == REPRODUCED
    for cell, found in results.items():
        if cell.stage == FINAL and cell.head == HARMONIC:  # as many right, of other images
            moved = {**found.arrays, "right": np.roll(found.arrays["right"], IMAGES // 2)}
            results[cell] = CellResult(found.curves, moved, found.metrics)
    found = judge("tiny_imagenet", FULL, results)
    assert found.numbers["difference_over_seeds"].above(0)
    estimate, low, high = found.numbers["difference"]
    assert low < 0 < estimate < high
    error = (2 * 0.05 * 0.95 / IMAGES) ** 0.5  # of two accuracies of 95 % on images that have nothing in common
    assert high - estimate == pytest.approx(1.96 * error, rel=0.05)
    assert found.verdict == NOT_DECIDED


@pytest.mark.parametrize("claim", list(CASES))
@pytest.mark.parametrize("end", [{"lr": min(FULL.lrs)}, {"lr": max(FULL.lrs)}, {"scale": max(FULL.scales)}])
def test_a_choice_at_an_end_of_its_grid_decides_nothing(claim: str, end: dict[str, float]) -> None:
    head = HARMONIC if claim == "centers" else LINEAR
    own = {"exponent": max(FULL.exponents)} if "scale" in end and head == HARMONIC else end
    found = judge(claim, FULL, with_metrics(planted(FULL, CASES[claim][0]), lambda at: own if at.head == head else {}))
    if claim == "baseline":  # a better setting could only raise it
        assert found.verdict == REPRODUCED
        return
    ((name, value),) = own.items()
    assert found.verdict == NOT_DECIDED
    assert f"beyond those that were tried: {label(head)}, {name} {value:g}." in found.sentence
    assert found.numbers


@pytest.mark.parametrize(("claim", "metric"), [("centers", "center_distance"), ("collapse", "within_between")])
def test_networks_that_fail_the_test_do_not_decide_what_one_looks_like(claim: str, metric: str) -> None:
    def poor(cell: ClassifierCell) -> dict[str, Any]:
        return {metric: 5.0, "test_accuracy": 0.3} if cell.head == HARMONIC and cell.seed < 2 else {}

    found = judge(claim, FULL, with_metrics(planted(FULL, CASES[claim][0]), poor))
    assert found.verdict == NOT_DECIDED
    nobody = with_metrics(planted(FULL, CASES[claim][1]), lambda cell: {"test_accuracy": 0.3})
    assert judge(claim, FULL, nobody).verdict == NOT_REPRODUCED


def test_where_centers_lie_does_not_hang_on_how_cross_entropy_was_tuned() -> None:
    results = with_metrics(
        planted(FULL, CASES["centers"][0]), lambda at: {"lr": max(FULL.lrs)} if at.head == LINEAR else {}
    )
    assert judge("centers", FULL, results).verdict == REPRODUCED


def test_the_ratio_of_collapse_has_students_interval_of_the_logarithms() -> None:
    ratios = {0: 1.0, 1: 1.02, 2: 0.98, 3: 1.6}
    spec = replace(FULL, repeats=(4, 4, 4))
    results = with_metrics(
        planted(spec, {}), lambda cell: {"within_between": 0.05 * (ratios[cell.seed] if cell.head == HARMONIC else 1)}
    )
    found = judge("collapse", spec, results)
    assert found.verdict == NOT_DECIDED
    logs = np.log(list(ratios.values()))
    reach = 3.182446 * logs.std(ddof=1) / 2  # Student's for four seeds
    assert found.numbers["ratio"] == pytest.approx(np.exp([logs.mean(), logs.mean() - reach, logs.mean() + reach]))


@pytest.mark.parametrize(
    ("head", "change", "shown"),
    [
        (HARMONIC, {"lr": 0.2}, ("0.2; 0.4", "22.63", None)),
        (HARMONIC, {"exponent": 64.0}, ("0.4", "22.63; 64", None)),
        (LINEAR, {"lr": 0.8}, ("0.4; 0.8", None, "1")),
        (LINEAR, {"scale": 4.0}, ("0.4", None, "1; 4")),
    ],
)
def test_runs_of_several_settings_decide_nothing_and_are_named(
    head: str, change: dict[str, float], shown: tuple[str, str | None, str | None]
) -> None:
    def mixed(cell: ClassifierCell) -> dict[str, Any]:
        return change if (cell.dataset, cell.head, cell.seed) == ("cifar10", head, 1) else {}

    for claim in (claim for claim in CLAIMS if claim.control):
        found = judge(claim.id, FULL, with_metrics(planted(FULL, CASES[claim.id][0]), mixed))
        touched = claim.needs(ClassifierCell("cifar10", head, FINAL, None, None, None, 1))
        assert found.verdict == (NOT_DECIDED if touched else REPRODUCED)
        if touched and "lr" in change:  # the others lie at ends of their grids, which is said first
            assert "several settings" in found.sentence
            assert "learning rate 0.4" in found.sentence
    row = next(row for row in tables_of(with_metrics(planted(FULL, {}), mixed))["Test"] if row["head"] == label(head))
    assert (row["lr"], row["exponent"], row["scale of logits"]) == shown


def lost(results: dict[ClassifierCell, CellResult], head: str) -> dict[ClassifierCell, CellResult]:
    """The same results, but the first CIFAR-10 run of a head diverged."""
    first = next(at for at in results if (at.dataset, at.head, at.stage) == ("cifar10", head, FINAL))
    known = {name: results[first].metrics[name] for name in ("lr", "exponent", "scale")}
    return {**results, first: CellResult(metrics={**known, "diverged_at": 2})}


@pytest.mark.parametrize("claim", [claim.id for claim in CLAIMS if claim.needs(CIFAR10_RUN)])
def test_a_run_that_diverged_is_a_failure_of_its_head(claim: str) -> None:
    results = planted(FULL, CASES[claim][0])
    harmonic, linear = (judge(claim, FULL, lost(results, head)) for head in HEADS)
    looks = (NOT_DECIDED, NOT_DECIDED)  # the runs that pass the test say the opposite
    only = {"baseline": (REPRODUCED, NOT_REPRODUCED), "centers": looks, "collapse": looks}
    assert (harmonic.verdict, linear.verdict) == only.get(claim, (NOT_REPRODUCED, NOT_DECIDED))
    named = linear if claim == "baseline" else harmonic
    assert "These runs diverged: dataset=cifar10" in named.sentence
    assert EXPERIMENT.summarize(FULL, lost(results, HARMONIC)).tables


def test_effects_come_with_intervals() -> None:
    found = judge("cifar10", FULL, planted(FULL, CASES["cifar10"][0]))
    estimate, low, high = found.numbers["difference"]
    assert -0.005 < low < estimate < high < 0.002
    assert f"{100 * estimate:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}] points" in found.sentence


def test_the_table_of_tests_has_plain_numbers() -> None:
    tables = tables_of(planted(FULL, {}))
    rows = tables["Test"]
    assert [(row["dataset"], row["head"], row["seeds"]) for row in rows] == [
        (dataset, head, seeds)
        for dataset, seeds in zip(FULL.datasets, FULL.repeats, strict=True)
        for head in ("harmonic", "cross-entropy")
    ]
    for row in rows:
        assert row["test_accuracy low"] < row["test_accuracy"] < row["test_accuracy high"]
        assert row["standard error by test images"] == pytest.approx((0.95 * 0.05 / 10_000) ** 0.5, rel=0.02)
        own = ("22.63", None) if row["head"] == "harmonic" else (None, "1")
        assert (row["lr"], row["exponent"], row["scale of logits"]) == ("0.4", *own)
    for row in tables["Calibration"]:
        assert all(row[f"{name} low"] < row[name] < row[f"{name} high"] for name in ("nll", "ece", "brier"))
    outliers = [row for row in tables["Outliers"] if row["dataset"] == "cifar10"]
    assert [row["head"] for row in outliers] == ["harmonic", "cross-entropy"] * 2 + ["harmonic"] * 2
    assert all(row[f"{name} low"] < row[name] < row[f"{name} high"] for row in outliers for name in ("AUROC", "FPR"))


def test_the_table_of_tuning_has_means_over_seeds_and_says_how_it_was_made() -> None:
    results = planted(FULL, {})
    first = next(cell for cell in results if (cell.dataset, cell.stage, cell.lr) == ("cifar100", TUNING, 0.1))
    results[first] = CellResult(metrics={"accuracy": 0.59, "nll": 0.3, "diverged_at": None})
    found = next(table for table in EXPERIMENT.summarize(FULL, results).tables if table.title.startswith("Tuning"))
    assert "the harmonic head has 15 settings to choose from, cross-entropy 15" in found.title
    assert "shorter runs" in found.title
    rows = [row for row in found.rows if row["dataset"] == "cifar100"]
    assert (rows[0]["seeds"], rows[0]["epochs"]) == (2, "20 of 80")
    assert rows[0]["lr 0.1"] == pytest.approx((0.59 + 0.89) / 2)
    assert rows[1]["lr 0.1"] == pytest.approx(0.89)
    del results[first]
    assert next(row for row in tables_of(results)["Tuning"] if row["dataset"] == "cifar100")["lr 0.1"] is None


@pytest.mark.parametrize(
    ("lr", "exponent", "scale", "harmonic", "linear"),
    [
        (0.4, 22.63, 1.0, "no", "no"),
        (0.1, 22.63, 1.0, "lr", "lr"),
        (0.4, 64.0, 1.0, "exponent", "no"),
        (1.6, 8.0, 4.0, "lr and exponent", "lr and scale"),
    ],
)
def test_a_choice_at_the_end_of_its_grid_is_told(
    lr: float, exponent: float, scale: float, harmonic: str, linear: str
) -> None:
    def chosen(cell: ClassifierCell) -> dict[str, Any]:
        return {"lr": lr, **({"exponent": exponent} if cell.head == HARMONIC else {"scale": scale})}

    for row in tables_of(with_metrics(planted(FULL, {}), chosen))["Test"]:
        assert row["at the grid's end"] == (harmonic if row["head"] == "harmonic" else linear)


def test_one_seed_has_means_and_no_ends() -> None:
    spec = replace(FULL, seeds=(0,))
    results = planted(spec, {})
    row = tables_of(results, spec)["Test"][0]
    assert row["test_accuracy"] == pytest.approx(0.95, rel=0.01)
    assert (row["test_accuracy low"], row["test_accuracy high"]) == (None, None)
    with house_style():
        picture = EXPERIMENT.draw(spec, results)["classifiers_accuracy"]
        assert to_svg(picture.figure, "accuracy").count("<path") > 10


def test_every_figure_is_drawn_from_planted_results() -> None:
    with house_style():
        pictures = EXPERIMENT.draw(FULL, planted(FULL, {}))
        drawn = {name: to_svg(picture.figure, name) for name, picture in pictures.items()}
    both = {f"{kind}_{dataset}" for kind in ("abstention", "prototypes") for dataset in FULL.datasets}
    overall = {f"classifiers_{kind}" for kind in ("accuracy", "reliability", "collapse", "outliers", "tuning")}
    assert drawn.keys() == both | overall
    assert all(svg.count("<path") > 10 for svg in drawn.values())


def test_tuning_is_drawn_while_a_data_set_has_not_begun() -> None:
    first = {cell: result for cell, result in planted(FULL, {}).items() if cell.dataset == "cifar10"}
    with house_style():
        assert to_svg(EXPERIMENT.draw(FULL, first)["classifiers_tuning"].figure, "tuning").count("<path") > 10
