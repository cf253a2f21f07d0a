"""What every verb that trains does around the training: processes, loggers, a live line, how it may end."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from harmax.cli.usage import check_folder, checking_usage, print_json

if TYPE_CHECKING:
    from harmax.train.world import RunSpec, World

Words = Callable[[dict[str, Any], int], str]
"""Writes one line of metrics for a reader, who also wants to know of how many steps it is."""


class Verb(Protocol):
    """What a verb that trains was given."""

    @property
    def spec(self) -> "RunSpec":
        """What to train."""

    @property
    def output(self) -> Path:
        """The run's folder."""

    @property
    def device(self) -> str | None:
        """Where to compute."""

    @property
    def log(self) -> tuple[str, ...]:
        """Names in LOGGERS."""

    @property
    def json(self) -> bool:
        """Whether to print the last line of metrics as JSON."""


class Training(Protocol):
    """A run that is ready for its next step."""

    step: int
    saved: int

    @property
    def steps(self) -> int:
        """Updates of the whole run."""

    @property
    def cautions(self) -> tuple[str, ...] | list[str]:
        """What to know before a long run."""

    def run(self, progress: Callable[[dict[str, Any]], object] | None = None) -> dict[str, Any]:
        """Train to the end and return the last line of metrics."""


def supervise(verb: Verb, make: Callable[["World"], Training], *, words: Words, loading: str) -> int:
    """Train, and say where the model is; only the first process speaks.

    Args:
        verb: what was asked.
        make: makes the run, or raises ValueError for what cannot be.
        words: writes a line of metrics.
        loading: how the model is loaded.
    """
    from harmax.train.loggers import check_loggers
    from harmax.train.world import joined

    with ExitStack() as stack:
        with checking_usage():
            check_folder(verb.output)
            check_loggers(verb.log)
            world = stack.enter_context(joined(verb.spec, verb.device))
        return _train(verb, make, world, words, loading)  # the model is gone before the processes part


def _train(verb: Verb, make: Callable[["World"], Training], world: "World", words: Words, loading: str) -> int:
    from harmax.train.loggers import LOGGERS

    with checking_usage():
        training = make(world)
    for caution in training.cautions if world.leads else ():
        print(f"harmax: {caution}", file=sys.stderr)
    takers: list[Callable[[dict[str, Any]], None]] = []
    with ExitStack() as stack:
        if world.leads:
            takers.append(stack.enter_context(ShowSteps(words, training.steps, training.step)))
            for name in verb.log:
                logger = LOGGERS[name](verb.spec, verb.output, training.step)
                stack.callback(logger.close)
                takers.append(logger)
        try:
            record = training.run(lambda record: [take(record) for take in takers])
        except KeyboardInterrupt:
            return _stop(f"stopped; the same command goes on after step {training.saved}.", world, 130)
        except FloatingPointError as error:
            return _stop(str(error), world, 1)
    if world.leads:
        model = verb.output / "model"
        if verb.json:
            print_json({**record, "folder": str(verb.output), "model": str(model)})
        else:
            print(loading, file=sys.stderr)
            print(model)
    return 0


def _stop(words: str, world: "World", status: int) -> int:
    if world.leads:
        print(f"harmax: {words}", file=sys.stderr)
    return status


class ShowSteps:
    """Shows lines of metrics on standard error: one that changes on a terminal, one after another elsewhere."""

    def __init__(self, words: Words, steps: int, done: int) -> None:
        self._words, self._steps, self._done = words, steps, done
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, transient=False) if self._console.is_terminal else None

    def __enter__(self) -> "ShowSteps":
        if self._done:
            self.say(f"going on after step {self._done}")
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, record: dict[str, Any]) -> None:
        """Show one line of metrics."""
        words = self._words(record, self._steps)
        if self._live is None:
            self.say(words)
        else:
            self._live.update(Text(words, no_wrap=True, overflow="ellipsis"))

    def say(self, words: str) -> None:
        """Say something once."""
        print(words, file=sys.stderr, flush=True)
