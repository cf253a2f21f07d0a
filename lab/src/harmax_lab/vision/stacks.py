"""Small classifiers trained as one stack: one layer on rows of numbers, or one hidden layer before it.

All arms of a seed (harmonic heads with their exponents, linear ones with or without a bias) start with the same
weights and see the same batches, so that they differ in the head alone. mnist_training.py does the same for the
paper's three heads and has its stopping rules; here are any arms, a hidden layer, and a number of steps.
"""

# S seeds, A arms, V classes, D inputs, F features (what the head takes; D where there is no hidden layer), B batch,
# N images, K of them learned from, T steps

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from harmax.functional import harmonic_logits
from harmax_lab.ensemble.rows import descend, orders, streams
from harmax_lab.vision.mnist_training import CANCELED, Data, losses_of
from harmax_lab.vision.one_layer import BIASED, HARMONIC, STANDARD, ImageSpec

STACK = 5
"""Seeds that a CPU trains together: with more of them the parameters leave a core's cache."""


class Arm(NamedTuple):
    """A head, and its exponent over sqrt(features) where it is harmonic."""

    head: str
    """HARMONIC, STANDARD or BIASED."""
    factor: float = 0.0

    def exponent(self, features: int) -> float:
        """Return the exponent of a harmonic arm."""
        return self.factor * math.sqrt(features)


@dataclass(frozen=True, kw_only=True)
class StackSpec(ImageSpec):
    """Settings of a stack with harmonic arms, and with linear ones without and with a bias."""

    factors: tuple[float, ...] = (1.0, 2.0)
    """Exponents of the harmonic arms over sqrt(features): the paper's rule, and the authors' code."""
    batch_size: int = 64
    """Images per step; all where there are fewer. Every pass over the images is in a new order."""
    weight_decay: float = 1e-2
    """AdamW's, torch's default."""

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Every arm, harmonic ones first."""
        return (*(Arm(HARMONIC, factor) for factor in self.factors), Arm(STANDARD), Arm(BIASED))


class Network(NamedTuple):
    """The parameters of a stack, or, without the first two dimensions, of one network."""

    weight_SAVF: Tensor
    bias_SAV: Tensor
    """0, and stays so, for arms without one."""
    hidden_SAFD: Tensor | None = None
    shift_SAF: Tensor | None = None
    """The hidden layer's bias."""

    def one(self, seed: int, arm: int) -> "Network":
        """Return one network, by its places in the stack."""
        return self.map(lambda part: part[seed, arm])

    def map(self, change: Callable[[Tensor], Tensor]) -> "Network":
        """Return the network with every parameter changed."""
        return Network(*(None if part is None else change(part) for part in self))  # type: ignore[arg-type]

    def features(self, x_ND: Tensor) -> Tensor:
        """Return what the head of one network takes, (N, F): the images themselves where it has no hidden layer."""
        if self.hidden_SAFD is None:
            return x_ND
        return F.relu(F.linear(x_ND, self.hidden_SAFD, self.shift_SAF))

    def logits(self, arm: Arm, x_NF: Tensor) -> Tensor:
        """Return the logits of one network from its features, (N, V), with the library's exact distances."""
        if arm.head == HARMONIC:
            return harmonic_logits(x_NF, self.weight_SAVF, exponent=arm.exponent(x_NF.shape[1]))
        return F.linear(x_NF, self.weight_SAVF, self.bias_SAV)


def initial_network(seeds: Sequence[int], arms: int, classes: int, inputs: int, hidden: int | None) -> Network:
    """Draw N(0, 1 / F) for the head, nn.Linear's start for the hidden layer, biases of 0; all arms of a seed alike."""
    features, bound = hidden or inputs, 1 / math.sqrt(inputs)

    def draw(seed: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        parts = [torch.randn(classes, features, generator=generator) / math.sqrt(features), torch.zeros(classes)]
        for shape in ((hidden, inputs), (hidden,)) if hidden else ():
            parts.append(torch.empty(shape).uniform_(-bound, bound, generator=generator))
        return parts

    drawn = zip(*map(draw, seeds), strict=True)
    return Network(*(torch.stack([torch.stack(part)] * arms, 1) for part in drawn))


class Formula(NamedTuple):
    """What tells the arms of a stack apart, on the device."""

    harmonic: slice
    """Harmonic arms come first."""
    exponent_A: Tensor
    """Of the harmonic arms."""
    biased_A: Tensor
    """1.0 where an arm has a bias, of all arms."""

    @classmethod
    def of(cls, arms: Sequence[Arm], features: int, device: str) -> "Formula":
        """Return the formula of some arms; refuse a linear one before a harmonic one."""
        kinds = [arm.head == HARMONIC for arm in arms]
        if sorted(kinds, reverse=True) != kinds:
            raise ValueError(f"harmonic `arms` must come first, got {[arm.head for arm in arms]}; sort them.")
        exponents = [arm.exponent(features) for arm in arms if arm.head == HARMONIC]
        biased = [float(arm.head == BIASED) for arm in arms]
        exponent_A, biased_A = (torch.tensor(some, device=device) for some in (exponents, biased))
        return cls(slice(len(exponents)), exponent_A, biased_A[:, None])


def stack_logits(network: Network, formula: Formula, x_SBD: Tensor) -> Tensor:
    """Return every arm's logits, (S, A, V, B).

    Distances come from products here, which cancel only where features lie on a center; `Network.logits`, from which
    whatever is reported comes, has exact ones.
    """
    w_SAVF, arms = network.weight_SAVF, network.weight_SAVF.shape[1]
    if network.hidden_SAFD is None:
        h_SAFB = x_SBD.mT[:, None]
        z_SAVB = torch.bmm(w_SAVF.flatten(1, 2), x_SBD.mT).unflatten(1, w_SAVF.shape[1:3])
    else:
        assert network.shift_SAF is not None
        layer_SHD, shift_SH1 = network.hidden_SAFD.flatten(1, 2), network.shift_SAF.flatten(1, 2)[..., None]
        h_SAFB = torch.baddbmm(shift_SH1, layer_SHD, x_SBD.mT).relu().unflatten(1, (arms, -1))
        z_SAVB = torch.matmul(w_SAVF, h_SAFB)
    linear_SAVB = z_SAVB + (network.bias_SAV * formula.biased_A)[..., None]
    where = formula.harmonic
    w_SHVF, h_SHFB = w_SAVF[:, where], h_SAFB[:, where]
    norms_SHVB = h_SHFB.square().sum(2, keepdim=True) + w_SHVF.square().sum(3, keepdim=True)
    s_SHVB = torch.maximum(norms_SHVB - 2 * z_SAVB[:, where], CANCELED * norms_SHVB)
    harmonic_SHVB = s_SHVB.log() * (-formula.exponent_A / 2)[:, None, None]
    return torch.cat([harmonic_SHVB, linear_SAVB[:, where.stop :]], 1)


def train_stack(
    spec: StackSpec,
    data: Data,
    rows_SK: Tensor,
    *,
    steps: int,
    learning_rate: float,
    hidden: int | None = None,
    device: str = "cpu",
    progress: Callable[[float], object] = lambda fraction: None,
) -> Network:
    """Train every arm and seed of a spec with AdamW for a number of steps, and return where they end.

    Args:
        spec: the settings.
        data: the images.
        rows_SK: numbers of the images that each seed learns from, (S, K).
        steps: how many.
        learning_rate: of all arms, constant.
        hidden: units of a hidden layer; None: one layer.
        device: where to compute.
        progress: is called with the fraction done.
    """
    seeds, data, inputs = spec.seeds, data.to(device), data.x_ND.shape[1]
    formula = Formula.of(spec.arms, hidden or inputs, device)
    together, parts = STACK if device == "cpu" else len(seeds), []
    for start in range(0, len(seeds), together):
        some = slice(start, start + together)
        network = initial_network(seeds[some], len(spec.arms), data.classes, inputs, hidden)
        network = network.map(lambda part: part.to(device).requires_grad_())
        parameters = [part for part in network if part is not None]
        optimizer = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=spec.weight_decay, fused=True)
        # All at once: a GPU would wait for a copy from pageable memory in every step.
        rows_TSB = torch.stack(list(_batches(rows_SK[some], spec.batch_size, steps, streams(seeds[some])))).to(device)

        def losses(rows_SB: Tensor, network: Network = network) -> Tensor:
            batch = data.pick(rows_SB)
            return losses_of(stack_logits(network, formula, batch.x_SBD), batch.y_SB)

        def watch(step: int, losses: Tensor, start: int = start) -> None:
            if (step + 1) % 50 == 0 or step + 1 == steps:
                progress(min(1.0, (start + together * (step + 1) / steps) / len(seeds)))

        descend(rows_TSB, losses, optimizer, watch)
        parts.append(network.map(lambda part: part.detach().cpu()))
    columns = zip(*parts, strict=True)
    return Network(*(None if column[0] is None else torch.cat(column) for column in columns))  # type: ignore[arg-type]


def _batches(rows_SK: Tensor, batch: int, steps: int, draws: Sequence[torch.Generator]) -> Iterator[Tensor]:
    """Yield (S, B) numbers of images; a pass leaves out its last, smaller batch, which has others in the next pass."""
    images = rows_SK.shape[1]
    size, done = min(batch, images), 0
    while done < steps:
        for places_SB in orders(images, draws).split(size, 1)[: min(images // size, steps - done)]:
            yield rows_SK.gather(1, places_SB)
            done += 1
