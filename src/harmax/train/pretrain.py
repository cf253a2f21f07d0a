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
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harmax.data.text import TokenLoader, TokenShards
from harmax.train.checkpoint import check_spec, find_checkpoints, load_checkpoint, save_checkpoint
from harmax.train.generated import generate_shards
from harmax.train.interrupt import Interrupts
from harmax.train.metrics import MetricsFile, flops_per_token, memory_gib, peak_flops
from harmax.train.model import IGNORED, NextTokenLoss, build_model, save_model
from harmax.train.optimizer import make_optimizer
from harmax.train.schedule import learning_rate
from harmax.train.spec import PretrainSpec
from harmax.train.world import World, gather_no_longer, joined, spread, whole, without_exchange

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
        self._turns = spec.accumulation(world.size)
        found = find_checkpoints(self.output / "checkpoints")
        if found:
            check_spec(found[-1], spec)
        train, self._val = self._open_data()
        batch = spec.micro_batch * world.size
        self._loader = TokenLoader(train, batch, spec.context, spec.seed, rank=world.rank, world=world.size)
        self.model = build_model(spec)
        self._flops = flops_per_token(spec, sum(parameter.numel() for parameter in self.model.parameters()))
        self._module: nn.Module = spread(NextTokenLoss(self.model, spec), spec, world)
        self._optimizer = make_optimizer(self.model, spec, world.device)
        self.step = 0
        if found:
            position = load_checkpoint(found[-1], spec=spec, model=self.model, optimizer=self._optimizer, world=world)
            self._loader.load(position)
            self.step = found[-1].step
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
                loss, norm, rate = self._update()
                timed += 1
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

    @torch.no_grad()
    def evaluate(self) -> float:
        """Mean loss of the tokens of `evaluation_sequences` windows of the val split; the same on any processes."""
        spec, world = self.spec, self.world
        windows = self._val.count_windows(spec.context)
        chosen = np.unique(np.linspace(0, windows - 1, min(spec.evaluation_sequences, windows)).astype(np.int64))
        total = torch.zeros((), dtype=torch.float64, device=world.device)
        # All processes make as many passes, as an engine may need; places beyond the last window count nothing.
        for start in range(0, len(chosen), spec.micro_batch * world.size):
            places = start + world.rank * spec.micro_batch + np.arange(spec.micro_batch)
            tokens_BT = self._val.read_windows(chosen[np.minimum(places, len(chosen) - 1)], spec.context)
            targets_BT = np.where(places[:, None] < len(chosen), tokens_BT[:, 1:], IGNORED)
            with self._precision():
                total += self._module(self._send(tokens_BT[:, :-1]), self._send(targets_BT))
        gather_no_longer(self._module)
        return world.total(total).item() / (len(chosen) * spec.context)

    def _update(self) -> tuple[Tensor, Tensor, float]:
        """Take one step; return this process's sum of losses, the gradient's norm and the learning rate."""
        spec, world = self.spec, self.world
        self.step += 1
        rate = learning_rate(spec, self.step)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        total = torch.zeros((), dtype=torch.float64, device=world.device)
        # Engines average over processes; the sum over all tokens, divided by their number, is what is wanted.
        share = world.size / (spec.sequences * spec.context)
        for turn in range(self._turns):
            inputs_BT, targets_BT = map(self._send, next(self._loader))
            with without_exchange(self._module, last=turn == self._turns - 1):
                with self._precision():
                    loss = self._module(inputs_BT, targets_BT)
                (loss * share).backward()
            total += loss.detach()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), spec.clip or math.inf)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return total, whole(norm), rate

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
            "epochs": self._loader.epochs_seen,
            "loss": loss,
            **({"val_loss": self.evaluate()} if evaluates else {}),
            "lr": rate,
            "gradient_norm": norm,
            "tokens_per_s": speed,
            **({} if peak is None else {"mfu": speed * self._flops / (peak * world.size)}),
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

    def _precision(self) -> AbstractContextManager[Any]:
        if self.spec.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.world.device.type, dtype=torch.bfloat16)

    def _send(self, tokens: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(tokens))
        if self.world.device.type == "cuda":
            return tensor.pin_memory().to(self.world.device, non_blocking=True)
        return tensor

    def _save(self) -> None:
        if self.saved == self.step:
            return
        save_checkpoint(
            self.output / "checkpoints",
            self.step,
            spec=self.spec,
            model=self.model,
            optimizer=self._optimizer,
            position=self._loader.state(),
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
