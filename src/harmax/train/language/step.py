"""One update of a GPT-2: what `harmax pretrain` repeats, and what `harmax bench gpt2` measures."""

# B sequences of a micro-batch, T tokens of each

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from harmax.sharding import whole
from harmax.train.checkpoint import training_tensors
from harmax.train.language.cost import flops_per_token
from harmax.train.language.model import NextTokenLoss, build_model
from harmax.train.language.settings import PretrainSpec
from harmax.train.language.tensor_parallel import divide, divided_in_parts, take_joined_parts, with_joined_parts
from harmax.train.world import World, autocast, clip_gradients, gather_no_longer, spread, without_exchange

Batches = Iterator[tuple[Tensor, Tensor]]
MOMENTS = ("exp_avg", "exp_avg_sq")


class LanguageStep:
    """A model with its loss and its optimizer, on its device; a call is one update. Nothing here waits for a GPU.

    Args:
        spec: what to train.
        world: the processes that train it.
        impl: how the harmonic loss is computed, as in `harmonic_loss`.

    Attributes:
        model: the GPT-2, its parameters distributed over processes as the engine does it.
        optimizer: AdamW over them.
        flops_per_token: floating-point operations that training needs per token.
    """

    def __init__(self, spec: PretrainSpec, world: World, *, impl: str = "auto") -> None:
        self._spec, self._world = spec, world
        self._micro_batches = spec.micro_batches(world.parts)
        self.model = build_model(spec)
        self.flops_per_token = flops_per_token(spec, sum(parameter.numel() for parameter in self.model.parameters()))
        self._module: nn.Module = spread(
            NextTokenLoss(self.model, spec, impl=impl),
            spec,
            world,
            blocks=self.model.transformer.h,
            divide=partial(divide, self.model),
        )
        self._in_parts = divided_in_parts(self.model)
        self.optimizer = make_optimizer(self.model, spec, world.device)

    def __call__(self, batches: Batches, rate: float) -> tuple[Tensor, Tensor]:
        """Take a step; return this process's sum of losses and the norm of the gradient, both still on the device.

        Args:
            batches: inputs and targets on the device, (B, T) each; a step takes as many as it needs.
            rate: the learning rate.
        """
        spec, world = self._spec, self._world
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        total = torch.zeros((), dtype=torch.float64, device=world.device)
        # Engines average over processes; wanted is the sum over all tokens, divided by their number.
        share = world.parts / (spec.sequences * spec.context)
        for turn in range(self._micro_batches):
            inputs_BT, targets_BT = next(batches)
            with without_exchange(self._module, last=turn == self._micro_batches - 1):
                loss = self._sum_losses(inputs_BT, targets_BT)
                (loss * share).backward()
            total += loss.detach()
        norm = clip_gradients(list(self.model.parameters()), spec.clip or math.inf)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total, norm

    @torch.no_grad()
    def evaluate(self, batches: Batches) -> Tensor:
        """Sum the losses of all tokens of this process's batches, float64."""
        total = torch.zeros((), dtype=torch.float64, device=self._world.device)
        for inputs_BT, targets_BT in batches:
            total += self._sum_losses(inputs_BT, targets_BT)
        gather_no_longer(self._module)
        return total

    def tensors(self) -> dict[str, Tensor]:
        """Return views of everything that training changes, or copies where its shape is that of another engine."""
        return dict(with_joined_parts(self._tensors(), self._in_parts))

    def take(self, tensors: dict[str, Tensor]) -> None:
        """Take over the result of `tensors`, filled by a checkpoint, where it is no view."""
        for name, tensor in self._tensors().items():
            if tensors[name] is not tensor and isinstance(tensor, DTensor) and name.partition(".")[2] in self._in_parts:
                take_joined_parts(tensors[name], tensor)

    def weights(self) -> dict[str, Tensor]:
        """Gather the parameters in main memory; every process must call this."""
        gathered = ((name, whole(parameter.detach()).cpu()) for name, parameter in self.model.named_parameters())
        return {name: tensor.flatten(-2) if name in self._in_parts else tensor for name, tensor in gathered}

    def _tensors(self) -> dict[str, Tensor]:
        moments = dict(zip(MOMENTS, MOMENTS, strict=True))
        return training_tensors(dict(self.model.named_parameters()), self.optimizer, moments)

    def make_moments(self, step: int) -> None:
        """Give AdamW the state that it makes itself at its first step."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                device = parameter.device if group["fused"] else "cpu"
                self.optimizer.state[parameter] = {
                    "step": torch.tensor(float(step), dtype=torch.float32, device=device),
                    **{name: torch.zeros_like(parameter) for name in MOMENTS},
                }

    def _sum_losses(self, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        with autocast(self._spec.dtype, self._world.device):
            loss: Tensor = self._module(inputs_BT, targets_BT)
        return loss


def parameter_groups(model: nn.Module, spec: PretrainSpec) -> list[dict[str, object]]:
    """Split the parameters of a GPT-2 by decay, which acts on matrices, and by the factor on the learning rate.

    The centers decay where the settings say so, and have a factor of their own.
    """
    centers = model.get_parameter("lm_head.weight")
    groups: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim >= 2 and not name.endswith(".bias")
        decays = is_matrix and (spec.decay_centers or parameter is not centers)
        factor = spec.center_lr if parameter is centers else 1.0
        kind = (spec.weight_decay if decays else 0.0, factor, isinstance(parameter, DTensor))  # one fused call for each
        groups.setdefault(kind, []).append(parameter)
    return [{"params": own, "weight_decay": decay, "factor": factor} for (decay, factor, _), own in groups.items()]


def make_optimizer(model: nn.Module, spec: PretrainSpec, device: torch.device) -> torch.optim.AdamW:
    """Return AdamW over a model whose parameters stay where they are."""
    fused = device.type == "cuda"
    return torch.optim.AdamW(parameter_groups(model, spec), lr=spec.lr, betas=spec.betas, fused=fused)
