"""Training one ensemble: the state stays on the device, and curves are fetched once per block of epochs."""

# S runs, E epochs

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from harmax_lab.ensemble import batches
from harmax_lab.ensemble.plan import CURVES, History, Plan
from harmax_lab.ensemble.stack import Ensemble
from harmax_lab.ensemble.step import Batch, Functions, Settings, State, make_functions
from harmax_lab.ensemble.trace import COMPILE_STEPS, Traced
from harmax_lab.tasks import Split

BLOCK, GPU_BLOCK = 20, 200
"""Epochs per block. Few make a smooth progress bar, but a GPU must not wait for the host."""
GPU_FIXED = 100 * 2**20
"""Bytes that the libraries for matrix products take on a GPU for any number of runs."""


class Trainer:
    """One ensemble in training. `start` moves it to the device; `enqueue` and `collect` train a block of epochs.

    Args:
        ensemble: the models.
        splits: the data of each run.
        plan: how to train.
    """

    def __init__(self, ensemble: Ensemble, splits: Sequence[Split], plan: Plan) -> None:
        batches.check_splits(splits, ensemble)
        self.ensemble, self.splits, self.plan = ensemble, splits, plan
        self.device, self.dtype, self.runs = ensemble.device, ensemble.dtype, len(ensemble)
        steps = [math.ceil(len(split.train) / plan.batch_size) for split in splits]
        self.steps = max(steps)
        self.epochs = [int(epochs) for epochs in plan.per_run("epochs", self.runs)]
        used = sum(own * epochs for own, epochs in zip(steps, self.epochs, strict=True))
        self.waste = 1 - used / (self.runs * self.steps * plan.longest)
        self.epoch, self._ahead = 0, 0
        self._finished: torch.cuda.Event | None = None
        self.block_epochs = GPU_BLOCK if self.device.type == "cuda" else BLOCK
        self.fetched: list[np.ndarray] = []
        self.snapshots: list[np.ndarray] = []
        self._wanted = sorted(set(plan.snapshots))
        self._kept: list[Tensor] = []
        self.setup_seconds = self.seconds = 0.0
        start = time.perf_counter()
        classes = [split.vocabulary for split in splits]
        functions = make_functions(ensemble.largest, plan, padded=len(set(classes)) > 1)
        self.settings = Settings(
            learning_rate=self._per_run(plan.per_run("learning_rate", self.runs)),
            weight_decay=self._per_run(plan.per_run("weight_decay", self.runs)),
            classes=self._per_run(classes),
            exponent=self._per_run([0.0] * self.runs if plan.exponent is None else plan.per_run("exponent", self.runs)),
        )
        self.functions = self._traced(functions)
        self.setup_seconds += time.perf_counter() - start
        if plan.compile or (plan.compile is None and plan.longest * self.steps >= COMPILE_STEPS):
            for function in self.functions:
                function.compile()

    def _per_run(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=self.dtype, device=self.device)

    def _traced(self, functions: Functions[Callable[..., Any]]) -> Functions[Traced]:
        """Trace the functions for the shapes of this ensemble, on tensors that take no memory."""
        shapes = self.ensemble.shapes()
        tokens = self.splits[0].train.shape[1]

        def empty(*shape: int, dtype: torch.dtype = self.dtype) -> Tensor:
            return torch.empty(*shape, dtype=dtype, device="meta")

        def batch(rows: int) -> Batch:
            questions, key = empty(self.runs, rows, tokens, dtype=torch.int64), empty(self.runs, dtype=torch.int64)
            return Batch(questions, empty(self.runs, rows), key)

        p, m, v = ([empty(*shape) for shape in shapes.values()] for _ in range(3))
        state = State(p, m, v, empty(self.runs), empty(4, self.runs))
        settings = Settings(*(empty(self.runs) for _ in Settings._fields))
        test_rows = max(len(split.test) for split in self.splits)
        return Functions(
            Traced(functions.gradients, self.device, state, settings, batch(self.plan.batch_size)),
            Traced(functions.update, self.device, state, [*map(torch.empty_like, p), empty(4, self.runs)]),
            Traced(functions.test, self.device, state, settings, batch(test_rows)),
        )

    @property
    def compiled(self) -> bool:
        """Whether the step is compiled."""
        return self.functions.gradients.compiled

    def peak_bytes(self) -> int:
        """Predict the most memory that training takes, from shapes alone."""
        item = torch.empty(0, dtype=self.dtype).element_size()
        parameters = sum(shape.numel() for shape in self.ensemble.shapes().values()) * item
        tokens = self.splits[0].train.shape[1]
        train = self.runs * self.steps * self.plan.batch_size
        test = self.runs * max(len(split.test) for split in self.splits)
        # The rows, their shuffled copy and its transpose, the order, random numbers, sorting, weights and keys.
        data = 8 * train * (3 * tokens + 6) + 8 * test * (tokens + 1)
        curves = self.block_epochs * 4 * self.runs * item
        # Parameters and two moments, the new ones that compiled code writes, and the copy made by `_warm_up`.
        state = 3 * parameters * (3 if self.device.type == "cuda" else 2)
        snapshots = len(self._wanted) * self.ensemble.shapes()["embedding"].numel() * item
        gradients, update, test = (function.peak_bytes() for function in self.functions)
        work = max(gradients, parameters + update, test if self.plan.evaluate else 0)
        return self.fixed_bytes + state + data + curves + snapshots + work

    @property
    def fixed_bytes(self) -> int:
        """The part of `peak_bytes` that does not grow with the number of runs."""
        return GPU_FIXED if self.device.type == "cuda" else 0

    def start(self, resumed: Mapping[str, Tensor] | None = None) -> None:
        """Move everything to the device; on a GPU record an epoch as a graph. `resumed` is what `saved` returned."""
        start = time.perf_counter()
        device, dtype = self.device, self.dtype
        self.data = batches.load(self.splits, self.ensemble.seeds, self.epochs, device, dtype)
        stacked = self.ensemble.stacked()
        self.names = list(stacked)
        m, v = ([torch.zeros_like(p) for p in stacked.values()] for _ in range(2))
        updates, sums = (torch.zeros(*shape, self.runs, dtype=dtype, device=device) for shape in ((), (4,)))
        self.state = State(list(stacked.values()), m, v, updates, sums)
        self.counter = torch.zeros((), dtype=torch.int64, device=device)
        self.block = torch.zeros(self.block_epochs, 4, self.runs, dtype=dtype, device=device)
        if resumed is not None:
            self._restore(resumed)
        elif 0 in self._wanted:
            self._keep_snapshot()
        self._graph: torch.cuda.CUDAGraph | None = None
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self.stream):
            self._warm_up()
        self.setup_seconds += time.perf_counter() - start

    def _step(self, batch: Batch) -> None:
        self.functions.update(self.state, self.functions.gradients(self.state, self.settings, batch))

    def _epoch(self) -> None:
        """Train one epoch, test, and write the values of the curves into the block."""
        self.state.sums.zero_()
        epoch = batches.shuffled(self.data, self.counter, self.plan.batch_size, self.dtype)
        for step in range(self.steps):
            self._step(Batch(*(part[step] for part in epoch)))
        loss, count, right, rows = self.state.sums
        if self.plan.evaluate:
            test = self.functions.test(self.state, self.settings, batches.test_batch(self.data, self.counter))
        else:
            test = torch.full((2, self.runs), torch.nan, dtype=self.dtype, device=self.device)
        values = torch.cat([torch.stack([loss / count, right / rows]), test])
        self.block.index_copy_(0, (self.counter % self.block_epochs)[None], values[None])
        self.counter.add_(1)

    def _tensors(self) -> list[Tensor]:
        return [*pytree.tree_leaves(self.state), self.counter, self.block]

    def _warm_up(self) -> None:
        """Compile, and on a GPU record an epoch as one graph. The state is restored afterwards."""
        before = [tensor.clone() for tensor in self._tensors()]
        epoch = batches.shuffled(self.data, self.counter, self.plan.batch_size, self.dtype)
        self._step(Batch(*(part[0] for part in epoch)))
        if self.plan.evaluate:
            self.functions.test(self.state, self.settings, batches.test_batch(self.data, self.counter))
        if self.stream is not None:
            self.stream.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=self.stream):
                self._epoch()
        for tensor, saved in zip(self._tensors(), before, strict=True):
            tensor.copy_(saved)

    def enqueue(self) -> None:
        """Start the next block of epochs. On a GPU this returns at once."""
        self._started = time.perf_counter()
        with torch.cuda.stream(self.stream):
            end = min(self.plan.longest, (self.epoch // self.block_epochs + 1) * self.block_epochs)
            self._ahead = end - self.epoch
            for epoch in range(self.epoch + 1, end + 1):
                # One attribute for both would hold a method of this object: a cycle that keeps all tensors alive.
                if self._graph is None:
                    self._epoch()
                else:
                    self._graph.replay()
                if epoch in self._wanted:
                    self._keep_snapshot()
            if self.stream is not None:
                self._finished = self.stream.record_event()

    @property
    def in_flight(self) -> bool:
        """Whether a block was started and not collected."""
        return self._ahead > 0

    @property
    def ready(self) -> bool:
        """Whether `collect` would not have to wait."""
        return self._finished is None or self._finished.query()

    def collect(self) -> None:
        """Wait for the block and fetch its curves and snapshots."""
        with torch.cuda.stream(self.stream):
            first = self.epoch % self.block_epochs
            # Runs that diverge in float64 leave the range of float32.
            with np.errstate(over="ignore"):
                self.fetched.append(self.block[first : first + self._ahead].cpu().numpy().astype(np.float32))
                self.snapshots.extend(tensor.cpu().numpy().astype(np.float32) for tensor in self._kept)
            self._kept.clear()
        self.epoch, self._ahead = self.epoch + self._ahead, 0
        self.seconds += time.perf_counter() - self._started

    def _keep_snapshot(self) -> None:
        self._kept.append(self.state.parameters[self.names.index("embedding")].clone())

    @property
    def done(self) -> bool:
        """Whether all epochs are trained."""
        return self.epoch >= self.plan.longest

    def saved(self) -> dict[str, Tensor]:
        """Return the state after a block, from which training can continue."""
        return {
            **{f"state.{number}": tensor.cpu() for number, tensor in enumerate(self._tensors())},
            "epoch": torch.tensor(self.epoch),
            "curves": torch.from_numpy(np.concatenate(self.fetched)),
            **{f"snapshot.{number}": torch.from_numpy(kept) for number, kept in enumerate(self.snapshots)},
        }

    def _restore(self, saved: Mapping[str, Tensor]) -> None:
        for number, tensor in enumerate(self._tensors()):
            tensor.copy_(saved[f"state.{number}"])
        self.epoch = int(saved["epoch"])
        self.fetched = [saved["curves"].numpy()]
        count = sum(name.startswith("snapshot.") for name in saved)
        self.snapshots = [saved[f"snapshot.{number}"].numpy() for number in range(count)]

    def finish(self) -> History:
        """Write the parameters back into the models and return the curves."""
        self.ensemble.load(dict(zip(self.names, self.state.parameters, strict=True)))
        curves = np.concatenate(self.fetched).transpose(1, 2, 0)
        epochs = np.array(self.epochs)
        curves = np.where(np.arange(curves.shape[2]) < epochs[:, None], curves, np.float32(np.nan))
        runs, *shape = self.ensemble.shapes()["embedding"]
        snapshots = np.stack(self.snapshots, 1) if self.snapshots else np.zeros((runs, 0, *shape), np.float32)
        return History(
            **dict(zip(CURVES, curves, strict=True)),
            snapshots=snapshots,
            snapshot_epochs=np.array(self._wanted, dtype=np.int64),
            epochs=epochs,
            waste=self.waste,
            compiled=self.compiled,
            seconds=self.seconds + self.setup_seconds,
            setup_seconds=self.setup_seconds,
        )
