"""Pre-training, step by step: `Pretraining` opens or resumes a run, `run` trains to its end.

On one GPU, on many, on a laptop:

    harmax pretrain matched --data tokens --output runs/gpt2
    torchrun --nproc-per-node 8 -m harmax.cli.main pretrain matched --data tokens --output runs/gpt2 --engine ddp
    harmax pretrain smoke --output runs/smoke

An output folder holds checkpoints/, metrics.jsonl (one line a logged step) and, at the end, model/ for transformers.
"""

# B sequences of a micro-batch, T tokens of each

import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harmax.data.text import TokenLoader, TokenShards
from harmax.train.batches import Prefetched, send
from harmax.train.checkpoint import check_spec, find_checkpoints, load_checkpoint, save_checkpoint
from harmax.train.generated import generate_shards
from harmax.train.interrupt import Interrupts
from harmax.train.metrics import MetricsFile, memory_gib, peak_flops
from harmax.train.model import IGNORED, save_model
from harmax.train.schedule import learning_rate
from harmax.train.spec import PretrainSpec
from harmax.train.step import TrainingStep
from harmax.train.world import World, joined, whole

Progress = Callable[[dict[str, Any]], object]


def pretrain(
    spec: PretrainSpec, output: Path | str, *, device: str | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Train a spec into a folder, from its last checkpoint where it has one, and return the last line of metrics.

    Args:
        spec: what to train; `PRESETS` has some.
        output: the run's folder.
        device: cpu, cuda or cuda:1; None: a GPU where there is one. Under torchrun each process has its own.
        progress: is called on the first process with each line of metrics.
    """
    with joined(spec, device) as world:
        return Pretraining(spec, output, world).run(progress)


class Pretraining:
    """A run that is ready for its next step.

    Attributes:
        step: updates done.
        saved: those that the last checkpoint holds.
        model: the GPT-2, its parameters spread over processes as the engine does it.
    """

    def __init__(self, spec: PretrainSpec, output: Path | str, world: World) -> None:
        self.spec, self.output, self.world = spec, Path(output), world
        spec.accumulation(world.size)  # refuses what does not divide before anything is read
        found = find_checkpoints(self.output / "checkpoints")
        if found:
            check_spec(found[-1], spec)
        train, self._val = self._open_data()
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

    def run(self, progress: Progress | None = None) -> dict[str, Any]:
        """Train to the last step, write the model, and return the last line of metrics.

        The first Ctrl-C writes a checkpoint and raises KeyboardInterrupt, the second one does not wait for it.
        """
        spec, world = self.spec, self.world
        metrics = MetricsFile(self.output / "metrics.jsonl", self.step) if world.leads else None
        record: dict[str, Any] = {"step": self.step}
        tokens, clock, timed = spec.sequences * spec.context, time.perf_counter(), 0
        with Interrupts(patient=world.size > 1) as interrupts:
            while self.step < spec.steps:
                self.step, timed = self.step + 1, timed + 1
                rate = learning_rate(spec, self.step)
                loss, norm = self._update(self._batches, rate)
                evaluates = self._is_due(spec.evaluate_every)
                saves = self._is_due(spec.checkpoint_every)
                logs = evaluates or saves or self.step == 1 or self._is_due(spec.log_every)
                # Processes agree to stop where they meet anyway; one alone can stop at once.
                if not logs and (world.size > 1 or not interrupts.wanted):
                    continue
                total, wanted = world.total(torch.stack([loss, loss.new_tensor(interrupts.wanted)])).tolist()
                speed = timed * tokens / (time.perf_counter() - clock)
                record = self._record(total / tokens, norm.item(), rate, speed, evaluates)
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
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise FloatingPointError(
                f"loss and gradient must be finite, got {loss} and {norm} at step {self.step}; the checkpoint of step "
                f"{self.saved} is kept: take a smaller `lr` or a longer `warmup`."
            )
        spec, world = self.spec, self.world
        tokens, peak = spec.sequences * spec.context, peak_flops(world.device, spec.dtype)
        return {
            "step": self.step,
            "tokens": self.step * tokens,
            "epochs": self._batches.epochs_seen,
            "loss": loss,
            **({"val_loss": self.evaluate()} if evaluates else {}),
            "lr": rate,
            "gradient_norm": norm,
            "tokens_per_s": speed,
            **({} if peak is None else {"mfu": speed * self._update.flops_per_token / (peak * world.size)}),
            "memory_gib": memory_gib(world.device),
            "seconds_left": (spec.steps - self.step) * tokens / speed,
        }

    def _open_data(self) -> tuple[TokenShards, TokenShards]:
        folder, problem = self.spec.data, None
        if folder is None and not self.spec.generated:
            raise ValueError("`data` must name a folder of token shards, got none; make one with `harmax data text`.")
        if folder is None:
            folder = self.output / "tokens"
            if self.world.leads:
                try:
                    folder.mkdir(parents=True, exist_ok=True)
                    generate_shards(folder, vocab=self.spec.vocab)
                except (OSError, ValueError) as error:
                    problem = str(error)
            if (problem := self.world.tell(problem)) is not None:
                raise ValueError(problem)
        train, val = TokenShards(folder, "train"), TokenShards(folder, "val")
        if train.vocabulary.size > self.spec.vocab:
            raise ValueError(
                f"`vocab` must be at least {train.vocabulary.size}, the vocabulary of {str(folder)!r}, got "
                f"{self.spec.vocab}; give a larger one, or the text that belongs to it."
            )
        if not val.count_windows(self.spec.context):
            raise ValueError(
                f"the val split of {str(folder)!r} must hold a sequence of {self.spec.context} tokens and one more, "
                f"got {val.tokens} tokens; take a shorter `context`, or prepare more text."
            )
        return train, val

    def _save(self) -> None:
        if self.saved == self.step:
            return
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
