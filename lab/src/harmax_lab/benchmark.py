"""Many small runs: stacked and trained as one, beside the loop that people write for one of them.

A step is one batch of one run. The authors' data sets have 1000 rows, of which 800 train: 25 steps of 32 rows an epoch,
and then a test on the other 200, whose time is spread over the steps.
"""

# B questions, T tokens a question, D width, V vocabulary

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from harmax.bench.measure import milliseconds, peak_mib
from harmax.bench.options import BenchOptions
from harmax_lab.algorithmic.protocols import Settings, settings
from harmax_lab.ensemble import Ensemble, Plan
from harmax_lab.ensemble.trainer import Trainer
from harmax_lab.models import Transformer
from harmax_lab.models.transformer import EncoderLayer
from harmax_lab.tasks import Split, Task, find_task, make_split

PROTOCOL, TASK = "authors", "modular_addition"
PLAIN_EPOCHS, STACKED_EPOCHS = 4, 20
"""Between two looks at the clock."""
FOREVER = 10**6
"""Epochs nobody reaches: a benchmark stops when it has seen enough."""

TRAINING = ("epochs", "batch_size", "learning_rate", "weight_decay", "penalty", "dropout_in_tests")
"""What a protocol's settings and a plan have in common."""


class Size(NamedTuple):
    """How many runs, and whether they are tested after every epoch."""

    runs: int
    evaluate: bool = True


Subjects = dict[tuple[str, str], tuple[Size, ...]]
"""Model and head, and the ensembles of it that are measured."""

FOUR_MODELS = [(model, head) for model in ("mlp", "transformer") for head in ("harmonic", "linear")]
SMOKE: Subjects = dict.fromkeys([("mlp", "harmonic"), ("transformer", "linear")], (Size(2),))
ON_CPU: Subjects = dict.fromkeys(FOUR_MODELS, (Size(20),))
# Each size is compiled anew, which takes longer than to measure it.
ON_GPU: Subjects = {
    ("mlp", "harmonic"): (Size(20), Size(200), Size(1000), Size(1000, evaluate=False), Size(2000)),
    ("transformer", "harmonic"): (Size(20), Size(80)),
    ("transformer", "linear"): (Size(20), Size(80)),
}


def rows(options: BenchOptions) -> Iterator[dict[str, Any]]:
    """One row for the plain loop of each model and one for each ensemble, with its ratio to the plain one."""
    on_gpu = options.device.startswith("cuda")
    subjects = SMOKE if options.smoke else ON_GPU if on_gpu else ON_CPU
    threads = torch.get_num_threads()
    # Operations this small lose time between threads.
    torch.set_num_threads(options.threads or 1)
    try:
        for (model, head), sizes in subjects.items():
            yield from _rows_of(model, head, sizes, options)
    finally:
        torch.set_num_threads(threads)


def _rows_of(model: str, head: str, sizes: tuple[Size, ...], options: BenchOptions) -> Iterator[dict[str, Any]]:
    task, how = find_task(TASK, protocol=PROTOCOL), settings(PROTOCOL, model, head, epochs=FOREVER)
    samples = 100 if options.smoke else 1000
    plain = Plain(how.build(task, model, head), make_split(task, 0, samples=samples), how, options.device)
    stacks = {str(size): Stack(task, model, head, how, size, samples, options) for size in sizes}
    loops: dict[str, Plain | Stack] = {"plain": plain, **stacks}
    turns = {name: loop.run for name, loop in loops.items()}
    times = milliseconds(turns, 1 if options.smoke else options.repeats, options.device)
    for name, loop in loops.items():
        cost = {what: 1e3 * value / loop.run_steps for what, value in times[name].items()}
        yield {
            "loop": "plain" if loop is plain else "stacked",
            "model": model,
            "head": head,
            "task": TASK,
            "protocol": PROTOCOL,
            "device": options.device,
            "threads": torch.get_num_threads(),
            "runs": loop.size.runs,
            "evaluate": loop.size.evaluate,
            "us_per_run_step": round(cost["ms_p50"], 3),
            "us_p20": round(cost["ms_p20"], 3),
            "us_p80": round(cost["ms_p80"], 3),
            "ratio": round(1e3 * times["plain"]["ms_p50"] / plain.run_steps / cost["ms_p50"], 2),
            **(loop.costs if isinstance(loop, Stack) else {}),
            "torch": torch.__version__,
            "cpus": os.cpu_count(),
            **({"gpu": torch.cuda.get_device_name(options.device)} if options.device.startswith("cuda") else {}),
        }


class Stack:
    """One ensemble, ready to go on by a block of epochs at a time; a smoke test does not compile it."""

    def __init__(
        self, task: Task, model: str, head: str, how: Settings, size: Size, samples: int, options: BenchOptions
    ) -> None:
        self.size = size
        ensemble = Ensemble(partial(how.build, task, model, head), range(size.runs), device=options.device)
        training = {name: getattr(how, name) for name in TRAINING}
        plan = Plan(**training, evaluate=size.evaluate, compile=not options.smoke)
        splits = [make_split(task, seed, samples=samples) for seed in range(size.runs)]
        self.trainer = Trainer(ensemble, splits, plan)
        self.trainer.block_epochs = STACKED_EPOCHS
        self.costs: dict[str, Any] = {}
        if options.device.startswith("cuda"):
            # The recording of an epoch is where the most memory is held: its replays take no other.
            self.costs["peak_mib"] = round(peak_mib(self.trainer.start, options.device), 1)
        else:
            self.trainer.start()
        self.costs["compiled"] = self.trainer.compiled
        self.costs["predicted_mib"] = round(self.trainer.peak_bytes() / 2**20, 1)
        self.costs["setup_seconds"] = round(self.trainer.setup_seconds, 2)
        self.run_steps = STACKED_EPOCHS * self.trainer.steps * size.runs

    def run(self) -> None:
        """Train a block of epochs and fetch its curves."""
        self.trainer.enqueue()
        self.trainer.collect()


class TorchTransformer(nn.Module):
    """The paper's transformer out of torch's own layers and dropout, which one run at a time is faster than ours.

    It takes sizes, embedding and head from ours.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.embedding, self.position, self.head = model.embedding, model.position, model.head
        self.layers = nn.ModuleList()
        for layer in model.layers:
            assert isinstance(layer, EncoderLayer)
            width, heads = layer.expand.in_features, layer.attention.heads
            twin = nn.TransformerEncoderLayer(width, heads, layer.expand.out_features, layer.rate, batch_first=True)
            self.layers.append(twin)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits, (B, V)."""
        x_BTD = F.embedding(tokens_BT, self.embedding) + self.position
        for layer in self.layers:
            x_BTD = layer(x_BTD) + x_BTD
        return self.head(x_BTD[:, -1])


class Plain:
    """One model and the usual loop around it: loaders, `torch.optim.AdamW`, loss and accuracy of every batch."""

    size = Size(1)

    def __init__(self, model: nn.Module, split: Split, how: Settings, device: str) -> None:
        self.model = (TorchTransformer(model) if isinstance(model, Transformer) else model).to(device)
        self.how, self.device = how, device
        train, test = (torch.from_numpy(side) for side in (split.train, split.test))
        self.train = DataLoader(TensorDataset(train[:, :-1], train[:, -1]), batch_size=how.batch_size, shuffle=True)
        self.test = DataLoader(TensorDataset(test[:, :-1], test[:, -1]), batch_size=how.batch_size)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=how.learning_rate, weight_decay=how.weight_decay)
        self.run_steps = PLAIN_EPOCHS * len(self.train)
        self.curves: list[tuple[float, ...]] = []

    def run(self) -> None:
        """Train and test for some epochs."""
        for _ in range(PLAIN_EPOCHS):
            self.model.train()
            trained = self._epoch(self.train, self._step)
            self.model.train(self.how.dropout_in_tests)
            with torch.no_grad():
                self.curves.append((*trained, *self._epoch(self.test)))

    def _epoch(
        self, batches: DataLoader[Any], then: Callable[[Tensor], None] = lambda loss: None
    ) -> tuple[float, float]:
        losses, right, count = 0.0, 0, 0
        for tokens, target in batches:
            tokens, target = tokens.to(self.device), target.to(self.device)
            logits = self.model(tokens)
            loss = F.cross_entropy(logits, target)
            then(loss)
            losses += loss.item()
            right += (logits.argmax(-1) == target).sum().item()
            count += len(target)
        return losses / len(batches), right / count

    def _step(self, loss: Tensor) -> None:
        total = loss + self._penalty() if self.how.penalty else loss
        self.optimizer.zero_grad()
        total.backward()
        self.optimizer.step()

    def _penalty(self) -> Tensor:
        return self.how.penalty * self.model.get_parameter("embedding").square().mean(0).sqrt().mean()
