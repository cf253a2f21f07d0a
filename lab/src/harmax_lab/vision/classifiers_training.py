"""ResNets on one data set: the images, one training, and its measures. Tuning never sees a test image."""

# N images, V classes, D features, H rows, W columns, C channels

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harmax.analysis import class_means, max_softmax, neural_collapse
from harmax.data.folder import read_text
from harmax.data.images import Images, load_images
from harmax.heads import HarmonicHead
from harmax.inspect import nearest_images
from harmax.train.vision import VisionSpec
from harmax.train.vision.schedule import learning_rate
from harmax.train.vision.settings import GENERATED
from harmax_lab.kit.experiment import Progress
from harmax_lab.kit.store import CellResult
from harmax_lab.vision.classifiers_tuning import (
    CIFAR10,
    CIFAR100,
    PHOTOS,
    TINY,
    ClassifierCell,
    ClassifierSpec,
    Held,
    Setting,
    final_cells,
    grid_of,
    vision_spec,
)
from harmax_lab.vision.trust_measures import Answers, measure_trust, reliability

if TYPE_CHECKING:
    from harmax.train.vision.data import ResidentData
    from harmax.train.vision.step import VisionStep

PARTS = {CIFAR100: {"train": 50, "test": 20}}
"""Images per class of the sets that are taken in part, however many more are there."""
PERMUTED = "permuted"
DRAWS = 7  # the first word of the seeds of what is drawn here


def read_sides(dataset: str) -> tuple[Images, Images]:
    """Read the training and the test images of a data set, or make them up."""
    if dataset == GENERATED:
        from harmax.train.vision.data import generate_images

        return generate_images(512), generate_images(256, start=512)
    return read_side(dataset, "train"), read_side(dataset, "test")


def read_side(dataset: str, side: str) -> Images:
    """Read one side of a data set: all of it, or of CIFAR-100 as many images per class as its part has."""
    images = load_images(dataset, side, complete=dataset not in PARTS)
    return first_of_each(images, PARTS[dataset][side]) if dataset in PARTS else images


def first_of_each(images: Images, count: int) -> Images:
    """Return the first images of every class, in their order, at most so many of each."""
    classes = range(len(images.classes))
    return some(images, np.sort(np.concatenate([np.flatnonzero(images.labels == one)[:count] for one in classes])))


def some(images: Images, chosen: np.ndarray) -> Images:
    """Return some images, by their places."""
    return Images(images.pixels[chosen], images.labels[chosen], images.classes)


def class_words(dataset: str, classes: Sequence[str]) -> list[str]:
    """Return the names of classes for a reader: where folders have WordNet's numbers, the first word for each."""
    try:
        lines = read_text(f"{dataset}/classes.tsv").splitlines() if dataset == TINY else []
    except FileNotFoundError:  # Tiny ImageNet from elsewhere
        lines = []
    words = dict(line.split("\t", 1) for line in lines if "\t" in line)
    return [words.get(name, name).split(",")[0].replace("_", " ") for name in classes]


def split(labels_N: np.ndarray, share: float, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split images into the rest and a share of every class, drawn with a seed; at least one image of each class."""
    draws = np.random.default_rng([DRAWS, seed])
    chosen = []
    for label in np.unique(labels_N):
        own = draws.permutation(np.flatnonzero(labels_N == label))
        chosen.append(own[: max(1, round(share * len(own)))])
    part = np.sort(np.concatenate(chosen))
    return np.setdiff1d(np.arange(len(labels_N)), part), part


def permute_pixels(pixels: np.ndarray) -> np.ndarray:
    """Put the pixels of images (N, H, W) or (N, H, W, C) into another order, the same for all."""
    places = np.random.default_rng([DRAWS, 2]).permutation(pixels.shape[1] * pixels.shape[2])
    return pixels.reshape(len(pixels), -1, *pixels.shape[3:])[:, places].reshape(pixels.shape)


class Diverged(Exception):
    """A loss that is not a number, or a network that gives all classes one answer; holds the epoch it came in."""


class Trained(NamedTuple):
    """A finished run."""

    step: "VisionStep"
    data: "ResidentData"
    curves: dict[str, np.ndarray]
    last: dict[str, float]
    """Results of the last look at the model; empty where there was none."""
    cost: dict[str, float]


@dataclass(frozen=True)
class Workbench:
    """The images of one data set, read and sent to the device once, and the runs on them."""

    spec: ClassifierSpec
    dataset: str
    device: str

    @cached_property
    def images(self) -> tuple[Images, Images]:
        """All training images, and the test images."""
        return read_sides(self.dataset)

    @cached_property
    def outside(self) -> dict[str, np.ndarray]:
        """Images that belong to none of the classes, by name."""
        if self.dataset == CIFAR10:
            return {CIFAR100: read_side(CIFAR100, "test").pixels}
        return {} if self.dataset in PHOTOS else {PERMUTED: permute_pixels(self.images[1].pixels)}

    @cached_property
    def collapse_places(self) -> np.ndarray:
        """The training images on which neural collapse is measured: as many of each class, the same for all runs."""
        labels_N = self.images[0].labels
        share = min(1.0, self.spec.collapse_images / len(labels_N))
        return split(labels_N, share, seed=1)[1] if share < 1 else np.arange(len(labels_N))

    def tune(self, cell: ClassifierCell, progress: Progress) -> CellResult:
        """Train on a part of the training images, and test on the rest of them."""
        trainer = vision_spec(self.spec, cell, cell.setting)
        known = {**cell.setting._asdict(), "epochs": trainer.epochs}
        try:
            trained = train_network(trainer, self._data(cell.seed), self.device, (trainer.epochs,), tested, progress)
        except Diverged as error:
            worst = Held(1 / len(self.images[0].classes), math.inf)
            return CellResult(metrics={**known, **worst._asdict(), "diverged_at": error.args[0]})
        held = Held(trained.last["test_accuracy"], trained.last["test_loss"])
        metrics = {**known, **held._asdict(), "diverged_at": None, "cost": trained.cost}
        return CellResult({name: trained.curves[name] for name in ("train_loss", "train_accuracy")}, {}, metrics)

    def count(self, cell: ClassifierCell, setting: Setting, progress: Progress) -> CellResult:
        """Train on all training images at the chosen setting, and measure everything."""
        trainer, snapshots = vision_spec(self.spec, cell, setting), self.spec.snapshot_epochs(self.dataset)
        train, test = (len(side.labels) for side in self.images)
        known = {**setting._asdict(), "epochs": trainer.epochs, "train_images": train, "test_images": test}
        try:
            trained = train_network(trainer, self._data(), self.device, snapshots, self._snapshot, progress)
        except Diverged as error:
            return CellResult(metrics={**known, "diverged_at": error.args[0]})
        arrays, metrics = self._measure(trained, first=cell.seed == self.spec.seeds[0])
        return CellResult(trained.curves, arrays, {**known, "diverged_at": None, **metrics, "cost": trained.cost})

    @cached_property
    def _opened(self) -> dict[int | None, "ResidentData"]:
        return {}

    def _data(self, tuning_seed: int | None = None) -> "ResidentData":
        """Each tuning seed draws what it holds out, so that more seeds choose by more images."""
        if tuning_seed not in self._opened:
            train, test = self.images
            if tuning_seed is not None:
                learn, held = split(train.labels, self.spec.held_out, seed=tuning_seed)
                train, test = some(train, learn), some(train, held)
            self._opened[tuning_seed] = self._resident(train, test)
        return self._opened[tuning_seed]

    def _resident(self, train: Images, test: Images) -> "ResidentData":
        from harmax.train.vision.data import ResidentData
        from harmax.train.world import World

        cell = final_cells(self.spec, self.dataset)[0]
        some = vision_spec(self.spec, cell, grid_of(self.spec, cell.head)[0])  # each run brings its own
        return ResidentData(some, train, test, World(0, 1, torch.device(self.device)))

    def _snapshot(self, step: "VisionStep", data: "ResidentData", epoch: int) -> dict[str, float]:
        """Test, and measure neural collapse on training images as they are."""
        seen, weight_VD = tested(step, data, epoch), _weight(step)
        labels_N = self.images[0].labels[self.collapse_places]
        features = step.features(data.plain("train", self.collapse_places))
        x_ND, predicted_N = features.cpu().numpy(), step.logits(features).cpu().numpy().argmax(1)
        if not (_differ(class_means(x_ND, labels_N)) and _differ(weight_VD)):
            raise Diverged(epoch)
        kind = "centers" if isinstance(_head(step), HarmonicHead) else "linear"
        found = neural_collapse(x_ND, labels_N, weights=weight_VD, kind=kind, predicted=predicted_N)
        return {**seen, **found._asdict(), "plain_train_accuracy": float((predicted_N == labels_N).mean())}

    def _measure(self, trained: Trained, *, first: bool) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Look at the finished model; the pictures of one seed are enough."""
        step, data, labels_N = trained.step, trained.data, self.images[1].labels
        known = _answers(step, step.features(data.plain("test")))
        far = {name: _answers(step, step.features(self._batches(data, of))) for name, of in self.outside.items()}
        z_NV, d_NV = known
        arrays = {f"reliability.{name}": np.asarray(part) for name, part in reliability(z_NV, labels_N).items()}
        arrays["weight"], arrays["right"] = _weight(step), (z_NV.argmax(1) == labels_N).astype(np.uint8)
        arrays["max_softmax"] = max_softmax(z_NV).astype(np.float32)
        if d_NV is not None:
            arrays["winner_distance"], arrays["runner_up_distance"] = np.partition(d_NV, 1, axis=1)[:, :2].T.copy()
            if first:
                arrays |= self._pictures(_head(step), step.features(data.plain("train")))
        trust = measure_trust(known, labels_N, far)
        top5 = float((np.argsort(-z_NV, axis=1)[:, :5] == labels_N[:, None]).any(1).mean())
        measured = {"test_accuracy": trust.pop("accuracy"), "test_top5": top5 if z_NV.shape[1] > 5 else None, **trust}
        # The last look was after the last epoch, at this very model.
        collapse = {name: value for name, value in trained.last.items() if not name.startswith("test_")}
        measured |= {name: None if math.isnan(value) else value for name, value in collapse.items()}
        return arrays, {**measured, "classes": class_words(self.dataset, data.classes)}

    def _pictures(self, head: HarmonicHead, x_ND: Tensor) -> dict[str, np.ndarray]:
        """Return the training images nearest to each center."""
        images, near = self.images[0], nearest_images(x_ND, head, count=self.spec.neighbors)
        shown = slice(min(self.spec.shown_classes, len(images.classes)))
        found = some(images, near.images[shown])
        return {
            "nearest.pixels": found.pixels,
            "nearest.distance": near.distances[shown],
            "nearest.label": found.labels,
        }

    def _batches(self, data: "ResidentData", pixels: np.ndarray) -> Iterator[tuple[Tensor, int]]:
        from harmax.train.vision.order import evaluation_shares

        for chosen, counts in evaluation_shares(len(pixels), self.spec.batch, 0, 1):
            yield data.preparation.prepare(torch.from_numpy(pixels[chosen]).to(self.device)), int(counts.sum())


def train_network(
    trainer: VisionSpec,
    data: "ResidentData",
    device: str,
    snapshots: Sequence[int],
    look: Callable[["VisionStep", "ResidentData", int], dict[str, float]],
    progress: Progress = lambda fraction, message="", /: None,
) -> Trained:
    """Train, ask the device for numbers once per epoch, and look at the model after some epochs.

    Args:
        trainer: the settings.
        data: the images, of this run or another one.
        device: where to train.
        snapshots: epochs after which to look.
        look: measures the model, given the data and the epoch.
        progress: is told after every epoch.

    Raises:
        Diverged: if a loss is not a number.
    """
    from harmax.train.vision.step import VisionStep
    from harmax.train.world import World

    gc.collect()  # models lie in cycles: the last one's memory is wanted
    data = data.again(trainer)
    step = VisionStep(trainer, data.classes, World(0, 1, torch.device(device)))
    of_epoch, seconds, seen = data.order.steps_of_epoch, 0.0, {}
    if trainer.head == "harmonic":
        step.start_head(data.train(1), of_epoch)
    losses, hits, batches = [], [], data.train(1)
    for epoch in range(1, trainer.epochs + 1):
        since, totals = time.perf_counter(), torch.zeros(3, dtype=torch.float64, device=device)
        for number in range((epoch - 1) * of_epoch + 1, epoch * of_epoch + 1):
            totals += step(batches, learning_rate(trainer, number, of_epoch))
        loss, hit, images = totals.tolist()
        if not math.isfinite(loss):
            raise Diverged(epoch)
        seconds += time.perf_counter() - since
        losses.append(loss / images)
        hits.append(hit / images)
        if epoch in snapshots:
            seen[epoch] = look(step, data, epoch)
        progress(epoch / trainer.epochs, f"epoch {epoch}, loss {losses[-1]:.3f}")
    curves = {"train_loss": np.array(losses, np.float32), "train_accuracy": np.array(hits, np.float32)}
    last = seen[max(seen)] if seen else {}
    if seen:
        curves["snapshot_epoch"] = np.array(list(seen))
        curves |= {name: np.array([found[name] for found in seen.values()], np.float32) for name in last}
    cost = {"seconds": seconds, "images_per_s": trainer.epochs * of_epoch * step.batch / seconds}
    return Trained(step, data, curves, last, cost)


def tested(step: "VisionStep", data: "ResidentData", epoch: int) -> dict[str, float]:
    """Return accuracy and loss on the test side of some data."""
    loss, hits, _ = (step.evaluate(data.test()) / data.test_count).tolist()
    if not math.isfinite(loss):
        raise Diverged(epoch)
    return {"test_accuracy": hits, "test_loss": loss}


def _differ(rows_VD: np.ndarray) -> bool:
    """Return whether rows are not all alike, apart from rounding."""
    return bool(np.linalg.norm(rows_VD - rows_VD.mean(0)) > np.finfo(np.float32).eps * np.linalg.norm(rows_VD))


def _head(step: "VisionStep") -> Any:
    return step.model.classifier[1]


def _weight(step: "VisionStep") -> np.ndarray:
    weight_VD: np.ndarray = _head(step).weight.detach().float().cpu().numpy()
    return weight_VD


@torch.no_grad()
def _answers(step: "VisionStep", x_ND: Tensor) -> Answers:
    """Return the logits of features and, from a harmonic head, their distances to all centers."""
    head = _head(step)
    distances_NV = head.distance(x_ND).cpu().numpy() if isinstance(head, HarmonicHead) else None
    return Answers(step.logits(x_ND).cpu().numpy(), distances_NV)
