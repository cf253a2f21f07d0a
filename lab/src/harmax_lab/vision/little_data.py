"""Few labeled images: test accuracy against the number of images per class, with either head.

    harmax run little_data --smoke    generated features and digits of 8 x 8, seconds
    harmax run little_data            the same, more sizes and seeds: under a minute
    harmax run little_data --full     10 seeds, 1 to 1000 images per class: MNIST, digits, CIFAR-10 through a ResNet

One layer, and a number of AdamW steps that does not depend on the number of images. A seed draws images; both heads
learn from the same ones, in the same order, from the same start. Both are tuned alike: six learning rates and two
variants each (harmonic: exponents sqrt(D) and 2 sqrt(D); cross-entropy: without and with a bias). For each data set and
size the pair with the best mean accuracy over seeds on validation images counts. These are training images that no seed
learns from; the test set chooses nothing. With one labeled image per class nobody would have so many others to choose
by: this compares heads, not what one could do with ten images.

Seeds are different draws: on MNIST and CIFAR-10 from 4500 images per class or more. The digits have little more than
100 per class, so that their largest draws are nearly the same images.

The features of CIFAR-10 come from a ResNet-18 trained on Tiny ImageNet, which needs a GPU; the other data sets do not,
and come first. Nearest class mean, which learns nothing, is reported beside the heads.
"""

# S seeds, A variants of heads, L learning rates, K images learned from, N images, D features, V classes

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harmax.analysis import Interval
from harmax.figures import HEAD_STYLES, Picture
from harmax.functional import squared_distance
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.experiment import Context, Experiment, Work
from harmax_lab.kit.judges import both, signed
from harmax_lab.kit.results import Results, compare, interval, where
from harmax_lab.kit.rules import Choice
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Column, Table, estimate, interval_columns, mean_of, places, tabulate
from harmax_lab.vision.little_data_features import SOURCES, Rows, draw_images, open_rows
from harmax_lab.vision.mnist_training import Data
from harmax_lab.vision.one_layer import BIASED, HARMONIC, STANDARD, ImageCell, Profiles, left_out
from harmax_lab.vision.stacks import Arm, StackSpec, train_stack

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BOTH = (HARMONIC, STANDARD)
FEW, MANY = (1, 2, 5, 10), (100, 200, 500, 1000)  # images per class
MARGIN = 0.005  # by which a head may be behind before it counts as worse
PIXELS, FEATURES = ("mnist",), ("cifar10_linear", "cifar10_harmonic")


@dataclass(frozen=True, kw_only=True)
class LittleDataSpec(StackSpec):
    """Settings of one layer that learns from few labeled images; `factors` are variants of the harmonic head."""

    datasets: tuple[str, ...] = ("generated", "digits")
    """Names in `SOURCES`."""
    images: tuple[int, ...] = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
    """Labeled images per class; each data set has as many as it can."""
    learning_rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
    """The grid of both heads."""
    steps: int = 500
    backbone: str = "resnet18"
    """The network whose features are taken, trained on the 200 classes of Tiny ImageNet."""
    backbone_epochs: int = 30
    backbone_batch: int = 256
    backbone_lr: float = 0.2
    backbone_exponent: float = 128.0
    """Of the backbone with a harmonic head: a quarter of its features. Nothing of the backbones is tuned here."""

    def short_of(self, cells: Sequence["LittleDataCell"]) -> str:
        """Say in what runs fall short of the full profile's; a claim about several sizes needs all of them."""
        full = LittleDataSpec()
        if self.steps < full.steps:
            return f"Only {self.steps} of {full.steps} steps were run."
        missing = [str(images) for images in full.images if images not in self.images]
        return f"Some sizes were not run: {', '.join(missing)} images per class." if missing else ""

    def sizes(self, dataset: str) -> list[int]:
        """Return the numbers of labeled images per class that a data set allows."""
        return [images for images in self.images if images <= SOURCES[dataset].most]


@dataclass(frozen=True)
class LittleDataCell(ImageCell):
    """All variants and learning rates of both heads on one seed's draw of images."""

    images: int
    seed: int


def cells(spec: LittleDataSpec) -> list[LittleDataCell]:
    """List every data set, number of images and seed."""
    sizes = [(dataset, images) for dataset in spec.datasets for images in spec.sizes(dataset)]
    return [LittleDataCell(*size, seed) for size in sizes for seed in spec.seeds]


def run_cells(
    spec: LittleDataSpec, group: Sequence[LittleDataCell], context: Context
) -> Iterator[tuple[LittleDataCell, CellResult]]:
    """Train every variant, learning rate and seed of one data set, size after size.

    All seeds of the spec are trained, whichever are asked for, so that the last bits of a run do not depend on it.
    """
    dataset = group[0].dataset
    rows = open_rows(dataset, spec, context)
    y_N, rows = rows.pool.y_N, rows.to(context.device)  # draws are made on the CPU
    sizes = sorted({cell.images for cell in group})
    begun = 0.3 if SOURCES[dataset].backbone else 0.0
    for done, images in enumerate(sizes):

        def tell(fraction: float, done: int = done, images: int = images) -> None:
            context(begun + (1 - begun) * (done + fraction) / len(sizes), f"{dataset}, {images} images per class")

        drawn_SK = torch.stack([draw_images(y_N, images, seed) for seed in spec.seeds])
        found = _train_all(spec, rows, drawn_SK, context.device, tell)
        for cell in group:
            if cell.images == images:
                yield cell, found[spec.seeds.index(cell.seed)]


def _train_all(
    spec: LittleDataSpec, rows: Rows, drawn_SK: Tensor, device: str, tell: Callable[[float], object]
) -> list[CellResult]:
    """Train all variants and learning rates on each seed's draw; return the accuracies, one result per seed."""
    shape = len(spec.seeds), len(spec.arms), len(spec.learning_rates)
    sides = {"validation": (rows.validation, np.zeros(shape)), "test": (rows.test, np.zeros(shape))}
    for place, learning_rate in enumerate(spec.learning_rates):
        plan: Any = {"steps": spec.steps, "learning_rate": learning_rate, "device": device}
        plan["progress"] = lambda fraction, place=place: tell((place + fraction) / len(spec.learning_rates))
        network = train_stack(spec, rows.pool, drawn_SK, **plan)
        network = network.map(lambda part: part.to(rows.test.x_ND.device))
        for seed, arm in np.ndindex(shape[:2]):
            one = network.one(seed, arm)
            for data, found_SAL in sides.values():
                answers_N = one.logits(spec.arms[arm], data.x_ND).argmax(1)
                found_SAL[seed, arm, place] = _share_right(answers_N, data)
    return [
        CellResult(
            arrays={side: found_SAL[seed] for side, (_, found_SAL) in sides.items()},
            metrics={"nearest_mean": _nearest_mean(rows, drawn_SK[seed]), **rows.facts},
        )
        for seed in range(len(spec.seeds))
    ]


def _nearest_mean(rows: Rows, drawn_K: Tensor) -> float:
    """Return the share of test images whose nearest class mean, of the drawn images, is that of their class."""
    drawn_K = drawn_K.to(rows.pool.y_N.device)
    x_KD, y_K = rows.pool.x_ND[drawn_K], rows.pool.y_N[drawn_K]
    means_VD = torch.stack([x_KD[y_K == label].mean(0) for label in range(rows.pool.classes)])
    return _share_right(squared_distance(rows.test.x_ND, means_VD).argmin(1), rows.test)


def _share_right(answers_N: Tensor, data: Data) -> float:
    return int((answers_N == data.y_N).sum()) / len(data.y_N)


def measure(spec: LittleDataSpec, cell: LittleDataCell, result: CellResult) -> dict[str, float]:
    """Return the accuracies as flat metrics: the side, and the places of the variant and of the learning rate."""
    return {
        f"{side}.{arm}.{rate}": float(result.arrays[side][arm, rate])
        for side in ("validation", "test")
        for arm, rate in np.ndindex(result.arrays[side].shape)
    }


class Chosen(NamedTuple):
    """What validation chose for one head, data set and size, and how accurate it is in test."""

    arm: Arm
    rate: int
    test_S: list[float]
    validation: float


def choose(results: Results, head: str) -> Chosen:
    """Choose a head's variant and learning rate by the mean validation accuracy over seeds, for one data set and size.

    Of equals the first counts: the smaller exponent, no bias, the smaller learning rate.
    """
    arms, rates = results.spec.arms, range(len(results.spec.learning_rates))
    own = [place for place, arm in enumerate(arms) if (arm.head == HARMONIC) == (head == HARMONIC)]
    pairs = [(arm, rate) for arm in own for rate in rates]
    # One row per seed: sums must run over seeds in their order.
    validation = np.array([[run.metrics[f"validation.{a}.{r}"] for a, r in pairs] for run in results.values()]).mean(0)
    arm, rate = pairs[int(validation.argmax())]
    return Chosen(arms[arm], rate, results.metric(f"test.{arm}.{rate}").values, float(validation.max()))


def _choices(heads: Sequence[str], results: Results) -> Iterator[Choice]:
    """Yield the learning rates that validation chose. The two variants are alternatives, not a grid with ends."""
    rates = results.spec.learning_rates
    for (dataset, images), own in results.groups("dataset", "images").items():
        for head in heads:
            arm = f"{SOURCES[dataset].title}, {images} per class, {HEAD_STYLES[head].label}"
            yield Choice(arm, "learning rate", rates[choose(own, head).rate], rates)


def _pair(results: Results, against: str = STANDARD) -> tuple[list[float], list[float]]:
    """Return the test accuracies of the harmonic head and of what it is compared with, one per seed."""
    other_S = results.metric(MEANS).values if against == MEANS else choose(results, against).test_S
    return choose(results, HARMONIC).test_S, other_S


def _judge_ahead(limit: float, against: str, results: Results) -> Finding:
    """Judge by the paired difference, averaged over the sizes, on each data set."""
    words, holds = [], []
    numbers: dict[str, Interval] = {}
    for dataset, own in results.groups("dataset").items():
        pairs = {images: _pair(some, against) for images, some in own.groups("images").items()}
        one, two = np.mean(list(pairs.values()), axis=0)
        apart = compare(one.tolist(), two.tolist()).difference
        each = {images: compare(*pair).difference for images, pair in pairs.items()}
        holds.append(apart.above(limit))
        numbers |= {f"{dataset}_difference": apart}
        numbers |= {f"{dataset}_{images}_difference": found for images, found in each.items()}
        sizes = ", ".join(f"{images} per class {100 * found.estimate:+.2f}" for images, found in each.items())
        words.append(
            f"{SOURCES[dataset].title}: {100 * one.mean():.2f} against {100 * two.mean():.2f} %, "
            f"{signed(apart, scale=100)} points ({sizes})"
        )
    return Finding(both(*holds), f"{'; '.join(words)}.", numbers)


def _claim(
    name: str, statement: str, datasets: tuple[str, ...], sizes: tuple[int, ...], against: str = STANDARD
) -> Claim:
    limit, words = (0.0, "0") if sizes == FEW else (-MARGIN, "-0.5 points")
    rule = "The interval of the difference, paired by seed and averaged over the sizes, is above"

    def enough(results: Results) -> str:
        missing = [SOURCES[dataset].title for dataset in datasets if dataset not in results.spec.datasets]
        return f"Some data sets were not run: {', '.join(missing)}." if missing else ""

    return Claim(
        name,
        f"{statement} {rule} {words}{', for both networks' * (datasets == FEATURES)}.",
        needs=where(dataset=datasets, images=sizes),
        judge=partial(_judge_ahead, limit, against),
        choices=partial(_choices, (HARMONIC,) if against == MEANS else BOTH),
        enough=enough,
    )


MEANS = "nearest_mean"
CLAIMS = (
    _claim(
        "few_pixels",
        "With few labeled images (1, 2, 5 and 10 per class) one harmonic layer is more accurate on MNIST than one with "
        "cross-entropy.",
        PIXELS,
        FEW,
    ),
    _claim(
        "many_pixels",
        "With many labeled images (100 to 1000 per class) one harmonic layer is at most 0.5 points less accurate on "
        "MNIST than one with cross-entropy.",
        PIXELS,
        MANY,
    ),
    _claim(
        "few_features",
        "With few labeled images the harmonic layer is more accurate on CIFAR-10's features too, whichever head the "
        "network that makes them was trained with.",
        FEATURES,
        FEW,
    ),
    _claim(
        "many_features",
        "With many labeled images the harmonic layer is at most 0.5 points less accurate on CIFAR-10's features.",
        FEATURES,
        MANY,
    ),
    _claim(
        "class_means",
        "With few labeled images of MNIST the harmonic layer is more accurate than nearest class mean, which learns "
        "nothing.",
        PIXELS,
        FEW,
        MEANS,
    ),
)


def tables(results: Results) -> list[Table]:
    """Tabulate what was chosen and how accurate it is."""
    spec, rates, heads = results.spec, results.spec.learning_rates, []
    every = places(results, dataset=spec.datasets, images=spec.images)
    sizes = [at for at in every if at.images in spec.sizes(at.dataset)]
    for at in sizes:
        at.apart = compare(*_pair(at.own)) if at.own else None
        for head in BOTH:
            heads.append(SimpleNamespace(**vars(at), head=head, chosen=choose(at.own, head) if at.own else None))

    def chosen(value: Column) -> Column:
        return lambda at: at.chosen and value(at.chosen)

    def apart(value: Column) -> Column:
        return lambda at: at.apart and value(at.apart)

    named: dict[str, Column] = {"dataset": lambda at: at.dataset, "images per class": lambda at: at.images}
    tested = {
        "head": lambda at: HEAD_STYLES[at.head].label,
        "seeds": lambda at: len(at.own),
        **interval_columns("test_accuracy", chosen(lambda one: interval(one.test_S))),
        "validation accuracy": chosen(lambda one: one.validation),
        "exponent / sqrt(D)": chosen(lambda one: one.arm.factor if one.arm.head == HARMONIC else None),
        "bias": chosen(lambda one: None if one.arm.head == HARMONIC else one.arm.head == BIASED),
        "learning rate": chosen(lambda one: rates[one.rate]),
        "at the grid's end": chosen(lambda one: one.rate in (0, len(rates) - 1)),
    }
    paired = {
        **interval_columns("difference", apart(lambda one: one.difference)),
        "seeds harmonic is ahead": apart(lambda one: one.greater),
        "seeds it is behind": apart(lambda one: one.less),
        "nearest class mean": estimate(mean_of(MEANS)),
    }
    return [
        tabulate("Test accuracy of what validation chose, means over seeds", heads, named | tested),
        tabulate("Harmonic minus cross-entropy, paired", sizes, named | paired),
        left_out(spec),
    ]


GRAY = "#777777"


def figures(results: Results) -> dict[str, Picture]:
    """Draw a column per data set that has finished cells."""
    if not results:
        return {}
    styles, datasets = [HEAD_STYLES[head] for head in BOTH], results.distinct("dataset")
    handles = [drawing.line_handle(style.label, style.color, style.line) for style in styles]
    figure, panels = drawing.facets(
        {"top": "test accuracy, %", "bottom": "difference, points"},
        {dataset: SOURCES[dataset].title.replace(", features", ",\nfeatures") for dataset in datasets},
        size=(3.3 * len(datasets) + 1.2, 5.4),
        xlabel="labeled images per class",
        handles=[*handles, drawing.line_handle("nearest class mean", GRAY, ":")],
        title="Accuracy with few labeled images, and how far the harmonic head is ahead",
        sharex="col",
        height_ratios=(1.7, 1),
    )
    for dataset in datasets:
        top, bottom = panels["top", dataset], panels["bottom", dataset]
        own = results.where(dataset=dataset).groups("images")
        sizes, pairs = list(own), [_pair(some) for some in own.values()]
        for side, style in enumerate(styles):
            _draw_band(top, sizes, [pair[side] for pair in pairs], style.color, style.line)
        means = [some.metric(MEANS).mean() for some in own.values()]
        top.plot(sizes, [100 * one.estimate for one in means if one], color=GRAY, linestyle=":", linewidth=1.4)
        bottom.axhline(0, color="#444444", linewidth=0.9)
        apart = [[one - two for one, two in zip(*pair, strict=True)] for pair in pairs]
        _draw_band(bottom, sizes, apart, styles[0].color, "-")
        # These have a number; the sizes between have a mark alone.
        shown = [tick for tick in (1, 10, 100, 1000) if sizes[0] <= tick <= sizes[-1]]
        bottom.set(xscale="log")
        bottom.set_xticks(shown, [str(tick) for tick in shown])
        bottom.set_xticks(sizes, [""] * len(sizes), minor=True)
    caption = (
        "Top: test accuracy against labeled images per class, mean over seeds, bands 95 % intervals. Each "
        "head has the variant and learning rate that validation images chose for that size; gray: nearest class mean "
        "of the same images. Bottom: harmonic minus cross-entropy in points, paired by seed: the same images, order "
        f"and initial weights. {len(results.spec.seeds)} seeds, {results.spec.steps} steps."
    )
    return {"little_data": Picture(figure, caption)}


def _draw_band(axes: "Axes", sizes: list[int], found: Sequence[list[float]], color: str, line: str) -> None:
    ranges = 100 * np.array([interval(one_S) for one_S in found])
    drawing.draw_ranges(axes, sizes, ranges, color=color, linestyle=line, marker="o", markersize=3.5)


SPECS = {
    "smoke": LittleDataSpec(seeds=(0, 1), images=(1, 5, 20), learning_rates=(3e-3, 1e-2), steps=60),
    "quick": LittleDataSpec(
        seeds=(0, 1, 2), images=(1, 2, 5, 10, 20, 50, 100), learning_rates=(3e-3, 1e-2, 3e-2, 1e-1), steps=150
    ),
    "full": LittleDataSpec(seeds=tuple(range(10)), datasets=("mnist", "digits", "cifar10_linear", "cifar10_harmonic")),
}
EXPERIMENT = Experiment(
    name="little_data",
    title="Few labeled images",
    figure="Little data; the paper has no figure of images",
    claims=CLAIMS,
    profiles=Profiles(SPECS, required={"full": ("mnist",)}, is_there=lambda name: SOURCES[name].is_there()),
    work=Work(cells, run_cells, group=lambda cell: cell.dataset, accelerated=True),
    measure=measure,
    tables=tables,
    figures=figures,
)
