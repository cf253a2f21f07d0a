"""One update of a classifier: what `harmax vision` repeats, and what `harmax bench vision` measures."""

# B images of a micro-batch, C channels, H rows, W columns

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harmax.heads import HarmonicHead
from harmax.kernels import auto
from harmax.kernels.distance import direct_distances
from harmax.train.checkpoint import training_tensors
from harmax.train.vision.data import Batches
from harmax.train.vision.model import ClassificationLoss, build_model, features
from harmax.train.vision.recording import Recording
from harmax.train.vision.settings import VisionSpec
from harmax.train.world import World, autocast, spread, without_exchange

SMALL = 2**26
"""Largest B * V * D for which a compiled loss computes all differences, whatever `auto` would choose."""
DIRECT = "direct"
"""A harmonic loss from differences between features and centers; when compiled, these are never stored."""
NEVER_WAITS = (DIRECT, "triton")
"""Implementations in which the host does not read the data, so that a step can be recorded."""
START_IMAGES = 32
"""Images per class, on average, whose features the centers start from."""
MOMENTUM = "momentum_buffer"


class VisionStep:
    """A model with its loss and its optimizer, on its device; a call is one update.

    Nothing here waits for a GPU, except the step that is recorded and a harmonic loss that is not in `NEVER_WAITS`.

    Args:
        spec: what to train.
        classes: their names.
        world: the processes that train it.
        impl: how the harmonic loss is computed, as in `harmonic_loss`.

    Attributes:
        model: the ResNet.
        optimizer: SGD over its parameters.
        batch: images of an update.
        records: whether its steps are recorded as a CUDA graph.
    """

    def __init__(self, spec: VisionSpec, classes: Sequence[str], world: World, *, impl: str = "auto") -> None:
        self._spec, self._world = spec, world
        if world.device.type == "cuda":
            torch.backends.cudnn.benchmark = (
                True  # shapes stay the same, so searching for the fastest convolutions pays
            )
        self._micro_batches, self.batch = spec.micro_batches(world.size), spec.batch
        self.model = build_model(spec, classes)
        taken = choose_impl(spec, len(classes), world.device) if impl == "auto" else impl
        self._direct = taken == DIRECT
        self._layout = torch.channels_last if spec.channels_last else torch.contiguous_format
        impl = "eager" if self._direct else impl  # the only implementation that is one graph
        self._loss = ClassificationLoss(
            self.model, label_smoothing=spec.label_smoothing, logit_scale=spec.logit_scale, impl=impl
        )
        self._loss.to(memory_format=self._layout)  # type: ignore[call-overload]  # torch's stubs lack it
        self._module: nn.Module = spread(self._loss, spec, world)
        on_gpu, groups = world.device.type == "cuda", parameter_groups(self.model, spec)
        self.optimizer = torch.optim.SGD(
            groups, lr=spec.lr, momentum=spec.momentum, nesterov=spec.nesterov, fused=on_gpu
        )
        # On the device, where a recorded step finds them.
        self._rates = [torch.zeros((), device=world.device) for _ in groups] if on_gpu else None
        waits = spec.head == "harmonic" and taken not in NEVER_WAITS
        self.records = spec.record and spec.compile and spec.engine == "single" and on_gpu and not waits
        self._recording = Recording(self._micro_batches, world.device) if self.records else None

    def __call__(self, batches: Batches, rate: float) -> Tensor:
        """Take a step; return this process's sums of loss, hits and images, (3,), float64, still on the device.

        Args:
            batches: prepared images (B, C, H, W) and targets (B,) on the device; a step takes as many as it needs.
            rate: the learning rate.
        """
        for place, group in enumerate(self.optimizer.param_groups):
            own = rate * group["factor"]
            group["lr"] = own if self._rates is None else self._rates[place].fill_(own)
        return self._update(batches) if self._recording is None else self._recording(self._update, batches)

    def _update(self, batches: Batches) -> Tensor:
        totals = torch.zeros(3, dtype=torch.float64, device=self._world.device)
        # Engines average over processes; wanted is the sum over all images, divided by their number.
        share = self._world.size / self._spec.batch
        for turn in range(self._micro_batches):
            images, targets_B = next(batches)
            with without_exchange(self._module, last=turn == self._micro_batches - 1):
                loss, hits = self._compute(self._module, images, targets_B)
                (loss * share).backward()
            totals[:2] += torch.stack([loss.detach(), hits[0]])
        totals[2].fill_(
            self._micro_batches * self._spec.micro_batch
        )  # a number that is assigned would be copied from the host
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return totals

    def start_head(self, batches: Batches, micro_batches: int) -> None:
        """Place the centers, or find the scale of the features, from training images before the first step.

        Args:
            batches: as for a step.
            micro_batches: the largest number of them to use.
        """
        head: Any = self.model.classifier[1]
        if self._spec.center_start == "means":
            self._start_centers(head, batches, micro_batches)
        elif isinstance(head, HarmonicHead) and head.wants_scale:
            head.find_scale(self._first_features(next(batches)[0]))
        self.follow_head()

    def follow_head(self) -> None:
        """Take over what the head has found or loaded, before the next step."""
        self.model.classifier.eval().train()  # on the way a head looks at settings that a checkpoint wrote
        self._loss.head_loss.follow_scale()

    @torch.no_grad()
    def _first_features(self, images: Tensor) -> Tensor:
        with autocast(self._spec.dtype, self._world.device):
            # Not the compiled call: a graph for a few batches without a backward pass is not worth compiling.
            hidden = self.model.resnet.forward(images.contiguous(memory_format=self._layout))
        return hidden.pooler_output.flatten(1)

    @torch.no_grad()
    def _start_centers(self, head: HarmonicHead, batches: Batches, micro_batches: int) -> None:
        """Move every center to the mean of its class's features, over all processes, for `START_IMAGES` per class.

        A class without images keeps its center. A scale that is not known becomes 1.
        """
        centers_VD = head.weight
        classes = len(centers_VD)
        enough = -(-START_IMAGES * classes // (self._spec.micro_batch * self._world.size))
        sums_VD = torch.zeros(centers_VD.shape, dtype=torch.float64, device=self._world.device)
        counts_V = torch.zeros(classes, dtype=torch.float64, device=self._world.device)
        for _ in range(min(micro_batches, enough)):
            images, targets_B = next(batches)
            sums_VD.index_add_(0, targets_B, self._first_features(images).double())
            counts_V += torch.bincount(targets_B, minlength=classes)
        sums_VD, counts_V = self._world.total(sums_VD), self._world.total(counts_V)
        head.scale = head.scale or 1.0
        head.write_settings()
        means_VD = head.scale * sums_VD / counts_V.clamp(min=1)[:, None]
        centers_VD.copy_(torch.where(counts_V[:, None] > 0, means_VD, centers_VD.double()))

    @torch.no_grad()
    def evaluate(self, batches: Batches) -> Tensor:
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
        """Return the inputs of the head, (N, D), float32, as an evaluation computes them.

        Args:
            batches: prepared images (B, C, H, W), all of one shape, and how many of them count.
        """
        self._loss.eval()
        found = []
        for images, count in batches:
            with autocast(self._spec.dtype, self._world.device):
                x_BD = features(self.model, images.contiguous(memory_format=self._layout))
            found.append(x_BD[:count].float())
        self._loss.train()
        return torch.cat(found)

    @torch.no_grad()
    def logits(self, x_ND: Tensor) -> Tensor:
        """Return the logits of features from `features`, (N, V), float32."""
        return self._loss.head_loss.logits(x_ND)

    def share_statistics(self) -> None:
        """Give all processes the running statistics of the first one, from which every step starts anyway."""
        if self._world.size > 1:
            for buffer in self.model.buffers():
                dist.broadcast(buffer, 0)

    def tensors(self) -> dict[str, Tensor]:
        """Return views of everything that training changes; every process must call this."""
        self.share_statistics()
        moments = {"momentum": MOMENTUM} if self._spec.momentum else {}
        return training_tensors(self.model.state_dict(keep_vars=True), self.optimizer, moments)

    def take(self, tensors: dict[str, Tensor]) -> None:
        """Do nothing: `tensors` returns views."""

    def make_moments(self, step: int) -> None:
        """Give SGD the momentum that it makes itself at its first step; without momentum there is none."""
        for parameter in self.model.parameters() if self._spec.momentum else ():
            self.optimizer.state[parameter][MOMENTUM] = torch.zeros_like(parameter)

    def _compute(self, module: nn.Module, images: Tensor, targets_B: Tensor) -> tuple[Tensor, Tensor]:
        with autocast(self._spec.dtype, self._world.device), direct_distances() if self._direct else nullcontext():
            loss, hits = module(images.contiguous(memory_format=self._layout), targets_B)
        return loss, hits


def choose_impl(spec: VisionSpec, classes: int, device: torch.device) -> str:
    """Choose how a harmonic loss is computed: `DIRECT`, or an implementation of `harmonic_loss`.

    >>> choose_impl(VisionSpec(micro_batch=256), 200, torch.device("cuda"))
    'direct'
    >>> choose_impl(VisionSpec(micro_batch=256), 1000, torch.device("cpu"))
    'eager'
    """
    usual = auto(spec.micro_batch, classes, device, dtype=torch.bfloat16 if spec.dtype == "bf16" else torch.float32)
    small = spec.micro_batch * classes * spec.features <= SMALL
    # On a GPU `eager` would wait for the data, and so few differences take hardly any time.
    return DIRECT if spec.compile and (small or (usual == "eager" and device.type == "cuda")) else usual


def parameter_groups(model: nn.Module, spec: VisionSpec) -> list[dict[str, Any]]:
    """Split the parameters by their weight decay, and by the factor on the learning rate, which the head has."""
    head = model.get_submodule("classifier.1")
    of_head, centers = {id(parameter) for parameter in head.parameters()}, head.weight
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter is centers:
            decay = spec.weight_decay if spec.center_decay is None else spec.center_decay
            decays = spec.decay_centers
        else:
            decay, decays = spec.weight_decay, parameter.ndim > 1 or spec.decay_norms
        factor = spec.center_lr if id(parameter) in of_head else 1.0
        groups.setdefault((decay if decays else 0.0, factor), []).append(parameter)
    return [{"params": own, "weight_decay": decay, "factor": factor} for (decay, factor), own in groups.items()]
