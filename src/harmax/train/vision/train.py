"""Training of a classifier, step by step: `VisionTraining` opens or resumes a run, `run` trains to its end.

On one GPU, on many, on a laptop:

    harmax vision cifar10 --output runs/cifar10
    torchrun --nproc-per-node 8 -m harmax vision imagenet --data imagenet --micro-batch 32 --engine ddp --output runs/r
    harmax vision smoke --output runs/smoke

An output folder holds checkpoints/, metrics.jsonl (one line a logged step) and, at the end, model/ for transformers.
"""

import math
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from harmax.files import from_json
from harmax.train.checkpoint_folder import find_checkpoints
from harmax.train.interrupt import Interrupts
from harmax.train.metrics import MetricsFile, memory_gib
from harmax.train.vision.checkpoint import check_checkpoint, count_non_finite, load_checkpoint, save_checkpoint
from harmax.train.vision.data import VisionData, open_images
from harmax.train.vision.model import save_model
from harmax.train.vision.schedule import learning_rate
from harmax.train.vision.spec import VisionSpec
from harmax.train.vision.step import VisionStep
from harmax.train.world import World, joined

Progress = Callable[[dict[str, Any]], object]


def train_classifier(
    spec: VisionSpec, output: Path | str, *, device: str | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Train a spec into a folder, from its last checkpoint where it has one, and return the last line of metrics.

    Args:
        spec: what to train; `VISION_PRESETS` has some.
        output: the run's folder.
        device: cpu, cuda or cuda:1; None: a GPU where there is one. Under torchrun each process has its own.
        progress: is called on the first process with each line of metrics.
    """
    with joined(spec, device) as world:
        return VisionTraining(spec, output, world).run(progress)


class VisionTraining:
    """A run that is ready for its next step.

    Args:
        spec: what to train.
        output: the run's folder.
        world: the processes that train it.
        data: its images; None: what the spec says.

    Attributes:
        step: updates done.
        steps: updates of the whole run.
        saved: those that the last checkpoint holds.
        model: the ResNet.
        cautions: what to know before a long run; none yet.
    """

    cautions: tuple[str, ...] = ()

    def __init__(self, spec: VisionSpec, output: Path | str, world: World, *, data: VisionData | None = None) -> None:
        self.spec, self.output, self.world = spec, Path(output), world
        spec.turns(world.size)  # refuses what does not divide before anything is read
        found = find_checkpoints(self.output / "checkpoints")
        self.data = open_images(spec, world) if data is None else data
        if found:
            check_checkpoint(found[-1], spec, self.data.fingerprint)
        self.steps, self.step = self.data.order.steps, 0
        self._update = VisionStep(spec, self.data.classes, world)
        self.model = self._update.model
        self._totals = torch.zeros(3, dtype=torch.float64, device=world.device)
        if found:
            optimizer, totals = self._update.optimizer, self._totals
            load_checkpoint(found[-1], model=self.model, optimizer=optimizer, totals=totals, world=world)
            self.step = found[-1].step
        elif spec.center_start == "means":
            order = self.data.order
            self._update.start_centers(self.data.train(1), order.steps_of_epoch * spec.turns(world.size))
        self.saved = self.step
        self._metrics = MetricsFile(self.output / "metrics.jsonl", self.step) if world.leads else None

    def run(self, progress: Progress | None = None) -> dict[str, Any]:
        """Train to the last step, write the model, and return the last line of metrics.

        The first Ctrl-C writes a checkpoint and raises KeyboardInterrupt, the second one does not wait for it.
        """
        spec, world, of_epoch = self.spec, self.world, self.data.order.steps_of_epoch
        record: dict[str, Any] = self._last_line()
        batches, clock, timed = self.data.train(self.step + 1), time.perf_counter(), 0
        with Interrupts(patient=world.size > 1) as interrupts:
            while self.step < self.steps:
                self.step, timed = self.step + 1, timed + 1
                rate = learning_rate(spec, self.step, of_epoch)
                self._totals += self._update(batches, rate)
                evaluates = self._is_due(spec.evaluate_every * of_epoch)
                saves = self._is_due(spec.checkpoint_every)
                logs = evaluates or self.step == 1 or self._is_due(spec.log_every)
                # Processes agree to stop where they meet anyway; one alone can stop at once.
                if not (logs or saves) and (world.size > 1 or not interrupts.wanted):
                    continue
                totals, wanted = self._gather(interrupts.wanted)
                speed = timed * spec.batch / (time.perf_counter() - clock)
                if logs:
                    record = self._record(totals, rate, speed, evaluates)
                    if self._metrics is not None:
                        self._metrics.add(record)
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

    def evaluate(self) -> dict[str, float]:
        """Negative log likelihood and shares of the test images that are right, at once and among five."""
        count = self.data.test_count
        loss, first, five = (self.world.total(self._update.evaluate(self.data.test())) / count).tolist()
        return {"val_loss": loss, "top1": first, **({"top5": five} if len(self.data.classes) > 5 else {})}

    def _gather(self, wanted: bool) -> tuple[list[float], bool]:
        """Add up on the first process what all have summed; return it, and whether one of them wants to stop."""
        sums = torch.cat([self._totals, self._totals.new_tensor([wanted])])
        *totals, stops = self.world.total(sums).tolist()
        self._totals.copy_(self._totals.new_tensor(totals) if self.world.leads else torch.zeros_like(self._totals))
        if not math.isfinite(totals[0]):
            raise FloatingPointError(
                f"the loss must be finite, got {totals[0]} at step {self.step} or a little before; the checkpoint of "
                f"step {self.saved} is kept: take a smaller `lr` or a longer `warmup`, and another output folder."
            )
        return totals, stops > 0

    def _last_line(self) -> dict[str, Any]:
        """What a run that is at its end already has to say."""
        lines = self._metrics.path.read_bytes().splitlines() if self._metrics is not None else []
        return dict(from_json(lines[-1])) if lines else {"step": self.step}

    def _is_due(self, every: int) -> bool:
        return self.step == self.steps or (every > 0 and self.step % every == 0)

    def _record(self, totals: list[float], rate: float, speed: float, evaluates: bool) -> dict[str, Any]:
        """Return a line of metrics: what was computed since the last line, then what it cost."""
        spec, (loss, hits, images) = self.spec, totals
        self._totals.zero_()
        return {
            "step": self.step,
            "epoch": self.step / self.data.order.steps_of_epoch,
            "loss": loss / images,
            "accuracy": hits / images,
            **(self.evaluate() if evaluates else {}),
            "lr": rate,
            "images_per_s": speed,
            "memory_gib": memory_gib(self.world.device),
            "seconds_left": (self.steps - self.step) * spec.batch / speed,
        }

    def _save(self) -> None:
        if self.saved == self.step:
            return
        model, optimizer = self.model, self._update.optimizer
        if broken := count_non_finite(model, optimizer, self._totals):
            raise FloatingPointError(
                f"weights must be finite, got {broken} tensors that are not at step {self.step}; the checkpoint of "
                f"step {self.saved} is kept: take a smaller `lr` or a longer `warmup`, and another output folder."
            )
        save_checkpoint(
            self.output / "checkpoints",
            self.step,
            spec=self.spec,
            model=model,
            optimizer=optimizer,
            totals=self._totals,
            fingerprint=self.data.fingerprint,
            world=self.world,
        )
        self.saved = self.step

    def _write_model(self) -> None:
        if self.world.leads:
            target, partial = self.output / "model", self.output / ".model.partial"
            shutil.rmtree(partial, ignore_errors=True)
            weights = {name: tensor.cpu().contiguous() for name, tensor in self.model.state_dict().items()}
            scale = self.spec.logit_scale
            save_model(self.model, weights, self.data.preparation, partial, logit_scale=scale)
            shutil.rmtree(target, ignore_errors=True)
            os.replace(partial, target)
        self.world.wait()
