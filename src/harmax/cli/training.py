"""What every verb that trains does around the training: flags, processes, loggers, a live line, how it may end."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
from rich.console import Console
from rich.live import Live
from rich.text import Text

from harmax.cli.usage import UsageError, check_folder, checking_usage, print_json, silence

if TYPE_CHECKING:
    from harmax.train.recipe import Recipe
    from harmax.train.world import RunSpec, World

Words = Callable[[dict[str, Any], int], str]
"""Writes one line of metrics for a reader, given the number of steps of the whole run."""


verb_with_presets = tyro.conf.configure(
    tyro.conf.OmitArgPrefixes,
    tyro.conf.OmitSubcommandPrefixes,
    tyro.conf.CascadeSubcommandArgs,
)
"""Decorates a verb whose field `spec` is a preset; flags such as --output may stand after the preset."""


@dataclass(frozen=True, kw_only=True)
class TrainingFlags:
    """The flags of every verb that trains."""

    output: Path
    """Folder of the run: checkpoints, metrics.jsonl and, at the end, model/ for transformers."""
    device: str | None = None
    """Where to compute: cpu, cuda, cuda:1. Default: a GPU if there is one."""
    log: tuple[str, ...] = ()
    """Also send metrics to these libraries, if installed: tensorboard, wandb."""
    change_schedule: bool = False
    """When resuming, accept new values for the learning rate, its schedule, weight decay and, in pretrain, betas and
    clip."""
    json: bool = False
    """Print the last line of metrics as JSON."""


def supervise(
    flags: TrainingFlags, spec: "RunSpec", recipe: Callable[["World"], "Recipe"], *, words: Words, loading: str
) -> int:
    """Train, and print where the model is; only the first process prints.

    Args:
        flags: what was asked for.
        spec: what to train.
        recipe: makes the recipe, or raises ValueError for what cannot be.
        words: writes a line of metrics.
        loading: how the model is loaded.
    """
    from harmax.train.loggers import check_loggers
    from harmax.train.world import joined

    with ExitStack() as stack:
        with checking_usage():
            check_folder(flags.output, "--output")
            check_loggers(flags.log)
            world = stack.enter_context(joined(spec, flags.device))
        return _train(flags, recipe, world, words, loading)  # the model is gone before the processes part


def _train(
    flags: TrainingFlags, recipe: Callable[["World"], "Recipe"], world: "World", words: Words, loading: str
) -> int:
    from harmax.train.loggers import LOGGERS
    from harmax.train.loop import Training

    with checking_usage():
        try:
            training = Training(recipe(world), flags.output, change_schedule=flags.change_schedule)
        except FileNotFoundError as error:  # of a data set, whose message names the files that are needed
            raise UsageError(str(error)) from error
    takers: list[Callable[[dict[str, Any]], None]] = []
    with ExitStack() as stack:
        if world.leads:
            for caution in training.cautions:
                _say(f"harmax: {caution}")
            takers.append(stack.enter_context(showing_steps(words, training.steps, training.step)))
            for name in flags.log:
                logger = LOGGERS[name](training.recipe.spec, flags.output, training.step)
                stack.callback(logger.close)
                takers.append(logger)
        try:
            record = training.run(lambda record: [take(record) for take in takers])
        except KeyboardInterrupt:
            return _stop(f"stopped; the same command resumes after step {training.saved}.", world, 130)
        except FloatingPointError as error:
            return _stop(str(error), world, 1)
        except MemoryError as error:  # of this process alone; the others hear of it from torchrun
            _say(f"harmax: {error}")
            return 1
    if world.leads:
        model = flags.output / "model"
        if flags.json:
            print_json({**record, "folder": str(flags.output), "model": str(model)})
        else:
            _say(loading)
            print(model)
    return 0


def _stop(words: str, world: "World", status: int) -> int:
    if world.leads:
        _say(f"harmax: {words}")
    return status


def _say(words: str) -> None:
    """Print to standard error; if its reader is gone (`| head`), training is worth more than words about it."""
    try:
        print(words, file=sys.stderr, flush=True)
    except BrokenPipeError:
        silence(sys.stderr)


def time_left(seconds: float) -> str:
    """Write a duration.

    >>> time_left(3700.0)
    '1:01:40 left'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02} left"


@dataclass(frozen=True)
class ShowSteps:
    """Shows lines of metrics on standard error: on a terminal one line that changes, elsewhere one after another."""

    words: Words
    steps: int
    live: Live | None

    def __call__(self, record: dict[str, Any]) -> None:
        """Show one line of metrics."""
        words = self.words(record, self.steps)
        if self.live is None:
            _say(words)
        else:
            self.live.update(Text(words, no_wrap=True, overflow="ellipsis"))


@contextmanager
def showing_steps(words: Words, steps: int, done: int) -> Iterator[ShowSteps]:
    """Say where a run resumes, and keep the line on a terminal alive while it trains."""
    if done:
        _say(f"resuming after step {done}")
    console = Console(stderr=True)
    with Live(console=console, transient=False) if console.is_terminal else nullcontext() as live:
        yield ShowSteps(words, steps, live)
