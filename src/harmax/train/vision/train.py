"""The recipe that trains an image classifier.

On one GPU, on many, on a laptop:

    harmax vision cifar10 --output runs/cifar10
    torchrun --nproc-per-node 8 -m harmax vision imagenet --data imagenet --micro-batch 32 --engine ddp --output runs/r
    harmax vision smoke --output runs/smoke
"""

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from harmax.train.loop import train
from harmax.train.recipe import NonFiniteError, Recipe
from harmax.train.vision.data import Batches, VisionData, open_images
from harmax.train.vision.model import save_model
from harmax.train.vision.schedule import learning_rate
from harmax.train.vision.settings import ALTERABLE, MEANT_BEFORE, VisionSpec
from harmax.train.vision.step import VisionStep
from harmax.train.world import World

if TYPE_CHECKING:
    from transformers import ResNetForImageClassification


class VisionRecipe(Recipe):
    """A ResNet that learns to classify images: `data`, or else those that the specification names."""

    task, alterable, meant_before, logs_checkpoints = "vision", ALTERABLE, MEANT_BEFORE, False
    spec: VisionSpec
    step: VisionStep
    model: "ResNetForImageClassification"
    data: VisionData

    def __init__(self, spec: VisionSpec, world: World, *, data: VisionData | None = None) -> None:
        spec.micro_batches(world.size)  # refuses what does not divide before anything is read
        self.spec, self.world, self.units, self._given = spec, world, spec.batch, data
        self._batches: Batches | None = None
        # Loss, hits and images since the last line of metrics.
        self._sums = torch.zeros(3, dtype=torch.float64, device=world.device)
        self._step = 0

    def open_data(self, output: Path) -> dict[str, str]:
        """Open the images."""
        self.data = open_images(self.spec, self.world) if self._given is None else self._given
        self.steps = self.data.order.steps
        self.evaluate_every = self.spec.evaluate_every * self.data.order.steps_of_epoch
        return self.data.digests

    def verify_data(self) -> None:
        """Do nothing more: the checksums of `open_data` are those of the pixels, or of all names and sizes of files."""

    def build(self) -> None:
        """Build the ResNet and SGD."""
        self.step = VisionStep(self.spec, self.data.classes, self.world)
        self.model = self.step.model

    def start(self, position: dict[str, Any] | None) -> None:
        """Fit a harmonic head to the first features, or continue the sums of a checkpoint."""
        if position is not None:
            self._keep([float(value) for value in position["sums"]])
            self.step.follow_head()
        elif self.spec.head == "harmonic":
            micro_batches = self.data.order.steps_of_epoch * self.spec.micro_batches(self.world.size)
            self.step.start_head(self.data.train(1), micro_batches)

    def update(self, step: int) -> float:
        """Take a step."""
        if self._batches is None:
            self._batches = self.data.train(step)
        self._step, rate = step, learning_rate(self.spec, step, self.data.order.steps_of_epoch)
        self._sums += self.step(self._batches, rate)
        return rate

    def gather(self, wants_stop: bool) -> bool:
        """Add up the sums on the first process."""
        sums = torch.cat([self._sums, self._sums.new_tensor([wants_stop])])
        *sums_of_all, stops = self.world.total(sums).tolist()
        self._keep(sums_of_all)
        if not math.isfinite(sums_of_all[0]):
            raise NonFiniteError(f"non-finite loss at step {self._step} or shortly before")
        return stops > 0

    def measured(self, speed: float) -> dict[str, Any]:
        """Return mean loss and accuracy since the last line of metrics, and images per second."""
        loss, hits, images = self.position["sums"]
        self._keep([0.0, 0.0, 0.0])
        epoch = self._step / self.data.order.steps_of_epoch
        return {"epoch": epoch, "loss": loss / images, "accuracy": hits / images, "images_per_s": speed}

    def evaluate(self) -> dict[str, float]:
        """Return the mean loss and the shares of test images that are right at once and among the first five."""
        sums = self.world.total(self.step.evaluate(self.data.test()))
        loss, first, five = (sums / self.data.test_count).tolist()
        return {"val_loss": loss, "top1": first, **({"top5": five} if len(self.data.classes) > 5 else {})}

    def weights(self) -> dict[str, Tensor]:
        """Copy parameters and running statistics to main memory."""
        return {name: tensor.cpu().contiguous() for name, tensor in self.model.state_dict().items()}

    def write_model(self, weights: dict[str, Tensor], folder: Path) -> None:
        """Write the ResNet for transformers, and how its images are prepared."""
        save_model(self.model, weights, self.data.preparation, folder, logit_scale=self.spec.logit_scale)

    def _keep(self, sums: list[float]) -> None:
        """Let the first process hold the sums of all; the order of the images needs no position besides the step."""
        self.position = {"sums": sums}
        self._sums.copy_(self._sums.new_tensor(sums) * self.world.leads)


train_classifier = partial(train, VisionRecipe)
"""Train an image classifier: `train_classifier(spec, output)`. The other arguments are those of
`harmax.train.loop.train`."""
