"""One update of a classifier: what `train_classifier` repeats, and what `harmax bench vision` measures."""

# B images of a micro-batch, C channels, H rows, W columns

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harmax.kernels.distance import direct_distances
from harmax.train.vision.model import ClassificationLoss, build_model, features
from harmax.train.vision.spec import VisionSpec
from harmax.train.world import World, spread, without_exchange

SMALL = 2**26
"""Largest B * V * D whose differences a compiled loss forms outright: no operator then waits for the data."""
START_IMAGES = 32
"""Images a class, on average, whose features centres start from."""


class VisionStep:
    """A model with its loss and its optimiser, on its device; a call is one update. Nothing here waits for a GPU.

    Args:
        spec: what to train.
        classes: names of the classes.
        world: the processes that train it.
        impl: how the harmonic loss is computed, as in `harmonic_loss`.

    Attributes:
        model: the ResNet.
        optimizer: SGD over its parameters.
        batch: images of an update.
    """

    def __init__(self, spec: VisionSpec, classes: Sequence[str], world: World, *, impl: str = "auto") -> None:
        self._spec, self._world = spec, world
        if world.device.type == "cuda":
            torch.backends.cudnn.benchmark = True  # shapes stay as they are, so the fastest convolutions are looked for
        self._turns, self.batch = spec.turns(world.size), spec.batch
        self.model = build_model(spec, classes)
        # Compiled, the differences between features and centres are never stored, and only `eager` is one graph.
        self._direct = spec.compile and impl == "auto" and spec.micro_batch * len(classes) * spec.features <= SMALL
        impl = "eager" if self._direct else impl
        self._layout = torch.channels_last if spec.channels_last else torch.contiguous_format
        self._loss = ClassificationLoss(self.model, label_smoothing=spec.label_smoothing, impl=impl)
        self._loss.to(memory_format=self._layout)  # type: ignore[call-overload]  # torch's stubs lack it
        # Engine and compile are all that it asks of the two.
        self._module: nn.Module = spread(self._loss, spec, world)
        groups = parameter_groups(self.model, spec)
        self.optimizer = torch.optim.SGD(
            groups, lr=spec.lr, momentum=spec.momentum, nesterov=spec.nesterov, fused=world.device.type == "cuda"
        )

    def __call__(self, batches: Iterator[tuple[Tensor, Tensor]], rate: float) -> Tensor:
        """Take a step; return this process's sums of loss, hits and images, (3,), float64, still on the device.

        Args:
            batches: prepared images (B, C, H, W) and targets (B,) on the device; as many are taken as a step has.
            rate: the learning rate.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        totals = torch.zeros(3, dtype=torch.float64, device=self._world.device)
        # Engines average over processes; the sum over all images, divided by their number, is what is wanted.
        share = self._world.size / self._spec.batch
        for turn in range(self._turns):
            images, targets_B = next(batches)
            with without_exchange(self._module, last=turn == self._turns - 1):
                loss, hits = self._compute(self._module, images, targets_B)
                (loss * share).backward()
            totals[:2] += torch.stack([loss.detach(), hits[0]])
        totals[2] = self._turns * self._spec.micro_batch
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return totals

    @torch.no_grad()
    def start_centers(self, batches: Iterator[tuple[Tensor, Tensor]], micro_batches: int) -> None:
        """Put every centre on the mean of its class's features, as they are before the first step, in all processes.

        A class that is not among the images keeps its centre.

        Args:
            batches: as for a step.
            micro_batches: how many to take, at most; fewer once there are `START_IMAGES` a class.
        """
        centers_VD = self.model.classifier[1].weight
        classes = len(centers_VD)
        enough = -(-START_IMAGES * classes // (self._spec.micro_batch * self._world.size))
        sums_VD = torch.zeros(centers_VD.shape, dtype=torch.float64, device=self._world.device)
        counts_V = torch.zeros(classes, dtype=torch.float64, device=self._world.device)
        for _ in range(min(micro_batches, enough)):
            images, targets_B = next(batches)
            with self._precision():
                # Not the compiled call: a graph for a few batches without a backward pass is not worth its making.
                hidden = self.model.resnet.forward(images.contiguous(memory_format=self._layout))
            sums_VD.index_add_(0, targets_B, hidden.pooler_output.flatten(1).double())
            counts_V += torch.bincount(targets_B, minlength=classes)
        sums_VD, counts_V = self._world.total(sums_VD), self._world.total(counts_V)
        means_VD = sums_VD / counts_V.clamp(min=1)[:, None]
        centers_VD.copy_(torch.where(counts_V[:, None] > 0, means_VD, centers_VD.double()))

    @torch.no_grad()
    def evaluate(self, batches: Iterator[tuple[Tensor, Tensor]]) -> Tensor:
        """Sum negative log likelihood, hits and hits among five over this process's batches, (3,), float64."""
        self.share_statistics()
        totals = torch.zeros(3, dtype=torch.float64, device=self._world.device)
        self._loss.eval()
        for images, targets_B in batches:
            loss, hits = self._compute(self._loss, images, targets_B)
            totals += torch.cat([loss[None], hits])
        self._loss.train()
        return totals

    @torch.no_grad()
    def features(self, batches: Iterator[tuple[Tensor, int]]) -> Tensor:
        """Return what enters the head, (N, D), float32, as an evaluation computes it.

        Args:
            batches: prepared images (B, C, H, W), all of one shape, and how many of them count.
        """
        self._loss.eval()
        found = []
        for images, count in batches:
            with self._precision():
                x_BD = features(self.model, images.contiguous(memory_format=self._layout))
            found.append(x_BD[:count].float())
        self._loss.train()
        return torch.cat(found)

    def share_statistics(self) -> None:
        """Give all processes the running statistics of the first, which every step starts from anyway."""
        if self._world.size > 1:
            for buffer in self.model.buffers():
                dist.broadcast(buffer, 0)

    def _compute(self, module: nn.Module, images: Tensor, targets_B: Tensor) -> tuple[Tensor, Tensor]:
        with self._precision(), direct_distances() if self._direct else nullcontext():
            loss, hits = module(images.contiguous(memory_format=self._layout), targets_B)
        return loss, hits

    def _precision(self) -> AbstractContextManager[Any]:
        if self._spec.dtype == "float32":
            return nullcontext()
        return torch.autocast(self._world.device.type, dtype=torch.bfloat16)


def parameter_groups(model: nn.Module, spec: VisionSpec) -> list[dict[str, Any]]:
    """Split the parameters into those that decay and those that the spec takes out."""
    centers = model.get_parameter("classifier.1.weight")
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in model.parameters():
        decays = spec.decay_centers if parameter is centers else parameter.ndim > 1 or spec.decay_norms
        (decayed if decays else others).append(parameter)
    groups = [{"params": decayed, "weight_decay": spec.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
