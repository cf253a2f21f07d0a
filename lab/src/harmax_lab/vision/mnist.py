"""One layer from pixels to ten classes: harmonic weights are pictures of the classes (Fig. 4, right).

    harmax run mnist --smoke    does it work: digits of 8 x 8, seconds
    harmax run mnist            3 seeds, digits, and MNIST where its files are there: about a minute on two CPU cores
    harmax run mnist --full     10 seeds; MNIST, digits, and Fashion-MNIST where its files are there: some minutes

Under `paper` the harmonic head has the text's exponent sqrt(784) = 28 and 10 epochs. Under `authors` it has that of
their code, 56, and up to 100 epochs, until the training loss has not fallen by 1e-4 for 10. `matched` is the same, but
10 % of the training images are held out, and the epoch with the least loss on them counts. All start from N(0, 1/784)
and use AdamW, lr 1e-3, batches of 64, pixels in 0..1. The standard head is trained twice: without a bias, which a
harmonic head has not either, and with one. The text does not say which; the authors' code has an nn.Linear with a bias.

mnist_training.py has the stack of runs, mnist_claims.py what is made of them, mnist_figures.py the pictures.
"""

# V classes, D pixels, N images

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from harmax.data.images import Images, load_images
from harmax.functional import harmonic_logits, squared_distance
from harmax_lab.kit.experiment import Context, Experiment
from harmax_lab.kit.store import CellResult
from harmax_lab.vision.mnist_claims import CLAIMS, summarize
from harmax_lab.vision.mnist_figures import figures
from harmax_lab.vision.mnist_training import Data, Trained, as_data, train
from harmax_lab.vision.spec import (
    BIASED,
    HARMONIC,
    HEADS,
    PROTOCOLS,
    OneLayerCell,
    OneLayerSpec,
    Profiles,
    cells,
    exponent_of,
)

TRAINING_SHARE = 0.95  # of a group's time, roughly


class Facts(NamedTuple):
    """What the training images themselves say, before any training."""

    shape: tuple[int, int]
    means_VD: np.ndarray
    """Mean image of each class, float64."""
    lit_VD: np.ndarray
    """Whether any training image of the class has light in the pixel."""


def facts_of(images: Images) -> Facts:
    """Average the images of each class, and note where any of them is not black."""
    x_ND = images.pixels.reshape(len(images.pixels), -1)
    own = [x_ND[images.labels == label] for label in range(len(images.classes))]
    height, width = images.pixels.shape[1:3]
    return Facts(
        (height, width),
        np.stack([some.mean(0, dtype=np.float64) / 255 for some in own]),
        np.stack([some.any(0) for some in own]),
    )


def run_cells(
    spec: OneLayerSpec, group: Sequence[OneLayerCell], context: Context
) -> Iterator[tuple[OneLayerCell, CellResult]]:
    """Train every head and seed of one protocol together, and measure those that are asked for.

    All of the spec's seeds are trained, whichever are asked for, so that a run's last bits do not depend on it.
    """
    dataset, protocol = group[0].dataset, group[0].protocol
    images = load_images(dataset, "train")
    trained = train(
        spec,
        protocol,
        as_data(images),
        lambda fraction, message="": context(TRAINING_SHARE * fraction, f"{dataset}, {message}"),
    )
    facts, test = facts_of(images), as_data(load_images(dataset, "test"))
    for cell in group:
        yield cell, measure(spec, cell, trained, facts, test)


def measure(spec: OneLayerSpec, cell: OneLayerCell, trained: Trained, facts: Facts, test: Data) -> CellResult:
    """Turn one run into curves, its weights as pictures, and numbers."""
    place = spec.seeds.index(cell.seed), HEADS.index(cell.head)
    weight, bias = trained.layer.weight_SAVD[place], trained.layer.bias_SV[place[0]]
    epochs = int(trained.epochs_SA[place])
    w_VD = weight.double().numpy()
    correlation_V = correlations(w_VD, facts.means_VD)
    contrast_V = correlations(w_VD, facts.means_VD - facts.means_VD.mean(0))
    arrays = {"correlation": correlation_V, "contrast": contrast_V}
    if cell.seed == spec.seeds[0]:  # one seed's pictures are enough to look at
        arrays["weight"] = weight.unflatten(1, facts.shape).numpy()
        arrays["mean"] = facts.means_VD.reshape(-1, *facts.shape).astype(np.float32)
    return CellResult(
        curves={
            "epoch": np.arange(1, epochs + 1),
            "train_loss": trained.loss_SAE[place][:epochs],
            "watched_loss": trained.watched_SAE[place][:epochs],
        },
        arrays=arrays,
        metrics={
            **_tested(cell, weight, bias, test),
            "epochs": epochs,
            "kept_epoch": int(trained.kept_SA[place]),
            "correlation": float(correlation_V.mean()),
            "contrast": float(contrast_V.mean()),
            **near_zero(w_VD, facts.lit_VD, spec.near_zero),
            "weight_norm": float(np.linalg.norm(w_VD)),
            "distance_to_mean": float(
                np.linalg.norm(w_VD - facts.means_VD, axis=1).mean() / np.linalg.norm(facts.means_VD, axis=1).mean()
            ),
        },
    )


def _tested(cell: OneLayerCell, weight: torch.Tensor, bias: torch.Tensor, test: Data) -> dict[str, Any]:
    if cell.head == HARMONIC:
        exponent, softening = exponent_of(cell.protocol, weight.shape[1]), PROTOCOLS[cell.protocol].softening
        logits = harmonic_logits(test.x_ND, weight, exponent=exponent, softening=softening)
        norms = test.x_ND.square().sum(1)[:, None] + weight.square().sum(1)
        # The training takes distances from products, which is right as long as this is far from 0.
        extra = {"closest": float((squared_distance(test.x_ND, weight) / norms).min())}
    else:
        logits = test.x_ND @ weight.T + (bias if cell.head == BIASED else 0.0)
        extra = {}
    return {
        "test_accuracy": int((logits.argmax(1) == test.y_N).sum()) / len(test.y_N),
        "test_loss": float(torch.nn.functional.cross_entropy(logits, test.y_N)),
        **extra,
    }


def correlations(rows_VD: np.ndarray, others_VD: np.ndarray) -> np.ndarray:
    """Return Pearson's correlation of each row with the other array's row, over pixels, (V,); 0 for a constant row.

    >>> correlations(np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0]]), np.array([[1.0, 3.0, 5.0], [0.0, 2.0, 0.0]]))
    array([ 1., -1.])
    """
    one, two = (rows - rows.mean(1, keepdims=True) for rows in (rows_VD, others_VD))
    product = (one * two).sum(1)
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
    return np.divide(product, lengths, out=np.zeros_like(product), where=lengths > 0)


def near_zero(w_VD: np.ndarray, lit_VD: np.ndarray, limit: float) -> dict[str, float | int | None]:
    """Return the share of weights of a size below `limit`: of pixels that no training image lights, and of all.

    `near_zero_dark` is over pixels that are black in every training image, `near_zero_outside` over those that are
    black in every image of the weight's own class; None where there is no such pixel.
    """
    small_VD, dark_D = np.abs(w_VD) < limit, ~lit_VD.any(0)
    return {
        "dark_pixels": int(dark_D.sum()),
        "near_zero_dark": float(small_VD[:, dark_D].mean()) if dark_D.any() else None,
        "near_zero_outside": None if lit_VD.all() else float(small_VD[~lit_VD].mean()),
        "near_zero": float(small_VD.mean()),
    }


EXPERIMENT = Experiment(
    name="mnist",
    title="One layer on pixels: weights that are pictures",
    figure="Fig. 4, right",
    claims=CLAIMS,
    profiles=Profiles(
        {
            "smoke": OneLayerSpec(seeds=(0, 1), epoch_images=12_000, fixed_epochs=2, most_epochs=4),
            "quick": OneLayerSpec(seeds=(0, 1, 2), datasets=("mnist", "digits"), most_epochs=30),
            "full": OneLayerSpec(seeds=tuple(range(10)), datasets=("mnist", "fashion_mnist", "digits")),
        },
        required={"full": ("mnist",)},
    ),
    cells=cells,
    run_cells=run_cells,
    old_summarize=summarize,
    old_figures=figures,
    group=lambda cell: (cell.dataset, cell.protocol),
)
