"""One job: an ensemble that may have to be split to fit into memory, its checkpoints, and its whole history."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from harmax_lab.ensemble.checkpoint import Checkpoint
from harmax_lab.ensemble.memory import free_bytes, in_words
from harmax_lab.ensemble.plan import CURVES, PER_RUN, History, Plan
from harmax_lab.ensemble.stack import Ensemble
from harmax_lab.ensemble.trainer import Trainer
from harmax_lab.tasks import Split


class Job(NamedTuple):
    """One ensemble, the data of its runs, and how to train it."""

    ensemble: Ensemble
    splits: Sequence[Split]
    plan: Plan


def outline(job: Job) -> Job:
    """Return a job of the same shapes for a process that only compiles it.

    One model and one split stand for all of the same size, because pickle sends the same object only once.
    """
    models: dict[int, nn.Module] = {}
    splits: dict[tuple[int, ...], Split] = {}
    twin = job.ensemble.part(range(len(job.ensemble)))
    twin.models = [models.setdefault(len(model.get_parameter("embedding")), model) for model in twin]
    same = [splits.setdefault((one.vocabulary, len(one.train), len(one.test)), one) for one in job.splits]
    return Job(twin, same, job.plan)


class Status(NamedTuple):
    """The progress of a job."""

    done: float
    """Share of its epochs that are trained."""
    epoch: int
    epochs: int
    accuracy: np.ndarray
    """Last test accuracy of each run."""
    embedding: np.ndarray | None = None
    """The runs' embeddings at the last snapshot, (S, V, D). None unless they were asked for."""


class Parts:
    """One job, split into ensembles that fit into memory and are trained one after the other.

    Args:
        job: what to train.
        checkpoint: a folder for its state.
        sharers: number of jobs that share the free memory.
    """

    def __init__(self, job: Job, checkpoint: Path | str | None, sharers: int = 1) -> None:
        self.job = job
        self.folder = None if checkpoint is None else Path(checkpoint)
        self.histories: list[History] = []
        self.checkpoints: list[Checkpoint] = []
        self.trainer = Trainer(*job)
        largest, runs = _largest_that_fits(self.trainer, sharers), len(job.ensemble)
        self.waiting: list[range] = []
        if largest < runs:
            size = math.ceil(runs / math.ceil(runs / largest))
            self.waiting = [range(start, min(start + size, runs)) for start in range(0, runs, size)]
            self.trainer = Trainer(*_part(job, self.waiting.pop(0)))
        self._begin()

    def _begin(self) -> None:
        self.checkpoint = None
        if self.folder is not None:
            self.checkpoint = Checkpoint(self.folder / f"{_fingerprint(self.trainer)}.safetensors")
            self.checkpoints.append(self.checkpoint)
        self.trainer.start(self.checkpoint.load() if self.checkpoint else None)

    def status(self, *, look: bool = False) -> Status:
        """Return the progress, and with `look` the last embeddings."""
        trainer, longest = self.trainer, self.job.plan.longest
        earlier = len(self.histories) - (trainer.done and not self.waiting)
        fraction = (earlier * longest + trainer.epoch) / ((earlier + 1 + len(self.waiting)) * longest)
        last = trainer.fetched[-1] if trainer.fetched else np.empty((0, 4, 0))
        accuracy = last[-1][CURVES.index("test_accuracy")] if len(last) else np.empty(0)
        embedding = trainer.snapshots[-1] if look and trainer.snapshots else None
        return Status(min(1.0, fraction), trainer.epoch, longest, accuracy, embedding)

    def advance(self) -> bool:
        """Collect the current block and start the next one; return whether the job is done."""
        trainer = self.trainer
        if trainer.in_flight:
            trainer.collect()
            if self.checkpoint and self.checkpoint.due and not trainer.done:
                self.checkpoint.save(trainer.saved())
        if not trainer.done:
            trainer.enqueue()
            return False
        self.histories.append(trainer.finish())
        if not self.waiting:
            return True
        if self.checkpoint:
            # So that an interrupt does not lose the finished parts.
            self.checkpoint.save(trainer.saved())
        self.trainer = Trainer(*_part(self.job, self.waiting.pop(0)))
        # Memory is planned for one part at a time, so that of the last part must be free before the next part begins.
        del trainer
        self._begin()
        return False

    def forget(self) -> None:
        """Remove the checkpoints. Call it when the results are stored."""
        for checkpoint in self.checkpoints:
            checkpoint.remove()

    def history(self) -> History:
        """Return the history of all parts."""
        parts, first = self.histories, self.histories[0]
        if len(parts) == 1:
            return first
        wanted = sorted(set(self.job.plan.snapshots))
        curves: dict[str, Any] = {
            name: np.concatenate([_longer(getattr(part, name), parts) for part in parts]) for name in CURVES
        }
        return replace(
            first,
            **curves,
            epochs=np.concatenate([part.epochs for part in parts]),
            snapshot_epochs=np.array(wanted, dtype=np.int64),
            snapshots=np.concatenate([_widened(part, wanted, parts) for part in parts]),
            waste=float(np.average([part.waste for part in parts], weights=[len(part.train_loss) for part in parts])),
            seconds=sum(part.seconds for part in parts),
            setup_seconds=sum(part.setup_seconds for part in parts),
        )


def _longer(curve: np.ndarray, parts: Sequence[History]) -> np.ndarray:
    epochs = max(part.train_loss.shape[1] for part in parts) - curve.shape[1]
    return np.pad(curve, ((0, 0), (0, epochs)), constant_values=np.nan)


def _widened(part: History, epochs: Sequence[int], parts: Sequence[History]) -> np.ndarray:
    """Return the snapshots of a part with the rows and epochs of all parts."""
    rows = max(other.snapshots.shape[2] for other in parts) - part.snapshots.shape[2]
    taken = np.searchsorted(part.snapshot_epochs, np.minimum(epochs, part.epochs.max())).astype(int)
    return np.pad(part.snapshots[:, taken], ((0, 0), (0, 0), (0, rows), (0, 0)))


def _part(job: Job, runs: Sequence[int]) -> Job:
    def chosen(name: str) -> Any:
        value = getattr(job.plan, name)
        return [value[run] for run in runs] if isinstance(value, Sequence) else value

    own: dict[str, Any] = {name: chosen(name) for name in PER_RUN}
    plan = replace(job.plan, snapshots=(), **own)
    # After its last epoch, a part does not change.
    plan = replace(plan, snapshots=sorted({min(epoch, plan.longest) for epoch in job.plan.snapshots}))
    return Job(job.ensemble.part(runs), [job.splits[run] for run in runs], plan)


def _largest_that_fits(trainer: Trainer, sharers: int) -> int:
    """Return how many runs fit into memory; raise MemoryError if none does, or not all without `split`."""
    plan, runs = trainer.plan, trainer.runs
    limit = free_bytes(trainer.device) * 9 // 10 // sharers if plan.memory is None else plan.memory
    needed = trainer.peak_bytes()
    growing = needed - trainer.fixed_bytes
    largest = min(runs, max(0, limit - trainer.fixed_bytes) * runs // growing)
    if largest < 1 or (largest < runs and not plan.split):
        advice = "use smaller batches or another device" if largest < 1 else f"take at most {largest}, or split=True"
        raise MemoryError(
            f"the memory must hold {runs} runs, which need {in_words(needed)}, got {in_words(limit)} on "
            f"{trainer.device}: {largest} runs fit; {advice}."
        )
    return largest


def _fingerprint(trainer: Trainer) -> str:
    """Return a name for this training: a digest of plan, seeds, device, data, models and initial parameters."""
    ensemble = trainer.ensemble
    plan = {name: value for name, value in asdict(trainer.plan).items() if name not in ("memory", "split")}
    plan["snapshots"] = list(trainer.plan.snapshots)
    digest = hashlib.sha256(repr((plan, ensemble.seeds, str(ensemble.device), ensemble.dtype)).encode())
    for split in trainer.splits:
        for rows in (split.train, split.test):
            digest.update(repr((rows.shape, split.vocabulary)).encode() + np.ascontiguousarray(rows).tobytes())
    for model in ensemble:
        digest.update(repr(model).encode())
        for parameter in model.parameters():
            digest.update(parameter.detach().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def train_parts(job: Job, checkpoint: Path | str | None, sharers: int = 1) -> Iterator[Parts]:
    """Train one job and yield after each block. One thread is used, because small operations are slower on several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        parts = Parts(job, checkpoint, sharers)
        while not parts.advance():
            yield parts
        yield parts
    finally:
        torch.set_num_threads(threads)
