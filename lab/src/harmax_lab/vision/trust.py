"""How far to trust a classifier's answers: is it as often right as it says, and does it know what it has not seen?

    harmax run trust --smoke    digits of 8 x 8, seconds
    harmax run trust            digits, 3 seeds: under a minute
    harmax run trust --full     MNIST, 10 seeds; Fashion-MNIST as outside set where its files are there: some minutes

One layer and a network with one hidden layer, each with the harmonic head (exponents sqrt(D) and 2 sqrt(D), D what
the head takes) and with cross-entropy, without and with a bias; all arms of a seed begin alike and see the same
batches. Calibration is measured as trained, and after dividing the logits by a temperature that is fitted on held-out
training images. Outside sets: Fashion-MNIST, and always the test images rotated by 90 degrees, with their pixels
permuted, and noise. A rotated 0 or 8 is still one, so no score can be perfect there. A linear head has no
centers: its distances are to the class means of the features of its own training images.

trust_measures.py turns logits and distances into numbers, trust_claims.py judges, trust_figures.py draws.
"""

# N images, D inputs, F features, V classes, K images learned from

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from harmax.analysis import fit_temperature, reliability_curve
from harmax.data.images import Images, load_images
from harmax.functional import squared_distance
from harmax_lab.kit.experiment import Context, Experiment
from harmax_lab.kit.store import CellResult
from harmax_lab.vision.mnist_training import Data, as_data
from harmax_lab.vision.one_layer import HARMONIC, Profiles
from harmax_lab.vision.stacks import Arm, Network, train_stack
from harmax_lab.vision.trust_claims import CLAIMS, summarize
from harmax_lab.vision.trust_figures import figures
from harmax_lab.vision.trust_measures import BINS, SPACING, measure_calibration, measure_trust
from harmax_lab.vision.trust_spec import MLP, TrustCell, TrustSpec, cells

TRAINING_SHARE = 0.85  # of a group's time, roughly
SEED = 0  # of what is made of the test images: the same for all runs


class Sides(NamedTuple):
    """The images of a run: to learn from, to test, and outside."""

    train: Data
    test: Data
    outside: Mapping[str, Tensor]
    """Rows of numbers, (N, D)."""


def run_cells(spec: TrustSpec, group: Sequence[TrustCell], context: Context) -> Iterator[tuple[TrustCell, CellResult]]:
    """Train all arms and seeds of one body together, and measure those that are asked for.

    All are trained, whichever are asked for, so that a run's last bits do not depend on it.
    """
    body = group[0].body
    sides = open_sides(spec)
    learnt_SK, held_SK = split(spec, len(sides.train.y_N))
    hidden = spec.hidden if body == MLP else None
    arms = spec.stacked(hidden or sides.train.x_ND.shape[1])
    network = train_stack(
        sides.train,
        arms,
        spec.seeds,
        learnt_SK,
        steps=spec.mlp_steps if body == MLP else spec.layer_steps,
        batch=spec.batch_size,
        learning_rate=spec.learning_rate,
        weight_decay=spec.weight_decay,
        hidden=hidden,
        progress=lambda fraction: context(TRAINING_SHARE * fraction, f"{spec.known}, {body}"),
    )
    for done, cell in enumerate(group):
        context(TRAINING_SHARE + (1 - TRAINING_SHARE) * done / len(group), cell.name)
        seed, arm = spec.seeds.index(cell.seed), spec.arms.index((cell.head, cell.factor))
        yield cell, measure(network.one(seed, arm), arms[arm], sides, learnt_SK[seed], held_SK[seed])


def open_sides(spec: TrustSpec) -> Sides:
    """Read the known images and the outside sets, and make the others of the known test images."""
    test = load_images(spec.known, "test")
    others = {name: as_data(load_images(name, "test")).x_ND for name in spec.datasets[1:]}
    return Sides(as_data(load_images(spec.known, "train")), as_data(test), {**others, **transformed(test)})


def transformed(images: Images) -> dict[str, Tensor]:
    """Make three outside sets of images (N, H, W): rotated by 90 degrees, noise, and pixels permuted.

    The noise is normal with the mean and the deviation of all pixels; it is not cut off at black and white, which would
    change both. One permutation is used for all images: every pixel keeps its statistics and loses its neighbors.
    """
    draws = np.random.default_rng(SEED)
    x_ND = as_data(images).x_ND
    turned = images._replace(pixels=np.ascontiguousarray(np.rot90(images.pixels, axes=(1, 2))))
    noise_ND = draws.normal(float(x_ND.mean()), float(x_ND.std()), size=x_ND.shape)
    order_D = torch.from_numpy(draws.permutation(x_ND.shape[1]))
    return {
        "rotated": as_data(turned).x_ND,
        "noise": torch.from_numpy(noise_ND.astype(np.float32)),
        "permuted": x_ND[:, order_D],
    }


def split(spec: TrustSpec, images: int) -> tuple[Tensor, Tensor]:
    """Return numbers of the training images that each seed learns from and holds out, (S, K) each."""
    if not 0 < spec.held_out < images:
        raise ValueError(f"`held_out` must be 1 to {images - 1} of {images} images, got {spec.held_out}; take others.")
    order_SN = torch.stack([torch.randperm(images, generator=torch.Generator().manual_seed(s)) for s in spec.seeds])
    return order_SN[:, spec.held_out :], order_SN[:, : spec.held_out]


def measure(network: Network, arm: Arm, sides: Sides, learnt_K: Tensor, held_K: Tensor) -> CellResult:
    """Turn one trained network into its calibration, before and after a temperature, and its scores of outside sets."""
    prototypes_VF = network.weight_SAVF if arm.head == HARMONIC else class_means(network, sides.train, learnt_K)

    def answers(x_ND: Tensor) -> tuple[np.ndarray, np.ndarray]:
        x_NF = network.features(x_ND)
        return network.logits(arm, x_NF).double().numpy(), squared_distance(x_NF, prototypes_VF).sqrt().numpy()

    labels_N = sides.test.y_N.numpy()
    logits_NV, distances_NV = answers(sides.test.x_ND)
    outside = {name: answers(x_ND) for name, x_ND in sides.outside.items()}
    held_logits_KV = network.logits(arm, network.features(sides.train.x_ND[held_K])).double().numpy()
    temperature = fit_temperature(held_logits_KV, sides.train.y_N[held_K].numpy())
    scaled = measure_calibration(logits_NV / temperature, labels_N)
    arrays: dict[str, np.ndarray] = {}
    for name, z_NV in (("trained", logits_NV), ("scaled", logits_NV / temperature)):
        curve = reliability_curve(z_NV, labels_N, bins=BINS, spacing=SPACING)
        arrays |= {f"{name}_confidence": curve.confidence, f"{name}_accuracy": curve.accuracy}
        arrays[f"{name}_counts"] = curve.counts
    return CellResult(
        arrays=arrays,
        metrics={
            **measure_trust(
                logits_NV,
                labels_N,
                outside={name: found[0] for name, found in outside.items()},
                distances_NC=distances_NV,
                outside_distances={name: found[1] for name, found in outside.items()},
            ),
            "temperature": temperature,
            **{f"scaled_{name}": value for name, value in scaled.items() if name != "accuracy"},
            **({"closest": closest(network, sides.test.x_ND)} if arm.head == HARMONIC else {}),
        },
    )


def closest(network: Network, x_ND: Tensor) -> float:
    """Return the least squared distance to a center over |x|^2 + |w|^2; training takes it from products, far from 0."""
    x_NF, w_VF = network.features(x_ND), network.weight_SAVF
    norms_NV = x_NF.square().sum(1)[:, None] + w_VF.square().sum(1)
    return float((squared_distance(x_NF, w_VF) / norms_NV).min())


def class_means(network: Network, data: Data, rows_K: Tensor) -> Tensor:
    """Return the mean features of each class over some images, (V, F)."""
    x_KF, y_K = network.features(data.x_ND[rows_K]), data.y_N[rows_K]
    return torch.stack([x_KF[y_K == label].mean(0) for label in range(data.classes)])


SPECS: Any = {
    "smoke": TrustSpec(seeds=(0, 1), hidden=32, layer_steps=200, mlp_steps=100, held_out=200),
    "quick": TrustSpec(seeds=(0, 1, 2), hidden=128, layer_steps=2000, mlp_steps=1000, held_out=200),
    "full": TrustSpec(seeds=tuple(range(10)), datasets=("mnist", "fashion_mnist")),
}
# `Profiles` looks only at the fields `datasets` and `absent`, which this spec has as well.
PROFILES = cast(Mapping[str, TrustSpec], Profiles(SPECS, required={"full": ("mnist",)}))

EXPERIMENT = Experiment(
    name="trust",
    title="How sure, and of what: calibration and outliers",
    figure="Calibration and outliers; the paper has no figure of them",
    claims=CLAIMS,
    profiles=PROFILES,
    cells=cells,
    run_cells=run_cells,
    old_summarize=summarize,
    old_figures=figures,
    group=lambda cell: cell.body,
)
