"""`harmax watch`: train a task with either loss, and see what the models make of its tokens."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.live import Live
from rich.table import Table

from harmax.analysis import project
from harmax.cli.usage import checking_usage
from harmax.environment import choose_device, cores
from harmax.errors import unknown
from harmax.figures import house_style
from harmax.files import write_atomically
from harmax.inspect.explorer.assemble import assemble
from harmax.inspect.explorer.document import GrownRun
from harmax.inspect.explorer.page import page_of
from harmax.inspect.explorer.parts import ExplorerOptions, ExplorerParts
from harmax_lab.algorithmic import anchors, measures
from harmax_lab.algorithmic.film import PAGE, TITLES, check_output, draw_frames, frames_of, write_film
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.algorithmic.watch import TRAIN_FRACTION, Arm, Glance, Watched, describe_runs, train
from harmax_lab.explorer.growth import shown
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.text_plot import curve_in_line, labels_in_plane
from harmax_lab.models import MODELS
from harmax_lab.tasks import PROTOCOLS, TASKS, Task

LINE_EVERY = 5.0  # seconds between lines without a terminal


@dataclass(frozen=True)
class Watch:
    """Train a task with standard and harmonic loss, show the progress, and make a film of what the models learn.

    Each side of the film shows the median run of its loss. Runs are sorted by the epoch at which their test accuracy
    passes 0.9 for 20 epochs in a row. A run that never passes counts as last.
    """

    task: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TASK")]
    """modular_addition, lattice, equivalence, genealogy or permutation."""
    output: Path | None = None
    """The film: a .gif, an .mp4 (with ffmpeg), or a .png of the last frame. An .html is an explorer page with every
    run instead. Default: TASK.gif here."""
    runs: int = anchors.RUNS
    """Runs of each loss, with the first of the authors' 20 seeds. They train as one, so that 20 take little longer
    than one."""
    epochs: int = 1500
    """Epochs of each run."""
    protocol: str = "matched"
    """matched: both models alike and no leak. authors: as in the authors' code."""
    model: str = "mlp"
    """mlp or transformer. A transformer takes many times as long; use it with few --epochs, or on a GPU."""
    device: str | None = None
    """Where to train: cpu, cuda, cuda:1. Default: cpu, which is fast enough for an mlp."""

    def __call__(self) -> int:
        """Train, show, and write the film; its path is printed last."""
        output = self.output or Path(f"{self.task}.gif")
        with checking_usage():
            self._check(output)
            device = choose_device(self.device or "cpu")
        with Progress() as progress:
            task, watched = train(
                self.task,
                seeds=anchors.SEEDS[: self.runs],
                epochs=self.epochs,
                protocol=self.protocol,
                model=self.model,
                device=device,
                workers=min(2, cores()) if device == "cpu" else 1,
                look=progress,
            )
        for side in watched:
            print(f"{MODEL_STYLES[side.arm].label}: {side.sentence}")
        print_planes(task, watched)
        show(task, watched, output)
        return 0

    def _check(self, output: Path) -> None:
        for name, value, known in (
            ("TASK", self.task, TASKS),
            ("--protocol", self.protocol, PROTOCOLS),
            ("--model", self.model, MODELS),
        ):
            if value not in known:
                raise ValueError(unknown(name, value, known))
        if not 1 <= self.runs <= anchors.RUNS:
            raise ValueError(f"`--runs` must be between 1 and {anchors.RUNS}, got {self.runs}; leave it out for all.")
        if self.epochs < 1:
            raise ValueError(f"`--epochs` must be at least 1, got {self.epochs}; 1500 is usual.")
        check_output(output)


def show(task: Task, watched: Sequence[Watched], output: Path) -> None:
    """Write a film of the median runs, or an explorer page of all runs; print its path."""
    if output.suffix.lower() == PAGE:
        own = ExplorerParts(growth=growth(task, watched))
        write_atomically(output, page_of(assemble(own, ExplorerOptions()).document).encode())
        print(output)
    else:
        film(task, watched, output, f"{task.protocol} protocol, {describe_runs(watched)}")


def growth(task: Task, watched: Sequence[Watched]) -> tuple[GrownRun, ...]:
    """Return all runs as the explorer shows them."""
    cells = {
        RunCell(task.protocol, task.name, *side.arm, TRAIN_FRACTION, seed): run
        for side in watched
        for seed, run in side.runs.items()
    }
    return tuple(shown(cell, run) for cell, run in cells.items())


def film(task: Task, watched: Sequence[Watched], output: Path, note: str) -> None:
    """Draw the median runs and write the film; print its path."""
    results = {side.arm: side.result for side in watched}
    count = len(frames_of(watched[0].result.arrays["snapshot_epoch"].tolist()))
    with checking_usage(), house_style():
        frames = draw_frames(task, results, note)
        print(f"drawing {count} frames", file=sys.stderr, flush=True)
        drawn = list(frames)
    write_film(output, drawn)
    print(output)


def print_planes(task: Task, watched: Sequence[Watched]) -> None:
    """Print the tokens of the median runs in the plane of two components, side by side."""
    sides = []
    for side in watched:
        end = measures.last_embedding(side.result)
        if end is not None:
            title = TITLES.get(side.arm[1], MODEL_STYLES[side.arm].label)
            sides.append([title, *labels_in_plane(project(end), [one.strip("()") for one in task.labels])])
    for row in zip(*sides, strict=True):
        print("   ".join(f"{line:<46}" for line in row).rstrip())


class Progress:
    """A context manager that shows the progress of the two trainings: live on a terminal, in lines elsewhere.

    >>> with Progress() as look:
    ...     pass
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, refresh_per_second=4) if self._console.is_terminal else None
        self._curves: dict[Arm, list[Glance]] = {}
        self._spoken = time.monotonic()

    def __enter__(self) -> "Progress":
        if self._live is not None:
            self._live.start()
            self._live.update("training; the first epochs take a few seconds to compile")
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, arm: Arm, glance: Glance) -> None:
        """Show where one training stands."""
        self._curves.setdefault(arm, []).append(glance)
        if self._live is not None:
            self._live.update(self._table())
            return
        now = time.monotonic()
        if now - self._spoken >= LINE_EVERY or glance.epoch == glance.epochs:
            self._spoken = now
            print(
                f"{MODEL_STYLES[arm].label}: epoch {glance.epoch} of {glance.epochs}, median test accuracy "
                f"{glance.accuracy:.2f}, {100 * glance.explained:.0f} % of the variance in two components",
                file=sys.stderr,
                flush=True,
            )

    def _table(self) -> Table:
        table = Table(
            "",
            "epoch",
            "test accuracy",
            "",
            "variance in two components",
            "",
            title="medians over the runs",
            title_justify="left",
        )
        for arm, glances in sorted(self._curves.items(), key=lambda entry: entry[0] != ("mlp", "linear")):
            last, label = glances[-1], MODEL_STYLES[arm]
            table.add_row(
                f"[{label.color}]{label.label}[/]",
                f"{last.epoch} of {last.epochs}",
                curve_in_line([one.accuracy for one in glances]),
                f"{last.accuracy:.2f}",
                curve_in_line([one.explained for one in glances]),
                f"{100 * last.explained:.0f} %",
            )
        return table
