"""Pre-training, step by step: `Pretraining` opens or resumes a run, `run` trains to its end.

On one GPU, on many, on a laptop:

    harmax pretrain matched --data tokens --output runs/gpt2
    torchrun --nproc-per-node 8 -m harmax pretrain matched --data tokens --output runs/gpt2 --engine ddp
    harmax pretrain smoke --output runs/smoke

An output folder holds checkpoints/, metrics.jsonl (one line a logged step) and, at the end, model/ for transformers.
"""

# B sequences of a micro-batch, T tokens of each

import math
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harmax.data.text import TokenLoader
from harmax.train.batches import Prefetched, send
from harmax.train.cautions import find_cautions
from harmax.train.checkpoint import check_spec, is_finite, load_checkpoint, save_checkpoint
from harmax.train.checkpoint_folder import find_checkpoints
from harmax.train.interrupt import Interrupts
from harmax.train.metrics import MetricsFile, memory_gib, peak_flops
from harmax.train.model import IGNORED, save_model
from harmax.train.schedule import learning_rate
from harmax.train.spec import PretrainSpec
from harmax.train.step import TrainingStep
from harmax.train.text import open_text
from harmax.train.world import World, joined, whole

Progress = Callable[[dict[str, Any]], object]


def pretrain(
    spec: PretrainSpec,
    output: Path | str,
    *,
    device: str | None = None,
    progress: Progress | None = None,
    change_schedule: bool = False,
) -> dict[str, Any]:
    """Train a spec into a folder, from its last checkpoint where it has one, and return the last line of metrics.

    Args:
        spec: what to train; `PRESETS` has some.
        output: the run's folder.
        device: cpu, cuda or cuda:1; None: a GPU where there is one. Under torchrun each process has its own.
        progress: is called on the first process with each line of metrics.
        change_schedule: whether a checkpoint of another schedule may be gone on from, with this one.
    """
    with joined(spec, device) as world:
        training = Pretraining(spec, output, world, change_schedule=change_schedule)
        for caution in training.cautions if world.leads else ():
            warnings.warn(caution, stacklevel=2)
        record = training.run(progress)
        del training  # before the processes part
    return record


class Pretraining:
    """A run that is ready for its next step.

    Attributes:
        step: updates done.
        saved: those that the last checkpoint holds.
        model: the GPT-2, its parameters spread over processes as the engine does it.
        cautions: what is allowed and seldom meant, in words.
    """

    def __init__(self, spec: PretrainSpec, output: Path | str, world: World, *, change_schedule: bool = False) -> None:
        self.spec, self.output, self.world = spec, Path(output), world
        spec.accumulation(world.size)  # refuses what does not divide before anything is read
        found = find_checkpoints(self.output / "checkpoints")
        if found:
            check_spec(found[-1], spec, change_schedule=change_schedule)
        train, self._val = open_text(spec, self.output, world)
        batch = spec.micro_batch * world.size
        loader = TokenLoader(train, batch, spec.context, spec.seed, rank=world.rank, world=world.size)
        self._update = TrainingStep(spec, world)
        self.model = self._update.model
        self.step = 0
        if found:
            optimizer = self._update.optimizer
            loader.load(load_checkpoint(found[-1], spec=spec, model=self.model, optimizer=optimizer, world=world))
            self.step = found[-1].step
        self._batches = Prefetched(loader, world.device)
        self.saved = self.step
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.cautions = tuple(find_cautions(spec, train, parameters, self.output))

    @property
    def steps(self) -> int:
        """Updates of the whole run."""
        return self.spec.steps

    def run(self, progress: Progress | None = None) -> dict[str, Any]:
        """Train to the last step, write the model, and return the last line of metrics.

        The first Ctrl-C, or SIGTERM, writes a checkpoint and raises KeyboardInterrupt; the second one does not wait for
        it. A loss or a gradient that is not finite raises FloatingPointError, and is in no checkpoint.
        """
        spec, world = self.spec, self.world
        metrics = MetricsFile(self.output / "metrics.jsonl", self.step) if world.leads else None
        record: dict[str, Any] = {"step": self.step}
        tokens, clock, timed = spec.sequences * spec.context, time.perf_counter(), 0
        # The first step whose gradient was not finite, 0 for none; on the device, so that no step waits for it.
        broken = torch.zeros((), dtype=torch.float64, device=world.device)
        with Interrupts(patient=world.size > 1) as interrupts:
            while self.step < spec.steps:
                self.step, timed = self.step + 1, timed + 1
                rate = learning_rate(spec, self.step)
                loss, norm = self._update(self._batches, rate)
                broken = torch.where((broken == 0) & ~norm.isfinite(), self.step, broken)
                evaluates = self._is_due(spec.evaluate_every)
                saves = self._is_due(spec.checkpoint_every)
                logs = evaluates or saves or self.step == 1 or self._is_due(spec.log_every)
                # Processes agree to stop where they meet anyway; one alone can stop at once.
                if not logs and (world.size > 1 or not interrupts.wanted):
                    continue
                sums = world.total(torch.stack([loss, loss.new_tensor(interrupts.wanted)]))
                total, wanted, size, first = torch.cat([sums, torch.stack([norm.double(), broken])]).tolist()
                speed = timed * tokens / (time.perf_counter() - clock)
                if first < self.step and first:
                    raise self._lost(f"a gradient that was not at step {int(first)}")
                self._check_finite(loss=total / tokens, gradient_norm=size)
                record = self._record(total / tokens, size, rate, speed, evaluates)
                if metrics is not None and logs:
                    metrics.add(record)
                    if progress is not None:
                        progress(record)
                if saves or wanted:
                    self._save()
                if wanted:
                    raise KeyboardInterrupt
                clock, timed = time.perf_counter(), 0  # evaluations and checkpoints do not count as training
        self._save()
        self._write_model()
        return record

    def evaluate(self) -> float:
        """Mean loss of the tokens of `evaluation_sequences` windows of the val split; the same on any processes."""
        windows = self._val.count_windows(self.spec.context)
        chosen = np.unique(np.linspace(0, windows - 1, min(self.spec.evaluation_sequences, windows)).astype(np.int64))
        total = self.world.total(self._update.evaluate(self._read_val(chosen)))
        return total.item() / (len(chosen) * self.spec.context)

    def _read_val(self, chosen: np.ndarray) -> Iterator[tuple[Tensor, Tensor]]:
        """All processes have as many batches, as an engine may need; places beyond the last window count nothing."""
        spec, world = self.spec, self.world
        for start in range(0, len(chosen), spec.micro_batch * world.size):
            places = start + world.rank * spec.micro_batch + np.arange(spec.micro_batch)
            tokens_BT = self._val.read_windows(chosen[np.minimum(places, len(chosen) - 1)], spec.context)
            targets_BT = np.where(places[:, None] < len(chosen), tokens_BT[:, 1:], IGNORED)
            yield send(tokens_BT[:, :-1], world.device), send(targets_BT, world.device)

    def _is_due(self, every: int) -> bool:
        return self.step == self.spec.steps or (every > 0 and self.step % every == 0)

    def _record(self, loss: float, norm: float, rate: float, speed: float, evaluates: bool) -> dict[str, Any]:
        """Return a line of metrics: first what was computed, then what it cost."""
        spec, world = self.spec, self.world
        tokens, peak = spec.sequences * spec.context, peak_flops(world.device, spec.dtype)
        evaluated = {"val_loss": self.evaluate()} if evaluates else {}
        self._check_finite(**evaluated)
        return {
            "step": self.step,
            "tokens": self.step * tokens,
            "epochs": self._batches.epochs_seen,
            "loss": loss,
            **evaluated,
            "lr": rate,
            "gradient_norm": norm,
            "tokens_per_s": speed,
            **({} if peak is None else {"mfu": speed * self._update.flops_per_token / (peak * world.size)}),
            "memory_gib": memory_gib(world.device),
            "seconds_left": (spec.steps - self.step) * tokens / speed,
        }

    def _check_finite(self, **values: float) -> None:
        if not all(map(math.isfinite, values.values())):
            words = " and ".join(f"{name} {value}" for name, value in values.items())
            raise self._lost(f"{words} at step {self.step}")

    def _lost(self, what: str) -> FloatingPointError:
        kept = f"the checkpoint of step {self.saved} is kept" if self.saved else "there is no checkpoint yet"
        return FloatingPointError(
            f"losses, gradients and weights must be finite, got {what}; {kept}: give a smaller `lr` or a longer "
            "`warmup`, and `--change-schedule` to go on from a checkpoint with them."
        )

    def _save(self) -> None:
        if self.saved == self.step:
            return
        if not is_finite(self.model, self._update.optimizer, self.world):
            raise self._lost(f"weights or moments that are not after step {self.step}")
        save_checkpoint(
            self.output / "checkpoints",
            self.step,
            spec=self.spec,
            model=self.model,
            optimizer=self._update.optimizer,
            position=self._batches.state,
            world=self.world,
        )
        self.saved = self.step

    def _write_model(self) -> None:
        weights = {name: whole(parameter).cpu() for name, parameter in self.model.named_parameters()}
        if self.world.leads:
            target, partial = self.output / "model", self.output / ".model.partial"
            shutil.rmtree(partial, ignore_errors=True)
            save_model(self.spec, weights, partial)
            shutil.rmtree(target, ignore_errors=True)
            os.replace(partial, target)
        self.world.wait()
