"""The training loop of every recipe: `Training` starts or resumes a run, `run` trains to its end.

An output folder holds

    checkpoints/     the newest checkpoints (checkpoint.py)
    metrics.jsonl    one line per logged step (metrics.py)
    model/           at the end: the model, for transformers
    .lock            while a process trains here: which one (owner.py)
"""

import os
import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from harmax.environment import is_out_of_memory
from harmax.errors import needs
from harmax.files import sync_folder, sync_tree
from harmax.owner import FolderOwner
from harmax.train.checkpoint import all_finite, write_checkpoint
from harmax.train.interrupt import Interrupts
from harmax.train.metrics import memory_gib
from harmax.train.recipe import NonFiniteError, Recipe
from harmax.train.resume import CHECKPOINTS, resume
from harmax.train.world import RunSpec, World, joined

with needs("run"):
    from safetensors import SafetensorError

Progress = Callable[[dict[str, Any]], object]
Spec = TypeVar("Spec", bound=RunSpec)


def train(
    recipe: Callable[[Spec, World], Recipe],
    spec: Spec,
    output: Path | str,
    *,
    device: str | None = None,
    progress: Progress | None = None,
    change_schedule: bool = False,
) -> dict[str, Any]:
    """Train into a folder, from its newest checkpoint where it has one, and return the last line of metrics.

    Args:
        recipe: makes the recipe of a specification.
        spec: what to train.
        output: the run's folder.
        device: cpu, cuda or cuda:1; None: a GPU where there is one. Under torchrun each process has its own.
        progress: is called on the first process with each line of metrics.
        change_schedule: whether a checkpoint that was written with another schedule may be resumed with this one.
    """
    with joined(spec, device) as world:
        training = Training(recipe(spec, world), output, change_schedule=change_schedule)
        for caution in training.cautions if world.leads else ():
            warnings.warn(caution, stacklevel=2)
        record = training.run(progress)
        del training  # before the processes part
    return record


class Training:
    """A run that is ready for its next step, and owns its output folder until `run` ends or `close` is called.

    Args:
        recipe: what to train.
        output: the run's folder.
        change_schedule: whether the fields in `recipe.alterable` may differ from those of the checkpoint.

    Attributes:
        step: updates done.
        saved: updates that the newest checkpoint holds.
        cautions: what is allowed and probably not intended, one sentence each.
    """

    def __init__(self, recipe: Recipe, output: Path | str, *, change_schedule: bool = False) -> None:
        self.recipe, self.output, self.world = recipe, Path(output), recipe.world
        self._owner: FolderOwner | None = None
        self.world.lead(self._own)
        try:
            resumed = resume(recipe, self.output, change_schedule=change_schedule)
        except BaseException:
            self.close()
            raise
        self.step = self.saved = resumed.step
        self._data, self._metrics = resumed.data, resumed.metrics
        self.cautions = (*resumed.cautions, *recipe.cautions(self.output))

    @property
    def steps(self) -> int:
        """Updates of the whole run."""
        return self.recipe.steps

    def run(self, progress: Progress | None = None) -> dict[str, Any]:
        """Train to the last step, write the model, and return the last line of metrics.

        The first Ctrl-C or SIGTERM writes a checkpoint and raises KeyboardInterrupt; the second one does not wait for
        it. A loss, gradient or weight that is not finite raises FloatingPointError and is in no checkpoint. If memory
        runs out, MemoryError names the checkpoint that is kept.
        """
        try:
            with Interrupts(patient=self.world.size > 1) as interrupts:
                self._train(interrupts, progress)
            self._write_model()
        except NonFiniteError as error:
            kept = f"the checkpoint of step {self.saved} is kept" if self.saved else "there is no checkpoint yet"
            way = "resume with --change-schedule" if self.saved else "start again"
            raise FloatingPointError(f"{error}; {kept}: lower `lr` or lengthen `warmup`, and {way}.") from error
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            kept = f"the checkpoint of step {self.saved} is kept" if self.saved else "there is no checkpoint yet"
            raise MemoryError(
                f"the memory of {self.world.device} must hold step {self.step}, and more was asked for than there is "
                f"({str(error).splitlines()[0]}); {kept}: free memory, or give a language model a smaller "
                "`micro_batch`, and run the same command again."
            ) from error
        finally:
            self.close()
        last = self._metrics.last if self._metrics is not None else None
        return {"step": self.step} if last is None else last

    def close(self) -> None:
        """Give the output folder back, for other processes to use."""
        if self._owner is not None:
            self._owner.release()

    def _own(self) -> None:
        self._owner = FolderOwner(self.output)

    def _train(self, interrupts: Interrupts, progress: Progress | None) -> None:
        recipe, spec, world = self.recipe, self.recipe.spec, self.world
        clock, timed = time.perf_counter(), 0
        while self.step < self.steps:
            self.step, timed = self.step + 1, timed + 1
            rate = recipe.update(self.step)
            evaluates, saves = self._is_due(recipe.evaluate_every), self._is_due(spec.checkpoint_every)
            logs = evaluates or self.step == 1 or self._is_due(spec.log_every) or (saves and recipe.logs_checkpoints)
            # Processes agree to stop where they meet anyway; one alone can stop at once.
            if not (logs or saves) and (world.size > 1 or not interrupts.wanted):
                continue
            wanted = recipe.gather(interrupts.wanted)
            speed = timed * recipe.units / (time.perf_counter() - clock)
            if logs:
                self._log(rate, speed, evaluates, progress)
            if saves or wanted:
                self._save()
            if wanted:
                raise KeyboardInterrupt
            clock, timed = time.perf_counter(), 0  # evaluations and checkpoints do not count as training

    def _is_due(self, every: int) -> bool:
        return self.step == self.steps or (every > 0 and self.step % every == 0)

    def _log(self, rate: float, speed: float, evaluates: bool, progress: Progress | None) -> None:
        recipe = self.recipe
        record = {
            "step": self.step,
            **recipe.measured(speed),
            **(recipe.evaluate() if evaluates else {}),
            "lr": rate,
            "memory_gib": memory_gib(self.world.device),
            "seconds_left": (self.steps - self.step) * recipe.units / speed,
        }
        if self._metrics is not None:
            self._metrics.add(record)
            if progress is not None:
                progress(record)

    def _save(self) -> None:
        if self.saved == self.step:
            return
        recipe, tensors = self.recipe, self.recipe.step.tensors()
        if not all_finite(tensors, self.world):
            raise NonFiniteError(f"non-finite weights or optimizer state after step {self.step}")
        state = {
            "task": recipe.task,
            "spec": recipe.spec.identity,
            "data": self._data,
            "position": recipe.position,
            "metrics": "" if self._metrics is None else self._metrics.digest,
        }
        if self._metrics is not None:
            self._metrics.sync()
        folder = self.output / CHECKPOINTS
        write_checkpoint(folder, self.step, tensors, state, keep=recipe.spec.keep, world=self.world)
        self.saved = self.step

    def _write_model(self) -> None:
        weights = self.recipe.weights()
        self.world.lead(lambda: self._replace_model(weights))

    def _replace_model(self, weights: dict[str, Tensor]) -> None:
        target, partial = self.output / "model", self.output / ".model.partial"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            self.recipe.write_model(weights, partial)
            sync_tree(partial)
            shutil.rmtree(target, ignore_errors=True)
            os.replace(partial, target)
            sync_folder(self.output)
        except (OSError, SafetensorError) as error:
            raise OSError(
                f"{target} could not be written ({error}); make room, and the same command writes it."
            ) from error
