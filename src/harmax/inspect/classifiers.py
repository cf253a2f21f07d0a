"""An image classifier inspected by its centers in one piece: measure it, summarize it, draw it."""

# N test images, V classes, K neighbors, R rows of a figure

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from harmax.analysis.calibration import summarize_calibration
from harmax.analysis.outliers import Abstention, abstention_curve
from harmax.heads import CenterHead
from harmax.inspect import prototype_figures as figures
from harmax.inspect import prototypes
from harmax.inspect.image_sides import BATCH, Side, read_sides
from harmax.inspect.prototypes import NearestImages, PrototypeView
from harmax.inspect.sources import Classifier, find_source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCORES = {"ratio": "by the ratio of two distances", "distance": "by the nearest distance"}
"""By which of them a classifier can abstain, and how figures name it."""
BINS = 10
"""Of confidence: with a few dozen test images more bins would be noise."""
COVERAGES = (1.0, 0.95, 0.9, 0.8, 0.5)


@dataclass(frozen=True)
class ClassifierWithImages:
    """A classifier, and the images that it was trained and tested on."""

    classifier: Classifier
    classes: tuple[str, ...]
    train: Side
    test: Side


def open_classifier(
    folder: Path | str,
    *,
    dataset: str | None = None,
    variant: str | None = None,
    data: Path | None = None,
    partial: bool = False,
    limit: int | None = None,
    device: str = "cpu",
    backbone: str | None = None,
) -> ClassifierWithImages:
    """Open a run folder of `harmax vision`, or of an installed package (`harmax.inspect.sources`), and its images.

    Args:
        folder: the run folder, or the model/ inside it.
        dataset: the images. None: those that the classifier was trained on.
        variant: which classifier, if the folder holds several. None: the preferred one.
        data: the data folder, or for class folders the one with train/ and val/. None: HARMAX_DATA.
        partial: accept a data set of which only a part is there.
        limit: at most this many images per side, spread evenly. None: all.
        device: where to compute.
        backbone: the Python file with the network, FILE.py:FUNCTION, if there is one; it is run.
    """
    source = find_source(Path(folder))
    if source is None:
        raise ValueError(
            f"FOLDER must be the output of a finished `harmax vision`, got {str(folder)!r}, which holds no classifier; "
            "finish the training, or name another. Run folders of `harmax run` need harmax-lab."
        )
    classifier = source.open_classifier(dataset=dataset, variant=variant, device=device, backbone=backbone)
    train, test = read_sides(
        classifier.dataset,
        data=data,
        partial=partial,
        limit=limit,
        size=classifier.size,
        pictures=classifier.pictures,
    )
    _check_classes(classifier, train, test, data)
    return ClassifierWithImages(classifier, train.classes, train, test)


def _check_classes(classifier: Classifier, train: Side, test: Side, data: Path | None) -> None:
    if classifier.classes is None:
        return
    from harmax.train.vision.data import check_classes

    check_classes(train.classes, test.classes, classifier.dataset, data)
    names = classifier.classes
    if names != train.classes:
        raise ValueError(
            f"`--dataset` must have the classes of the classifier ({', '.join(names[:3])}, ...: {len(names)}), got "
            f"{classifier.dataset} with {', '.join(train.classes[:3])}, ...: {len(train.classes)}; name the data set "
            "that it was trained on."
        )


class Inspected(NamedTuple):
    """What was measured on a classifier."""

    view: PrototypeView
    """Of the test images."""
    near: NearestImages
    """Indices among the training images."""
    curves: Mapping[str, Abstention]
    """One curve per score of `SCORES`."""
    log_probabilities: np.ndarray
    """Of the test images, (N, V)."""


def inspect_classifier(
    subject: ClassifierWithImages, *, neighbors: int = 5, tell: Callable[[str], None] = lambda words: None
) -> Inspected:
    """Compare every training image and every test image with every center.

    Args:
        subject: the classifier and its images.
        neighbors: number of training images to keep for each center.
        tell: receives a line about the progress now and then.
    """
    one = subject.classifier

    def telling(what: str) -> Callable[[int, int], None]:
        return lambda done, of: tell(f"{what} images: {done:,} of {of:,}")

    train = subject.train.batches(one.prepare, telling("training"))
    near = prototypes.nearest_images(train, one.head, model=one.model, count=neighbors)
    test = subject.test.batches(one.prepare, telling("test"))
    x_ND = _features(test, one)
    view = prototypes.prototype_view(x_ND, one.head)
    log_p_NV = _log_probabilities(x_ND, one.head)
    correct = view.winner == subject.test.labels
    scores = {"ratio": -view.ratio, "distance": -view.winner_distance}
    curves = {name: abstention_curve(correct, scores[name]) for name in SCORES}
    return Inspected(view, near, curves, log_p_NV)


def _features(batches: Iterator[Tensor], one: Classifier) -> np.ndarray:
    if one.model is not None:
        return prototypes.head_features(batches, cast(nn.Module, one.head), model=one.model)
    return np.concatenate([batch.flatten(1).cpu().numpy() for batch in batches])


@torch.no_grad()
def _log_probabilities(x_ND: np.ndarray, head: CenterHead) -> np.ndarray:
    """Return the logarithms of HarMax for features, (N, V), float64."""
    found = []
    for start in range(0, len(x_ND), BATCH):
        x_BD = torch.from_numpy(x_ND[start : start + BATCH]).to(head.centers.device)
        found.append(head(x_BD).double().log_softmax(1).cpu().numpy())
    return np.concatenate(found)


def summarize_classifier(subject: ClassifierWithImages, found: Inspected) -> dict[str, Any]:
    """Return what was measured as plain values."""
    view, labels = found.view, subject.test.labels
    own = subject.train.labels[found.near.images] == np.arange(len(subject.classes))[:, None]
    wrong = view.winner != labels
    files = subject.train.files
    calibration = summarize_calibration(found.log_probabilities, labels, bins=BINS)
    return {
        "dataset": subject.classifier.dataset,
        "one_layer": subject.classifier.model is None,
        "exponent": float(subject.classifier.head.exponent),
        "classes": list(subject.classes),
        "train_images": len(subject.train.labels),
        "test_images": len(labels),
        "test_accuracy": float((view.winner == labels).mean()),
        "runner_up_is_true": float((view.runner_up == labels)[wrong].mean()) if wrong.any() else None,
        "neighbors": own.shape[1],
        "neighbors_of_own_class": float(own.mean()),
        "accuracy_at_coverage": {
            name: {f"{share:g}": float(curve.accuracy[np.searchsorted(curve.coverage, share)]) for share in COVERAGES}
            for name, curve in found.curves.items()
        },
        "calibration": {name: list(interval) for name, interval in calibration._asdict().items()},
        "test_files": None if subject.test.files is None else list(subject.test.files),
        "nearest_files": None if files is None else [[files[place] for place in row] for row in found.near.images],
    }


def confusion_counts(subject: ClassifierWithImages, found: Inspected) -> np.ndarray:
    """Return how many test images of each class were taken for each class, (V, V): rows are the true classes."""
    counts = np.zeros((len(subject.classes),) * 2, np.int64)
    np.add.at(counts, (subject.test.labels, found.view.winner), 1)
    return counts


def classifier_arrays(subject: ClassifierWithImages, found: Inspected) -> dict[str, np.ndarray]:
    """Return everything as arrays: images by their number in the data set, classes by theirs.

    The keys are stable. V classes, D features, K neighbors, N test images:

        centers                   (V, D), in units of the features
        nearest/image             (V, K), numbers of the training images nearest to each center, nearest first
        nearest/distance, label   (V, K)
        test/image, label         (N,), numbers of the test images, and their classes
        test/winner, runner_up    (N,), the nearest and the second nearest center
        test/winner_distance, runner_up_distance, ratio   (N,)
        test/confidence           (N,), the largest probability
        test/probability_of_label (N,)
        confusion                 (V, V), test images: rows are true classes, columns predicted ones
        abstention/SCORE/...      thresholds, coverage, accuracy, for each score
    """
    view, near = found.view, found.near
    arrays = {
        "centers": subject.classifier.head.centers.detach().float().cpu().numpy(),
        "nearest/image": subject.train.numbers[near.images],
        "nearest/distance": near.distances,
        "nearest/label": subject.train.labels[near.images],
        "test/image": subject.test.numbers,
        "test/label": subject.test.labels,
        **{f"test/{name}": column for name, column in view._asdict().items()},
        "test/ratio": view.ratio,
        "test/confidence": np.exp(found.log_probabilities.max(1)),
        "test/probability_of_label": np.exp(found.log_probabilities[np.arange(len(view.winner)), subject.test.labels]),
        "confusion": confusion_counts(subject, found),
    }
    for name, curve in found.curves.items():
        arrays |= {f"abstention/{name}/{what}": column for what, column in curve._asdict().items()}
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def draw_classifier(
    subject: ClassifierWithImages, found: Inspected, rows_R: np.ndarray, *, decisions: int = 8
) -> "dict[str, Figure]":
    """Draw the images nearest to some centers, some decisions, abstention, and the centers of a one-layer classifier.

    Args:
        subject: the classifier and its images.
        found: what was measured on it.
        rows_R: the classes whose nearest images are drawn, at most 24.
        decisions: number of test images whose decision is drawn, at most 24.
    """
    near, names, drawn = found.near, subject.classes, {}
    centers = None
    if subject.classifier.model is None:
        height, width = subject.train.pictures(np.zeros(1, int)).shape[-2:]
        centers = prototypes.center_pictures(subject.classifier.head, (height, width))
        drawn["centers"] = figures.draw_centers(centers, names)
    drawn["nearest"] = figures.draw_nearest(
        subject.train.pictures(near.images[rows_R]),
        near.distances[rows_R],
        subject.train.labels[near.images[rows_R]],
        names,
        classes=rows_R.tolist(),
        centers=None if centers is None else centers[rows_R],
    )
    drawn["decisions"] = _draw_decisions(subject, found, centers, decisions)
    drawn["abstention"] = figures.draw_abstention({SCORES[name]: curve[1:] for name, curve in found.curves.items()})
    return drawn


def _draw_decisions(
    subject: ClassifierWithImages, found: Inspected, centers: np.ndarray | None, count: int
) -> "Figure":
    labels = subject.test.labels
    chosen = np.array(choose_decisions(found.view, labels, count))
    columns = [found.view.winner[chosen], found.view.runner_up[chosen], labels[chosen]]
    # Of a thousand classes, only those that occur are read.
    used, places = np.unique(np.stack(columns), return_inverse=True)
    winner, runner_up, true = places.reshape(3, -1)
    far = (found.view.winner_distance[chosen], found.view.runner_up_distance[chosen])
    pictures = subject.train.pictures(found.near.images[used, 0]) if centers is None else centers[used]
    names = [subject.classes[number] for number in used]
    view = PrototypeView(winner, runner_up, *far)
    return figures.draw_decisions(subject.test.pictures(chosen), view, true, names, pictures)


def choose_decisions(view: PrototypeView, labels: np.ndarray, count: int) -> list[int]:
    """Choose test images to show: right ones from the surest to the least sure, then the surest mistakes.

    >>> winner = np.array([0, 0, 0, 1])
    >>> view = PrototypeView(winner, 1 - winner, np.array([0.1, 0.9, 0.5, 0.7]), np.ones(4))
    >>> choose_decisions(view, np.zeros(4, int), 3)
    [0, 1, 3]
    """
    order = np.argsort(view.ratio, kind="stable")
    right, wrong = (order[(view.winner == labels)[order] == truth] for truth in (True, False))
    mistakes = wrong[: max(count // 2, count - len(right))]
    spread = np.linspace(0, len(right) - 1, min(count - len(mistakes), len(right))).round().astype(int)
    return [*right[np.unique(spread)].tolist(), *mistakes.tolist()]
