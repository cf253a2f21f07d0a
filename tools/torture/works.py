"""What is killed, run twice at once and given too little disk: small runs of four commands, and their results."""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import scipy.stats  # noqa: F401  (slow to import, and needed by every forked process)
import torch

import harmax_lab.ensemble.checkpoint
from harmax.data.text import from_rows, load_encoding, prepare_text
from harmax.train.language.train import pretrain
from harmax.train.vision.train import train_classifier
from harmax_lab.algorithmic.protocols import settings
from harmax_lab.algorithmic.training import RunCell, train
from harmax_lab.experiments import EXPERIMENTS
from harmax_lab.kit.engine import run
from harmax_lab.kit.experiment import Context, Experiment, Spec, Work
from harmax_lab.kit.store import open_runs
from token_shards import make_texts, write_vocabulary
from torture import children
from train.language import tiny
from train.vision import small

Result = dict[str, Any]


class Task(NamedTuple):
    """Some work into a folder, which the same call continues, and what must come out the same."""

    work: Callable[[Path], None]
    result: Callable[[Path], Result]
    sources: Callable[[Path], None] = lambda folder: None
    """Makes what the work reads, once."""


@dataclass(frozen=True, kw_only=True)
class StackSpec(Spec):
    """A stack of models, whose cells are trained as one."""

    seeds: tuple[int, ...] = (0, 1)
    epochs: int = 22


def _train_stack(spec: StackSpec, cells: Sequence[RunCell], context: Context) -> Iterator[Any]:
    return train(cells, lambda cell: settings(cell.protocol, cell.model, cell.head, epochs=spec.epochs), context)


STACK: Experiment[StackSpec, RunCell] = Experiment(
    name="stack",
    title="A stack",
    figure="none",
    claims=(),
    profiles={name: StackSpec() for name in ("smoke", "quick", "full")},
    work=Work(
        lambda spec: [
            RunCell("matched", task, "mlp", "harmonic", 0.05, seed)
            for task in ("modular_addition", "genealogy")
            for seed in spec.seeds
        ],
        _train_stack,
        group=lambda cell: cell.model,
    ),
)
TOY = EXPERIMENTS["toy_cases"]
TOY_CHANGES = {"steps": 5, "grid_size": 5, "cases": (1,)}


def _run(folder: Path) -> None:
    harmax_lab.ensemble.checkpoint.EVERY_SECONDS = 0.0
    run(STACK, folder=folder / "runs", device="cpu")
    run(TOY, folder=folder / "runs", device="cpu", changes=TOY_CHANGES, seeds=(0, 1))


def _cells(folder: Path) -> Result:
    return {
        f"{one.experiment} {name} {file.name}": hashlib.sha256(file.read_bytes()).hexdigest()
        for one in open_runs(folder / "runs")
        for name in one.done
        for file in one.cell_folder(name).iterdir()
        if file.name != "done"
    }


def _bits(tensors: dict[str, torch.Tensor]) -> Result:
    return {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in tensors.items()}


def _text(folder: Path) -> None:
    texts = [{"text": text} for text in make_texts(60, words=30)]
    encoding = load_encoding(folder.parent / "vocabulary")
    source, out = from_rows(texts, name="poems"), folder / "tokens"
    prepare_text(out, source, encoding=encoding, shard_tokens=1500, validation=0.1, workers=1)


def _shards(folder: Path) -> Result:
    tokens = folder / "tokens"
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in tokens.glob("[!.]*")}


TASKS: dict[str, Task] = {
    "run": Task(_run, _cells),
    "pretrain": Task(
        lambda folder: void(pretrain(tiny.spec(steps=8, warmup=1), folder / "run", device="cpu")),
        lambda folder: {"curve": tiny.curve(folder / "run"), **_bits(tiny.weights(folder / "run"))},
    ),
    "vision": Task(
        lambda folder: void(train_classifier(small.spec(epochs=1, checkpoint_every=5), folder / "run", device="cpu")),
        lambda folder: {"curve": small.curve(folder / "run"), **_bits(small.weights(folder / "run"))},
    ),
    "text": Task(_text, _shards, lambda folder: void(write_vocabulary(folder / "vocabulary"))),
}


def void(value: object) -> None:
    """Do nothing with a value."""


@dataclass
class Bench:
    """A place for the cases of one task, with the undisturbed result to compare with."""

    name: str
    root: Path = field(init=False)
    wanted: Result = field(init=False)
    size: tuple[int, float] = field(init=False)
    """File operations and seconds of the undisturbed work."""

    def __post_init__(self) -> None:
        torch.set_num_threads(1)
        self.task = TASKS[self.name]
        self.root = Path(tempfile.mkdtemp(prefix=f"torture-{self.name}-"))
        self.task.sources(self.root)
        whole = self.root / "undisturbed"
        self.size = children.count_operations(whole, lambda: self.task.work(whole), self.root / "said")
        self.wanted = self.task.result(whole)
        assert self.wanted

    @contextmanager
    def place(self) -> Iterator[Path]:
        """Give a case a folder, which is deleted afterwards."""
        folder = self.root / "case"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def finish(self, folder: Path) -> str | None:
        """Let the work go on to its end, and compare the result; return what is wrong."""
        ended = children.run(lambda: self.task.work(folder), self.root / "said")
        if ended.killed or ended.words:
            return f"it could not be resumed: {ended.words}"
        found = self.task.result(folder)
        if found != self.wanted:
            different = [key for key in {**found, **self.wanted} if found.get(key) != self.wanted.get(key)]
            return f"lost or different after resuming: {', '.join(different[:5])}"
        left = [path for path in folder.rglob("*") if path.name.endswith((".partial", ".removed"))]
        return f"left behind: {', '.join(str(path.relative_to(folder)) for path in left)}" if left else None


_benches: dict[str, Bench] = {}


def bench(name: str) -> Bench:
    """Return the bench of a task, which is made once per process."""
    if name not in _benches:
        _benches[name] = Bench(name)
    return _benches[name]


def clear() -> None:
    """Delete what the benches wrote."""
    while _benches:
        shutil.rmtree(_benches.popitem()[1].root, ignore_errors=True)


__all__ = ["TASKS", "Bench", "bench", "clear"]
