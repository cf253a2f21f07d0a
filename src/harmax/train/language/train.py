"""The recipe that pre-trains a GPT-2.

On one GPU, on many, on a laptop:

    harmax pretrain matched --data tokens --output runs/gpt2
    torchrun --nproc-per-node 8 -m harmax pretrain matched --data tokens --output runs/gpt2 --engine ddp
    harmax pretrain smoke --output runs/smoke
"""

# B sequences of a micro-batch, T tokens of each

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from harmax.data.text import TokenLoader
from harmax.train.language.batches import Prefetched
from harmax.train.language.cautions import find_cautions
from harmax.train.language.cost import peak_flops
from harmax.train.language.model import IGNORED, save_model
from harmax.train.language.schedule import learning_rate
from harmax.train.language.settings import ALTERABLE, MEANT_BEFORE, PretrainSpec
from harmax.train.language.step import LanguageStep
from harmax.train.language.tensor_parallel import check_heads
from harmax.train.language.text import open_text
from harmax.train.loop import train
from harmax.train.recipe import NonFiniteError, Recipe
from harmax.train.world import World, send

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel


class LanguageRecipe(Recipe):
    """A GPT-2 that learns to predict the next token.

    Args:
        spec: what to train.
        world: the processes that train it.
    """

    task, alterable, meant_before, logs_checkpoints = "language", ALTERABLE, MEANT_BEFORE, True
    spec: PretrainSpec
    step: LanguageStep
    model: "GPT2LMHeadModel"
    """Its parameters are distributed over processes as the engine does it."""

    def __init__(self, spec: PretrainSpec, world: World) -> None:
        spec.micro_batches(world.parts)  # refuses what does not divide before anything is read
        if spec.engine == "tp":
            check_heads(spec.n_head, world.size)
        self.spec, self.world, self.steps = spec, world, spec.steps
        self.units, self.evaluate_every = spec.sequences * spec.context, spec.evaluate_every
        self._step = 0
        # The first step whose gradient was not finite, 0 for none; on the device, so that no step waits for it.
        self._broken = torch.zeros((), dtype=torch.float64, device=world.device)

    def open_data(self, output: Path) -> dict[str, str]:
        """Open the token shards, or generate some."""
        spec, world = self.spec, self.world
        self._train, self._val = open_text(spec, output, world)
        batch = spec.micro_batch * world.parts
        self._loader = TokenLoader(self._train, batch, spec.context, spec.seed, rank=world.part, world=world.parts)
        return {"train": self._train.fingerprint, "val": self._val.fingerprint}

    def verify_data(self) -> None:
        """Read every token and compare checksums."""
        self._train.verify()
        self._val.verify()

    def build(self) -> None:
        """Build the GPT-2 and AdamW."""
        self.step = LanguageStep(self.spec, self.world)
        self.model = self.step.model

    def start(self, position: dict[str, Any] | None) -> None:
        """Begin with the first batch, or with the next one."""
        if position is not None:
            self._loader.load(position)
        self._batches = Prefetched(self._loader, self.world.device)
        self.position = self._batches.state

    def cautions(self, output: Path) -> Iterator[str]:
        """Return what is allowed and probably not intended."""
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        return find_cautions(self.spec, self._train, parameters, output)

    def update(self, step: int) -> float:
        """Take a step."""
        self._step, rate = step, learning_rate(self.spec, step)
        self._loss, self._norm = self.step(self._batches, rate)
        self._broken = torch.where((self._broken == 0) & ~self._norm.isfinite(), step, self._broken)
        self.position = self._batches.state
        return rate

    def gather(self, wants_stop: bool) -> bool:
        """Add up the loss of the last step."""
        sums = self.world.total(torch.stack([self._loss, self._loss.new_tensor(wants_stop)]))
        own = torch.stack([self._norm.double(), self._broken])
        total, stops, norm, broken = torch.cat([sums, own]).tolist()
        if 0 < broken < self._step:
            raise NonFiniteError(f"non-finite gradient at step {int(broken)}")
        if not math.isfinite(total):
            raise NonFiniteError(f"non-finite loss at step {self._step}")
        if broken:
            raise NonFiniteError(f"non-finite gradient at step {int(broken)}")
        self._measured = {"loss": total / self.units, "gradient_norm": norm}
        return stops > 0

    def measured(self, speed: float) -> dict[str, Any]:
        """Return loss and norm of the gradient, tokens seen and per second, and the share of the device's peak."""
        peak = peak_flops(self.world.device, self.spec.dtype)
        return {
            "tokens": self._step * self.units,
            "epochs": self._batches.epochs_seen,
            **self._measured,
            "tokens_per_s": speed,
            **({} if peak is None else {"mfu": speed * self.step.flops_per_token / (peak * self.world.size)}),
        }

    def evaluate(self) -> dict[str, float]:
        """Return the mean loss per token of `evaluation_sequences` windows of the val split, the same on any world."""
        windows = self._val.count_windows(self.spec.context)
        chosen = np.unique(np.linspace(0, windows - 1, min(self.spec.evaluation_sequences, windows)).astype(np.int64))
        total = self.world.total(self.step.evaluate(self._read_val(chosen))).item()
        if not math.isfinite(total):
            raise NonFiniteError(f"non-finite validation loss at step {self._step}")
        return {"val_loss": total / (len(chosen) * self.spec.context)}

    def weights(self) -> dict[str, Tensor]:
        """Gather the parameters in main memory."""
        return self.step.weights()

    def write_model(self, weights: dict[str, Tensor], folder: Path) -> None:
        """Write the GPT-2 for transformers."""
        save_model(self.spec, weights, folder)

    def _read_val(self, chosen: np.ndarray) -> Iterator[tuple[Tensor, Tensor]]:
        """All processes have as many batches, as an engine may need; places beyond the last window do not count."""
        spec, world = self.spec, self.world
        for start in range(0, len(chosen), spec.micro_batch * world.parts):
            places = start + world.part * spec.micro_batch + np.arange(spec.micro_batch)
            tokens_BT = self._val.read_windows(chosen[np.minimum(places, len(chosen) - 1)], spec.context)
            targets_BT = np.where(places[:, None] < len(chosen), tokens_BT[:, 1:], IGNORED)
            yield send(tokens_BT[:, :-1], world.device), send(targets_BT, world.device)


pretrain = partial(train, LanguageRecipe)
"""Pre-train a GPT-2: `pretrain(spec, output)`. The other arguments are those of `harmax.train.loop.train`."""
