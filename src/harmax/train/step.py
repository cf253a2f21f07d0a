"""One update of a model: what `pretrain` repeats, and what `harmax bench gpt2` measures."""

# B sequences of a micro-batch, T tokens of each

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from harmax.train.metrics import flops_per_token
from harmax.train.model import NextTokenLoss, build_model
from harmax.train.optimizer import make_optimizer
from harmax.train.spec import PretrainSpec
from harmax.train.world import World, gather_no_longer, spread, whole, without_exchange


class TrainingStep:
    """A model with its loss and its optimizer, on its device; a call is one update. Nothing here waits for a GPU.

    Args:
        spec: what to train.
        world: the processes that train it.
        impl: how the harmonic loss is computed, as in `harmonic_loss`.

    Attributes:
        model: the GPT-2, its parameters spread over processes as the engine does it.
        optimizer: AdamW over them.
        flops_per_token: what training spends on a token.
    """

    def __init__(self, spec: PretrainSpec, world: World, *, impl: str = "auto") -> None:
        self._spec, self._world = spec, world
        self._turns = spec.accumulation(world.size)
        self.model = build_model(spec)
        self.flops_per_token = flops_per_token(spec, sum(parameter.numel() for parameter in self.model.parameters()))
        self._module: nn.Module = spread(
            NextTokenLoss(self.model, spec, impl=impl), spec, world, blocks=self.model.transformer.h
        )
        self.optimizer = make_optimizer(self.model, spec, world.device)

    def __call__(self, batches: Iterator[tuple[Tensor, Tensor]], rate: float) -> tuple[Tensor, Tensor]:
        """Take a step; return this process's sum of losses and the norm of the gradient, both still on the device.

        Args:
            batches: inputs and targets on the device, (B, T) each; as many are taken as a step has.
            rate: the learning rate.
        """
        spec, world = self._spec, self._world
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        total = torch.zeros((), dtype=torch.float64, device=world.device)
        # Engines average over processes; the sum over all tokens, divided by their number, is what is wanted.
        share = world.size / (spec.sequences * spec.context)
        for turn in range(self._turns):
            inputs_BT, targets_BT = next(batches)
            with without_exchange(self._module, last=turn == self._turns - 1):
                loss = self._sum_losses(inputs_BT, targets_BT)
                (loss * share).backward()
            total += loss.detach()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), spec.clip or math.inf)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total, whole(norm)

    @torch.no_grad()
    def evaluate(self, batches: Iterator[tuple[Tensor, Tensor]]) -> Tensor:
        """Sum the losses of all tokens of this process's batches, float64."""
        total = torch.zeros((), dtype=torch.float64, device=self._world.device)
        for inputs_BT, targets_BT in batches:
            total += self._sum_losses(inputs_BT, targets_BT)
        gather_no_longer(self._module)
        return total

    def _sum_losses(self, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        with self._precision():
            loss: Tensor = self._module(inputs_BT, targets_BT)
        return loss

    def _precision(self) -> AbstractContextManager[Any]:
        if self._spec.dtype == "float32":
            return nullcontext()
        return torch.autocast(self._world.device.type, dtype=torch.bfloat16)
