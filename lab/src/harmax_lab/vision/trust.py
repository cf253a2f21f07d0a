"""How far to trust a classifier's answers: is it right as often as it says, and does it know what it has not seen?

    harmax run trust --smoke    digits of 8 x 8, seconds
    harmax run trust            digits, 3 seeds: under a minute
    harmax run trust --full     MNIST, 10 seeds; Fashion-MNIST as outside set where its files are there: some minutes

One layer and a network with one hidden layer, each with the harmonic head (exponents sqrt(D) and 2 sqrt(D), for D
inputs of the head) and with cross-entropy, without and with a bias. All arms of a seed start alike and see the same
batches. Calibration is measured as trained, and after dividing the logits by a temperature that is fitted on held-out
training images. Outside sets: Fashion-MNIST, and always the test images rotated by 90 degrees, with their pixels
permuted, and noise. A rotated 0 or 8 is still one, so no score can be perfect there. A linear head has no centers: its
distances are to the class means of the features of its own training images.
"""

# N images, D inputs, F features, V classes, K images learned from

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harmax.analysis import Interval, fit_temperature
from harmax.data.images import IMAGES, Images, load_images
from harmax.figures import HEAD_STYLES, Picture
from harmax.functional import squared_distance
from harmax_lab.ensemble.rows import orders, streams
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.experiment import Context, Experiment, Work
from harmax_lab.kit.judges import Judge, below, both, listed, signed
from harmax_lab.kit.results import Results, compare, interval, where
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Column, Table, combinations, estimate, interval_columns, mean_of, places, tabulate
from harmax_lab.vision.mnist_training import Data, as_data, closest
from harmax_lab.vision.one_layer import BIASED, HARMONIC, STANDARD, ImageCell, Profiles, left_out, title_of
from harmax_lab.vision.stacks import Arm, Network, StackSpec, train_stack
from harmax_lab.vision.trust_measures import (
    SCORES,
    Answers,
    detection_key,
    measure_calibration,
    measure_trust,
    reliability,
)

LAYER, MLP = BODIES = ("layer", "mlp")
BODY_TITLES = {LAYER: "one layer", MLP: "hidden layer"}
TRANSFORMS = {"rotated": "rotated by 90°", "noise": "noise", "permuted": "pixels permuted"}
HARMONIC_ARM, STANDARD_ARM = Arm(HARMONIC, 2.0), Arm(STANDARD)
"""The arms that the claims compare: no bias in either, and the exponent of the authors' code."""
MARGIN = 0.005  # of a calibration error, by which a head may be behind before it counts as worse
TRAINING_SHARE = 0.85  # of a group's time, roughly
SEED = 0  # of the sets that are made of the test images: the same for all runs


@dataclass(frozen=True, kw_only=True)
class TrustSpec(StackSpec):
    """Settings of the classifiers; `datasets` are the known images, then sets of the same size outside them."""

    hidden: int = 256
    """Units of the hidden layer."""
    layer_steps: int = 6450
    """Steps of the one-layer classifiers: 15 passes over MNIST."""
    mlp_steps: int = 3440
    """Steps of those with a hidden layer: 8 passes."""
    batch_size: int = 128
    learning_rate: float = 1e-3
    held_out: int = 5000
    """Training images that each seed does not learn from: its temperature is fitted on them."""

    def short_of(self, cells: Sequence["TrustCell"]) -> str:
        """Say in what the networks fall short of the full profile's."""
        full, bodies = TrustSpec(), {cell.body for cell in cells}
        limits = {"layer_steps": (LAYER, "steps"), "mlp_steps": (MLP, "steps"), "hidden": (MLP, "hidden units")}
        short = [
            f"{BODY_TITLES[body]}: {getattr(self, name)} of {getattr(full, name)} {words}"
            for name, (body, words) in limits.items()
            if body in bodies and getattr(self, name) < getattr(full, name)
        ]
        return f"Less than in the full profile: {', '.join(short)}." if short else ""

    @property
    def known(self) -> str:
        """The data set that is learned."""
        return self.datasets[0]

    @property
    def outside(self) -> tuple[str, ...]:
        """The outside sets: other data sets, then those that are made of the known test images."""
        return (*self.datasets[1:], *TRANSFORMS)


@dataclass(frozen=True)
class TrustCell(ImageCell):
    """One network: its body, its head with the exponent over sqrt(features), and its seed."""

    body: str
    head: str
    factor: float
    seed: int

    @property
    def arm(self) -> Arm:
        """Its head with the factor."""
        return Arm(self.head, self.factor)


def cells(spec: TrustSpec) -> list[TrustCell]:
    """List every body, arm and seed."""
    return [TrustCell(spec.known, body, *arm, seed) for body in BODIES for arm in spec.arms for seed in spec.seeds]


def run_cells(spec: TrustSpec, group: Sequence[TrustCell], context: Context) -> Iterator[tuple[TrustCell, CellResult]]:
    """Train all arms and seeds of one body together, and measure those that are asked for.

    All are trained, whichever are asked for, so that the last bits of a run do not depend on it.
    """
    body, test = group[0].body, load_images(spec.known, "test")
    others = {name: as_data(load_images(name, "test")).x_ND for name in spec.datasets[1:]}
    train, outside = as_data(load_images(spec.known, "train")), {**others, **transformed(test)}
    learned_SK, held_SK = split(spec, len(train.y_N))
    steps, hidden = (spec.mlp_steps, spec.hidden) if body == MLP else (spec.layer_steps, None)
    network = train_stack(
        spec,
        train,
        learned_SK,
        steps=steps,
        learning_rate=spec.learning_rate,
        hidden=hidden,
        progress=lambda fraction: context(TRAINING_SHARE * fraction, f"{spec.known}, {body}"),
    )
    for done, cell in enumerate(group):
        context(TRAINING_SHARE + (1 - TRAINING_SHARE) * done / len(group), cell.name)
        seed, one = spec.seeds.index(cell.seed), spec.arms.index(cell.arm)
        rows = learned_SK[seed], held_SK[seed]
        yield cell, _result_of(network.one(seed, one), cell.arm, train, rows, as_data(test), outside)


def transformed(images: Images) -> dict[str, Tensor]:
    """Make three outside sets of images (N, H, W): rotated by 90 degrees, noise, and pixels permuted.

    The noise is normal with the mean and the deviation of all pixels; it is not cut off at black and white, which would
    change both. One permutation is used for all images: every pixel keeps its statistics and loses its neighbors.
    """
    draws, x_ND = np.random.default_rng(SEED), as_data(images).x_ND
    turned = images._replace(pixels=np.ascontiguousarray(np.rot90(images.pixels, axes=(1, 2))))
    noise_ND = draws.normal(float(x_ND.mean()), float(x_ND.std()), size=x_ND.shape).astype(np.float32)
    order_D = torch.from_numpy(draws.permutation(x_ND.shape[1]))
    return {"rotated": as_data(turned).x_ND, "noise": torch.from_numpy(noise_ND), "permuted": x_ND[:, order_D]}


def split(spec: TrustSpec, images: int) -> tuple[Tensor, Tensor]:
    """Return numbers of the training images that each seed learns from and holds out, (S, K) each."""
    if not 0 < spec.held_out < images:
        raise ValueError(f"`held_out` must be 1 to {images - 1} of {images} images, got {spec.held_out}; take others.")
    order_SN = orders(images, streams(spec.seeds))
    return order_SN[:, spec.held_out :], order_SN[:, : spec.held_out]


def _result_of(
    network: Network, arm: Arm, train: Data, rows: tuple[Tensor, Tensor], test: Data, others: Mapping[str, Tensor]
) -> CellResult:
    """Measure calibration, before and after a temperature, and the scores of outside sets, rows (N, D) by name."""
    learned_K, held_K = rows
    x_KF, y_K = network.features(train.x_ND[learned_K]), train.y_N[learned_K]
    means_VF = torch.stack([x_KF[y_K == label].mean(0) for label in range(train.classes)])
    prototypes_VF = network.weight_SAVF if arm.head == HARMONIC else means_VF

    def answers(x_ND: Tensor) -> Answers:
        x_NF = network.features(x_ND)
        distances_NV = squared_distance(x_NF, prototypes_VF).sqrt().numpy()
        return Answers(network.logits(arm, x_NF).double().numpy(), distances_NV)

    labels_N, known = test.y_N.numpy(), answers(test.x_ND)
    temperature = fit_temperature(answers(train.x_ND[held_K]).logits_NC, train.y_N[held_K].numpy())
    states = {"trained": known.logits_NC, "scaled": known.logits_NC / temperature}
    arrays = {
        f"{state}_{part}": found
        for state, logits_NV in states.items()
        for part, found in reliability(logits_NV, labels_N).items()
        if part != "edges"
    }
    trust = measure_trust(known, labels_N, {name: answers(x_ND) for name, x_ND in others.items()})
    metrics = {**trust, "temperature": temperature}
    scaled = measure_calibration(states["scaled"], labels_N)
    metrics |= {f"scaled_{name}": value for name, value in scaled.items() if name != "accuracy"}
    if arm.head == HARMONIC:
        metrics["closest"] = closest(network.features(test.x_ND), network.weight_SAVF)
    return CellResult(arrays=arrays, metrics=metrics)


ALL = "mean"  # in place of an outside set: the mean over all of them


def measure(spec: TrustSpec, cell: TrustCell, result: CellResult) -> dict[str, float]:
    """Return the mean area under the ROC curve over the outside sets, by score."""
    return {
        detection_key(ALL, score, "auroc"): float(
            np.mean([result.metrics[detection_key(outside, score, "auroc")] for outside in spec.outside])
        )
        for score in SCORES
    }


def _in_each_body(words: str, judge: Judge, results: Results) -> Finding:
    found = {body: judge(own) for body, own in results.groups("body").items()}
    each = listed({f"{BODY_TITLES[body]}:": one.sentence for body, one in found.items()})
    numbers = {f"{body}_{name}": value for body, one in found.items() for name, value in one.numbers.items()}
    return Finding(both(*(one.holds for one in found.values())), f"{words}, {each}.", numbers)


Side = tuple[Arm, str]  # an arm and one of its metrics


def _pair(results: Results, *compared: Side) -> tuple[float, float, Interval]:
    """Return the means over seeds of two sides, and the interval of their paired difference."""
    one, two = (results.where(arm=arm).metric(metric).values for arm, metric in compared)
    return float(np.mean(one)), float(np.mean(two)), compare(one, two).difference


def _compare_areas(compared: Sequence[Side], results: Results) -> Finding:
    found = {
        outside: _pair(results, *((arm, detection_key(outside, score, "auroc")) for arm, score in compared))
        for outside in (ALL, *results.spec.outside)
    }
    one, two, apart = found.pop(ALL)
    each = ", ".join(f"{name} {difference.estimate:+.3f}" for name, (_, _, difference) in found.items())
    numbers = {"first": one, "second": two, "difference": apart}
    numbers |= {f"{name}_difference": difference for name, (_, _, difference) in found.items()}
    return Finding(apart.above(0), f"{one:.3f} against {two:.3f}, {signed(apart, 3)} ({each})", numbers)


def _compare_errors(compared: Sequence[Side], results: Results) -> Finding:
    one, two, apart = _pair(results, *compared)
    right = _pair(results, *((arm, "accuracy") for arm, _ in compared))
    return Finding(
        below(apart, MARGIN),
        f"{100 * one:.2f} against {100 * two:.2f} %, {signed(apart, scale=100)} points (accuracy "
        f"{100 * right[0]:.2f} and {100 * right[1]:.2f} %)",
        {"harmonic": one, "standard": two, "difference": apart},
    )


def _claim(name: str, statement: str, words: str, judge: Callable[..., Finding], *compared: Side) -> Claim:
    return Claim(
        name,
        f"{statement}, paired by seed, with one layer and with a hidden one.",
        needs=where(dataset="mnist", arm=tuple(arm for arm, _ in compared)),
        judge=partial(_in_each_body, words, partial(judge, compared)),
    )


def _separates(name: str, statement: str, *compared: Side) -> Claim:
    rule = "The mean AUROC over the outside sets is higher: the interval of the difference is above 0"
    return _claim(name, f"{statement} {rule}", "Mean AUROC", _compare_areas, *compared)


def _calibrates(name: str, statement: str, metric: str) -> Claim:
    rule = "Its error is at most 0.5 points higher: the interval of the difference is below that"
    compared = (HARMONIC_ARM, metric), (STANDARD_ARM, metric)
    return _claim(name, f"{statement} {rule}", "Calibration error", _compare_errors, *compared)


_DISTANCE = (HARMONIC_ARM, "nearest_distance")
CLAIMS = (
    _separates(
        "distance",
        "The distance to the nearest harmonic center separates outside images from MNIST better than the largest "
        "probability of cross-entropy.",
        _DISTANCE,
        (STANDARD_ARM, "max_softmax"),
    ),
    _separates(
        "energy",
        "The distance to the nearest harmonic center separates outside images from MNIST better than the energy of "
        "cross-entropy, which is as cheap.",
        _DISTANCE,
        (STANDARD_ARM, "energy"),
    ),
    _separates(
        "class_means",
        "The distance to the nearest harmonic center separates outside images from MNIST better than the distance to "
        "the nearest class mean in the features of the cross-entropy network, which needs no harmonic head.",
        _DISTANCE,
        (STANDARD_ARM, "nearest_distance"),
    ),
    _separates(
        "own_probability",
        "For a harmonic head, the distance to the nearest center separates outside images from MNIST better than its "
        "own largest probability.",
        _DISTANCE,
        (HARMONIC_ARM, "max_softmax"),
    ),
    _separates(
        "probability",
        "By its largest probability alone the harmonic head separates outside images from MNIST better than "
        "cross-entropy does by its own.",
        (HARMONIC_ARM, "max_softmax"),
        (STANDARD_ARM, "max_softmax"),
    ),
    _calibrates(
        "calibrated", "As trained, the harmonic head is no worse calibrated than cross-entropy on MNIST.", "ece"
    ),
    _calibrates(
        "calibrated_scaled",
        "After a temperature, fitted on held-out images, the harmonic head is no worse calibrated than cross-entropy.",
        "scaled_ece",
    ),
)


def arm_label(head: str, factor: float) -> str:
    """Return the name of an arm; its exponent depends on the features, so it is given as a rule.

    >>> arm_label("harmonic", 2.0), arm_label("cross_entropy", 0.0)
    ('harmonic, exponent 2 √D', 'cross-entropy')
    """
    times = "" if factor == 1 else f"{factor:g} "
    return f"{HEAD_STYLES[head].label}, exponent {times}√D" if head == HARMONIC else HEAD_STYLES[head].label


def _outside_title(name: str) -> str:
    return TRANSFORMS[name] if name in TRANSFORMS else IMAGES[name].title


def tables(results: Results) -> list[Table]:
    """Tabulate calibration and detection of every body and arm."""
    spec, head = results.spec, {"head": lambda at: arm_label(*at.arm)}

    def scored(kind: str) -> Callable[[Any], Interval | None]:
        own = results.where
        return lambda at: own(body=at.body, arm=at.arm).metric(detection_key(at.outside, at.score, kind)).mean()

    def errors(before: str, after: str) -> dict[str, Column]:
        single = {f"{name}{after}": estimate(mean_of(before + name.lower())) for name in ("NLL", "Brier")}
        return {**interval_columns(f"ECE{after}", mean_of(f"{before}ece")), **single}

    calibration = {
        "body": lambda at: BODY_TITLES[at.body],
        **head,
        "seeds": lambda at: len(at.own),
        "accuracy": estimate(mean_of("accuracy")),
        **errors("", ""),
        "temperature": estimate(mean_of("temperature")),
        **errors("scaled_", " scaled"),
    }
    detection = {
        "outside": lambda at: _outside_title(at.outside),
        "score": lambda at: SCORES[at.score],
        **head,
        **interval_columns("AUROC", scored("auroc")),
        **interval_columns("FPR", scored("fpr95")),
    }
    found = [tabulate("Calibration, means over seeds", places(results, body=BODIES, arm=spec.arms), calibration)]
    for body in BODIES:
        title = f"Outside images, {BODY_TITLES[body]}: AUROC, and FPR at 95 % TPR, means over seeds"
        rows = combinations(body=[body], outside=spec.outside, score=SCORES, arm=spec.arms)
        found.append(tabulate(title, rows, detection))
    return [*found, left_out(spec)]


STATES = {"trained": "as trained", "scaled": "after a temperature"}
MARKERS = {HARMONIC: "o", STANDARD: "D", BIASED: "s"}


def figures(results: Results) -> dict[str, Picture]:
    """Draw reliability diagrams and the areas under the ROC curves of all scores."""
    if not results:
        return {}
    factors = results.spec.factors
    pale = {Arm(HARMONIC, factor) for factor in factors if factor < max(factors)}
    colors = {arm: HEAD_STYLES["harmonic_amsgrad" if arm in pale else arm.head].color for arm in results.spec.arms}
    return {"trust_reliability": _reliability(results, colors), "trust_detection": _detection(results, colors)}


def _handles(colors: Mapping[Arm, str]) -> list[Any]:
    return [drawing.mark_handle(arm_label(*arm), MARKERS[arm.head], color) for arm, color in colors.items()]


def _runs(spec: TrustSpec) -> str:
    steps = f"{spec.layer_steps} steps with one layer, {spec.mlp_steps} with {spec.hidden} hidden units"
    return f" {len(spec.seeds)} seeds; {steps}."


def _reliability(results: Results, colors: Mapping[Arm, str]) -> Picture:
    figure, panels = drawing.facets(
        BODY_TITLES,
        STATES,
        size=(9.2, 3.1 * len(BODIES) + 0.5),
        xlabel="confidence, %",
        ylabel="accuracy - confidence, points",
        handles=_handles(colors),
        title="How far the heads are surer than right, before and after one temperature",
        sharex="row",
        sharey="row",
    )
    for (body, state), axes in panels.items():
        axes.axhline(0, color="#777777", linestyle="--", linewidth=1)
        axes.text(0.015, 0.93, "ECE", fontsize=8, transform=axes.transAxes)
        for place, (arm, color) in enumerate(colors.items()):
            own = results.where(body=body, arm=arm)
            sides = [own.array(f"{state}_{name}").values for name in ("confidence", "accuracy")]
            if not sides[0]:
                continue
            confidence, accuracy = map(np.stack, sides)
            used = np.isfinite(confidence).all(0)  # equal confidences stay together, so that a bin may be empty
            gaps = [interval(column) for column in (100 * (accuracy - confidence)[:, used]).T.tolist()]
            look: Any = {"color": color, "marker": MARKERS[arm.head], "markersize": 3.5, "linewidth": 1.4}
            drawing.draw_ranges(axes, 100 * confidence.mean(0)[used], gaps, **look)
            error = np.mean(own.metric("ece" if state == "trained" else "scaled_ece").values)
            x, words = 0.09 + 0.1 * place, f"{100 * error:.2f}"
            axes.text(x, 0.93, words, color=color, fontsize=8, transform=axes.transAxes)
    for body in BODIES:
        low, high = panels[body, "trained"].get_ylim()
        panels[body, "trained"].set_ylim(low, high + 0.12 * (high - low))  # room for the errors
    return Picture(
        figure,
        f"Accuracy minus confidence against confidence on the test images of {title_of(results.spec.known)}, in 15 "
        "bins with equal numbers of images, mean over seeds; bands are 95 % intervals over seeds. On the "
        "dashed line a classifier is right as often as it says; below it, it is too sure. Right: logits divided by a "
        "temperature fitted on held-out training images. Numbers: mean calibration errors, in points."
        + _runs(results.spec),
    )


def _detection(results: Results, colors: Mapping[Arm, str]) -> Picture:
    outside = {name: _outside_title(name) for name in results.spec.outside}
    figure, panels = drawing.facets(
        BODY_TITLES,
        outside,
        size=(2.45 * len(outside) + 2.0, 2.7 * len(BODIES) + 0.6),
        xlabel=f"AUROC against {title_of(results.spec.known)}",
        handles=_handles(colors),
        title="How well each score notices images of other kinds",
        sharey=True,
        sharex=True,
    )
    for (body, name), axes in panels.items():
        axes.axvline(0.5, color="#777777", linestyle="--", linewidth=1)
        for row, score in enumerate(SCORES):
            for place, (arm, color) in enumerate(colors.items()):
                found = results.where(body=body, arm=arm).metric(detection_key(name, score, "auroc")).mean()
                if found is not None:
                    at = row + 0.17 * (place - (len(colors) - 1) / 2)
                    drawing.draw_interval(axes, found, at, color, marker=MARKERS[arm.head], markersize=5)
        # The whole scale: a score that ranks outside images above known ones must not fall off it.
        axes.set(title=outside[name], xlim=(-0.03, 1.03))
        axes.set_yticks(range(len(SCORES)), list(SCORES.values()))
    panels[LAYER, next(iter(outside))].invert_yaxis()
    return Picture(
        figure,
        f"How well each score separates outside images from the test images of {title_of(results.spec.known)}: area "
        "under the ROC curve (0.5 is chance, dashed; below it outside images look better known than known ones), mean "
        "over seeds with its 95 % interval. Distances are to the centers of a harmonic head; for "
        "cross-entropy to the class means of its features. For one layer these are the pixels themselves, so both "
        "linear heads have the same distances." + _runs(results.spec),
    )


SPECS = {
    "smoke": TrustSpec(seeds=(0, 1), hidden=32, layer_steps=200, mlp_steps=100, held_out=200),
    "quick": TrustSpec(seeds=(0, 1, 2), hidden=128, layer_steps=2000, mlp_steps=1000, held_out=200),
    "full": TrustSpec(seeds=tuple(range(10)), datasets=("mnist", "fashion_mnist")),
}
EXPERIMENT = Experiment(
    name="trust",
    title="How sure, and of what: calibration and outliers",
    figure="Calibration and outliers; the paper has no figure of them",
    claims=CLAIMS,
    profiles=Profiles(SPECS, required={"full": ("mnist",)}),
    work=Work(cells, run_cells, group=lambda cell: cell.body),
    measure=measure,
    tables=tables,
    figures=figures,
)
