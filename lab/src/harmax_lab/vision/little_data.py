"""Few labeled images: test accuracy against the number of images a class, with either head.

    harmax run little_data --smoke    generated features and digits of 8 x 8, seconds
    harmax run little_data            the same, more sizes and seeds: under a minute
    harmax run little_data --full     10 seeds, 1 to 1000 images a class of MNIST, digits, and CIFAR-10 through a ResNet

One layer, a number of AdamW steps that does not depend on the number of images. A seed draws images, and both heads
learn from the same ones, in the same order, from the same start. Both are tuned alike: six learning rates and two
variants each (harmonic: exponents sqrt(D) and 2 sqrt(D); cross-entropy: without and with a bias) are trained, and for
each data set and size the pair with the best mean accuracy over seeds on validation images counts. These are training
images that no seed learns from; the test set chooses nothing. With one labeled image a class nobody would have so
many others to choose by: it is a comparison of heads, not of what one could do with ten images.

Seeds are different draws: those of MNIST and CIFAR-10 from 4500 images a class or more, while of digits there are
little more than 100 a class, so that their largest draws are nearly the same images.

The features of CIFAR-10 are those of a ResNet-18 trained on Tiny ImageNet, which needs a GPU; the other data sets do
not, and come first. Nearest class mean, which learns nothing, is told beside the heads.

little_data_features.py has the rows, little_data_claims.py judges, little_data_figures.py draws.
"""

# S seeds, A variants of heads, L learning rates, K images learned from, N images, D features, V classes

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from harmax.functional import squared_distance
from harmax_lab.kit.experiment import Context, Experiment
from harmax_lab.kit.store import CellResult
from harmax_lab.vision.little_data_claims import CLAIMS, summarize
from harmax_lab.vision.little_data_features import Rows, draw_images, open_rows
from harmax_lab.vision.little_data_figures import figures
from harmax_lab.vision.little_data_spec import SOURCES, LittleDataCell, LittleDataSpec, cells
from harmax_lab.vision.mnist_training import Data
from harmax_lab.vision.one_layer import Profiles
from harmax_lab.vision.stacks import Arm, Network, train_stack


def run_cells(
    spec: LittleDataSpec, group: Sequence[LittleDataCell], context: Context
) -> Iterator[tuple[LittleDataCell, CellResult]]:
    """Train every variant, learning rate and seed of one data set, size after size.

    All of the spec's seeds are trained, whichever are asked for, so that a run's last bits do not depend on it.
    """
    dataset = group[0].dataset
    rows = open_rows(dataset, spec, context)
    y_N, rows = rows.pool.y_N, rows.to(context.device)  # draws are made on the CPU
    sizes = sorted({cell.images for cell in group})
    begun = 0.3 if SOURCES[dataset].backbone else 0.0
    for done, images in enumerate(sizes):

        def tell(fraction: float, done: int = done, images: int = images) -> None:
            context(begun + (1 - begun) * (done + fraction) / len(sizes), f"{dataset}, {images} images a class")

        drawn_SK = torch.stack([draw_images(y_N, images, seed) for seed in spec.seeds])
        found = measure(spec, rows, drawn_SK, context.device, tell)
        for cell in group:
            if cell.images == images:
                yield cell, found[spec.seeds.index(cell.seed)]


def measure(
    spec: LittleDataSpec, rows: Rows, drawn_SK: Tensor, device: str, tell: Callable[[float], object]
) -> list[CellResult]:
    """Train all variants and learning rates on what each seed has drawn; return accuracies, a result a seed."""
    arms = spec.stacked(rows.pool.x_ND.shape[1])
    shape = len(spec.seeds), len(arms), len(spec.learning_rates)
    validation_SAL, test_SAL = np.zeros(shape), np.zeros(shape)
    for place, learning_rate in enumerate(spec.learning_rates):

        def told(fraction: float, place: int = place) -> None:
            tell((place + fraction) / len(spec.learning_rates))

        network = train_stack(
            rows.pool,
            arms,
            spec.seeds,
            drawn_SK,
            steps=spec.steps,
            batch=spec.batch_size,
            learning_rate=learning_rate,
            weight_decay=spec.weight_decay,
            device=device,
            progress=told,
        )
        network = network.map(lambda part: part.to(rows.test.x_ND.device))
        for seed, arm in np.ndindex(shape[:2]):
            one = network.one(seed, arm)
            validation_SAL[seed, arm, place] = accuracy(one, arms[arm], rows.validation)
            test_SAL[seed, arm, place] = accuracy(one, arms[arm], rows.test)
    return [
        CellResult(
            arrays={"validation": validation_SAL[seed], "test": test_SAL[seed]},
            metrics={"nearest_mean": nearest_mean_accuracy(rows, drawn_SK[seed]), **rows.facts},
        )
        for seed in range(len(spec.seeds))
    ]


def accuracy(network: Network, arm: Arm, data: Data) -> float:
    """Return the share of images that one network is right about."""
    return _share(network.logits(arm, network.features(data.x_ND)).argmax(1), data)


def nearest_mean_accuracy(rows: Rows, drawn_K: Tensor) -> float:
    """Return the share of test images whose nearest class mean, of the drawn images, is that of their class."""
    drawn_K = drawn_K.to(rows.pool.y_N.device)
    x_KD, y_K = rows.pool.x_ND[drawn_K], rows.pool.y_N[drawn_K]
    means_VD = torch.stack([x_KD[y_K == label].mean(0) for label in range(rows.pool.classes)])
    return _share(squared_distance(rows.test.x_ND, means_VD).argmin(1), rows.test)


def _share(answers_N: Tensor, data: Data) -> float:
    return int((answers_N == data.y_N).sum()) / len(data.y_N)


_SMOKE = LittleDataSpec(seeds=(0, 1), images=(1, 5, 20), learning_rates=(3e-3, 1e-2), steps=60)
_SPECS: Any = {
    "smoke": _SMOKE,
    "quick": LittleDataSpec(
        seeds=(0, 1, 2), images=(1, 2, 5, 10, 20, 50, 100), learning_rates=(3e-3, 1e-2, 3e-2, 1e-1), steps=150
    ),
    "full": LittleDataSpec(seeds=tuple(range(10)), datasets=("mnist", "digits", "cifar10_linear", "cifar10_harmonic")),
}
# `Profiles` looks only at the fields `datasets` and `absent`, which this spec has as well.
PROFILES = cast(
    Mapping[str, LittleDataSpec],
    Profiles(_SPECS, required={"full": ("mnist",)}, is_there=lambda name: SOURCES[name].is_there()),
)

EXPERIMENT = Experiment(
    name="little_data",
    title="Few labeled images",
    figure="Little data; the paper has no figure of images",
    claims=CLAIMS,
    profiles=PROFILES,
    cells=cells,
    run_cells=run_cells,
    old_summarize=summarize,
    old_figures=figures,
    group=lambda cell: cell.dataset,
    accelerated=True,
)
