"""Other places for metrics besides metrics.jsonl: libraries that are used if installed and named."""

import importlib
import importlib.util
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from harmax.errors import unknown
from harmax.files import write_atomically
from harmax.train.world import RunSpec


class Logger(Protocol):
    """Takes lines of metrics."""

    def __call__(self, record: dict[str, Any]) -> None:
        """Take one line."""

    def close(self) -> None:
        """Finish, however the run has ended."""


class TensorBoardLogger:
    """Scalars in OUTPUT/tensorboard; after a resume, what was logged beyond the checkpoint is no longer shown."""

    def __init__(self, spec: RunSpec, output: Path, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(output / "tensorboard"), purge_step=done + 1)

    def __call__(self, record: dict[str, Any]) -> None:
        """Write every number of a line under its name."""
        for name, value in record.items():
            if name != "step":
                self._writer.add_scalar(name, value, record["step"])
        self._writer.flush()  # a killed run resumes after its checkpoint, and everything before must be there

    def close(self) -> None:
        """Write what is buffered."""
        self._writer.close()


class WandbLogger:
    """A run of Weights & Biases, named like the output folder; a resumed run continues the same one."""

    def __init__(self, spec: RunSpec, output: Path, done: int) -> None:
        wandb = importlib.import_module("wandb")
        # Folders of the same name on another disk or machine are other runs.
        own = output / "wandb.id"
        if not own.is_file():
            write_atomically(own, uuid.uuid4().hex[:8].encode())
        name, settings = output.resolve().name, {"dir": str(output), "config": spec.identity}
        # Steps that are repeated after a kill have the same numbers, and wandb ignores them.
        self._run = wandb.init(project="harmax", name=name, id=own.read_text(), resume="allow", **settings)

    def __call__(self, record: dict[str, Any]) -> None:
        """Send one line."""
        self._run.log({name: value for name, value in record.items() if name != "step"}, step=record["step"])

    def close(self) -> None:
        """Send what is buffered."""
        self._run.finish()


# Each takes the specification, the run's folder and the number of steps done.
LOGGERS: dict[str, Callable[[RunSpec, Path, int], Logger]] = {
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
}


def check_loggers(names: tuple[str, ...]) -> None:
    """Refuse unknown names and libraries that are not installed."""
    for name in names:
        if name not in LOGGERS:
            raise ValueError(unknown("logger", name, LOGGERS))
        if importlib.util.find_spec(name) is None:
            raise ValueError(
                f"`{name}` is not installed; run `pip install {name}`, or leave out --log {name}: metrics.jsonl is "
                "always written."
            )
