"""ResNets on one data set: the images, one training, and what is measured on it. Tuning never sees a test image."""

# N images, V classes, D features, E epochs, K snapshots, H rows, W columns, C channels

import gc
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harmax.analysis import class_means, max_softmax, neural_collapse, reliability_curve
from harmax.data.images import Images
from harmax.heads import HarmonicHead
from harmax.inspect import nearest_images
from harmax.train.vision import VisionSpec
from harmax.train.vision.schedule import learning_rate
from harmax_lab.kit.experiment import Progress
from harmax_lab.kit.store import CellResult
from harmax_lab.vision.classifiers_images import (
    PERMUTED,
    class_words,
    permute_pixels,
    read_side,
    read_sides,
    split,
)
from harmax_lab.vision.classifiers_spec import (
    CIFAR10,
    CIFAR100,
    PHOTOS,
    ClassifierCell,
    ClassifierSpec,
    Held,
    Setting,
    final_cells,
    grid_of,
    setting_of,
    vision_spec,
)
from harmax_lab.vision.trust_measures import BINS, SPACING, measure_trust

if TYPE_CHECKING:
    from harmax.train.vision.data import ResidentData
    from harmax.train.vision.step import VisionStep


class Diverged(Exception):
    """A loss that is not a number, or a network that gives all classes one answer, and the epoch it came in."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"the loss of epoch {epoch} is not finite, or its network is dead")
        self.epoch = epoch


class Trained(NamedTuple):
    """A finished run."""

    step: "VisionStep"
    data: "ResidentData"
    curves: dict[str, np.ndarray]
    last: dict[str, float]
    """What the last look at the model found; empty where there was none."""
    seconds: float


@dataclass(frozen=True)
class Workbench:
    """The images of one data set, read and sent to the device once, and the runs on them."""

    spec: ClassifierSpec
    dataset: str
    device: str

    @cached_property
    def images(self) -> tuple[Images, Images]:
        """All images to learn from, and the test images."""
        return read_sides(self.dataset)

    @cached_property
    def outside(self) -> dict[str, np.ndarray]:
        """Images that are none of the classes, by name."""
        if self.dataset == CIFAR10:
            return {CIFAR100: read_side(CIFAR100, "test").pixels}
        return {} if self.dataset in PHOTOS else {PERMUTED: permute_pixels(self.images[1].pixels)}

    @cached_property
    def collapse_places(self) -> np.ndarray:
        """Which training images neural collapse is measured on: as many of each class, and the same for all runs."""
        labels_N = self.images[0].labels
        share = min(1.0, self.spec.collapse_images / len(labels_N))
        return split(labels_N, share, seed=1)[1] if share < 1 else np.arange(len(labels_N))

    def tune(self, cell: ClassifierCell, progress: Progress) -> tuple[Held, CellResult]:
        """Train on a part of the training images, and test on the rest of them."""
        trainer = vision_spec(self.spec, cell, setting_of(cell))
        known = {**setting_of(cell)._asdict(), "epochs": trainer.epochs}
        try:
            trained = self._train(trainer, self._tuning_data(cell.seed), (trainer.epochs,), _test, progress)
        except Diverged as error:
            held = Held(1 / len(self.images[0].classes), math.inf)
            return held, CellResult(metrics={**known, **held._asdict(), "diverged_at": error.epoch})
        held = Held(trained.last["test_accuracy"], trained.last["test_loss"])
        metrics = {**known, **held._asdict(), "diverged_at": None, "cost": _cost(trained)}
        losses = {name: trained.curves[name] for name in ("train_loss", "train_accuracy")}
        return held, CellResult(curves=losses, metrics=metrics)

    def count(self, cell: ClassifierCell, setting: Setting, progress: Progress) -> CellResult:
        """Train on all training images at the chosen setting, and measure everything."""
        trainer = vision_spec(self.spec, cell, setting)
        train, test = (len(side.labels) for side in self.images)
        known = {**setting._asdict(), "epochs": trainer.epochs}
        known |= {"train_images": train, "test_images": test}
        snapshots = self.spec.snapshot_epochs(self.dataset)
        try:
            trained = self._train(trainer, self._data, snapshots, self._snapshot, progress)
        except Diverged as error:
            return CellResult(metrics={**known, "diverged_at": error.epoch})
        arrays, metrics = self._measure(trained, first=cell.seed == self.spec.seeds[0])
        return CellResult(
            curves=trained.curves,
            arrays=arrays,
            metrics={**known, "diverged_at": None, **metrics, "cost": _cost(trained)},
        )

    @cached_property
    def _data(self) -> "ResidentData":
        return self._resident(*self.images)

    @cached_property
    def _parts(self) -> dict[int, "ResidentData"]:
        return {}

    def _tuning_data(self, seed: int) -> "ResidentData":
        """Each tuning seed draws what it holds out, so that more seeds choose by more images."""
        if seed not in self._parts:
            images = self.images[0]
            parts = split(images.labels, self.spec.held_out, seed=seed)
            learn, held = (Images(images.pixels[part], images.labels[part], images.classes) for part in parts)
            self._parts[seed] = self._resident(learn, held)
        return self._parts[seed]

    def _resident(self, train: Images, test: Images) -> "ResidentData":
        from harmax.train.vision.data import ResidentData
        from harmax.train.world import World

        (cell, *_) = final_cells(self.spec, self.dataset)
        some = vision_spec(self.spec, cell, grid_of(self.spec, cell.head)[0])  # each run brings its own
        return ResidentData(some, train, test, World(0, 1, torch.device(self.device)))

    def _train(
        self,
        trainer: VisionSpec,
        data: "ResidentData",
        snapshots: tuple[int, ...],
        look: Callable[["VisionStep", "ResidentData"], dict[str, float]],
        progress: Progress,
    ) -> Trained:
        """Train, ask the device for numbers once an epoch, and look at the model after some epochs."""
        from harmax.train.vision.step import VisionStep
        from harmax.train.world import World

        gc.collect()  # models lie in cycles: the last one's memory is wanted
        data = data.again(trainer)
        step = VisionStep(trainer, data.classes, World(0, 1, torch.device(self.device)))
        if trainer.center_start == "means":
            step.start_centers(data.train(1), data.order.steps_of_epoch)
        of_epoch, seconds, seen = data.order.steps_of_epoch, 0.0, []
        losses, hits, looks = [], [], []
        batches = data.train(1)
        for epoch in range(1, trainer.epochs + 1):
            since, totals = time.perf_counter(), torch.zeros(3, dtype=torch.float64, device=self.device)
            for number in range((epoch - 1) * of_epoch + 1, epoch * of_epoch + 1):
                totals += step(batches, learning_rate(trainer, number, of_epoch))
            loss, hit, images = totals.tolist()
            if not math.isfinite(loss):
                raise Diverged(epoch)
            seconds += time.perf_counter() - since
            losses.append(loss / images)
            hits.append(hit / images)
            if epoch in snapshots:
                seen.append(epoch)
                try:
                    looks.append(look(step, data))
                except FloatingPointError as error:
                    raise Diverged(epoch) from error
            progress(epoch / trainer.epochs, f"epoch {epoch}, loss {losses[-1]:.3f}")
        curves = {"train_loss": np.array(losses, np.float32), "train_accuracy": np.array(hits, np.float32)}
        if seen:
            curves["snapshot_epoch"] = np.array(seen)
            curves |= {name: np.array([found[name] for found in looks], np.float32) for name in looks[0]}
        return Trained(step, data, curves, looks[-1] if looks else {}, seconds)

    def _snapshot(self, step: "VisionStep", data: "ResidentData") -> dict[str, float]:
        """Test, and measure neural collapse on training images as they are."""
        tested = _test(step, data)
        head: Any = step.model.classifier[1]
        features = step.features(data.plain("train", self.collapse_places))
        x_ND, weight_VD = features.cpu().numpy(), head.weight.detach().float().cpu().numpy()
        labels_N = self.images[0].labels[self.collapse_places]
        if not (_differ(class_means(x_ND, labels_N)) and _differ(weight_VD)):
            raise FloatingPointError("class means and weights of a trained model must differ, got a dead network.")
        predicted_N = logits_of(step, features).argmax(1)
        found = neural_collapse(
            x_ND,
            labels_N,
            weights=weight_VD,
            kind="centers" if isinstance(head, HarmonicHead) else "linear",
            predicted=predicted_N,
        )
        right = float((predicted_N == labels_N).mean())
        return {**tested, **found._asdict(), "plain_train_accuracy": right}

    def _measure(self, trained: Trained, *, first: bool) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Look at the finished model; one seed's pictures are enough."""
        step, data = trained.step, trained.data
        head: Any = step.model.classifier[1]
        labels_N = self.images[1].labels
        x_ND = step.features(data.plain("test"))
        far = {name: step.features(self._batches(data, pixels)) for name, pixels in self.outside.items()}
        z_NV, outside = logits_of(step, x_ND), {name: logits_of(step, x_MD) for name, x_MD in far.items()}
        arrays: dict[str, np.ndarray] = {"weight": head.weight.detach().float().cpu().numpy()}
        distances: dict[str, Any] = {}
        if isinstance(head, HarmonicHead):
            d_NV = distances_of(head, x_ND)
            distances = {
                "distances_NC": d_NV,
                "outside_distances": {name: distances_of(head, x_MD) for name, x_MD in far.items()},
            }
            arrays["winner_distance"], arrays["runner_up_distance"] = np.partition(d_NV, 1, axis=1)[:, :2].T.copy()
            if first:
                arrays |= self._pictures(head, step.features(data.plain("train")))
        curve = reliability_curve(z_NV, labels_N, bins=BINS, spacing=SPACING)
        arrays |= {f"reliability.{name}": np.asarray(value) for name, value in curve._asdict().items()}
        arrays["right"] = (z_NV.argmax(1) == labels_N).astype(np.uint8)
        arrays["max_softmax"] = max_softmax(z_NV).astype(np.float32)
        trust = measure_trust(z_NV, labels_N, outside=outside, **distances)
        top5 = float((np.argsort(-z_NV, axis=1)[:, :5] == labels_N[:, None]).any(1).mean())
        tested = {"test_accuracy": trust.pop("accuracy"), "test_top5": top5 if z_NV.shape[1] > 5 else None, **trust}
        # The last look was after the last epoch, at this very model.
        collapse = {name: value for name, value in trained.last.items() if not name.startswith("test_")}
        known = {name: None if math.isnan(value) else value for name, value in collapse.items()}
        return arrays, {**tested, **known, "classes": class_words(self.dataset, data.classes)}

    def _pictures(self, head: HarmonicHead, x_ND: Tensor) -> dict[str, np.ndarray]:
        """The training images nearest to each center."""
        images = self.images[0]
        near = nearest_images(x_ND, head, count=self.spec.neighbors)
        shown = slice(min(self.spec.shown_classes, len(images.classes)))
        return {
            "nearest.pixels": images.pixels[near.images[shown]],
            "nearest.distance": near.distances[shown],
            "nearest.label": images.labels[near.images[shown]],
        }

    def _batches(self, data: "ResidentData", pixels: np.ndarray) -> Iterator[tuple[Tensor, int]]:
        size = self.spec.batch
        for start in range(0, len(pixels), size):
            part = pixels[start : start + size]
            filled = np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)])
            yield data.preparation.prepare(torch.from_numpy(filled).to(self.device)), len(part)


def _test(step: "VisionStep", data: "ResidentData") -> dict[str, float]:
    loss, hits, _ = (step.evaluate(data.test()) / data.test_count).tolist()
    if not math.isfinite(loss):
        raise FloatingPointError("the loss of a trained model must be finite; its last steps diverged.")
    return {"test_accuracy": hits, "test_loss": loss}


def _differ(rows_VD: np.ndarray) -> bool:
    """Whether rows are not all alike, but for what rounding does."""
    return bool(np.linalg.norm(rows_VD - rows_VD.mean(0)) > np.finfo(np.float32).eps * np.linalg.norm(rows_VD))


def logits_of(step: "VisionStep", x_ND: Tensor) -> np.ndarray:
    """Return a model's logits of features, (N, V)."""
    found: np.ndarray = step.logits(x_ND).cpu().numpy()
    return found


@torch.no_grad()
def distances_of(head: HarmonicHead, x_ND: Tensor) -> np.ndarray:
    """Return distances to every center (N, V)."""
    found: np.ndarray = head.distance(x_ND).cpu().numpy()
    return found


def _cost(trained: Trained) -> dict[str, float]:
    images = len(trained.curves["train_loss"]) * trained.data.order.steps_of_epoch * trained.step.batch
    return {"seconds": trained.seconds, "images_per_s": images / trained.seconds}
