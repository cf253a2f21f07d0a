"""What every engine does with results: store each cell when it is finished, count it, and report progress."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from harmax_lab.kit.experiment import Cell, Experiment, Spec
from harmax_lab.kit.reservations import Reservations
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.writer import RunWriter

S = TypeVar("S", bound=Spec)
C = TypeVar("C", bound=Cell)


@dataclass(frozen=True)
class Event:
    """Progress of a run: numbers of finished, failed and all cells, the fraction that is done, and a short message."""

    experiment: str
    done: int
    failed: int
    total: int
    fraction: float
    message: str


class Ledger(Generic[S, C]):
    """The state of a run while an engine works on it.

    Args:
        experiment: what is run.
        spec: its settings.
        run: where results are stored.
        names: the cells to run.
        reservations: of this process in the run folder.
        progress: called with an `Event` whenever something is done.
    """

    def __init__(
        self,
        experiment: Experiment[S, C],
        spec: S,
        run: RunWriter,
        names: Collection[str],
        reservations: Reservations,
        progress: Callable[[Event], None],
    ) -> None:
        self.experiment, self.spec, self.run, self._progress = experiment, spec, run, progress
        self.reservations = reservations
        everything = experiment.work.cells(spec)
        self.groups = experiment.work.groups(cell for cell in everything if cell.name in names)
        """Cells to run that are to be computed together."""
        whole = experiment.work.groups(everything)
        self._members = {self._key(group): {cell.name for cell in group} for group in whole}
        self.done, self.failed = len(run.done), 0
        self._settled, self._total = self.done, self.done + len(names)
        self._open: list[Part[C]] = []
        self.tried: set[str] = set()
        """Cells that this process has begun to compute."""

    def _key(self, cells: Sequence[C]) -> str:
        return repr(self.experiment.work.group(cells[0]))

    def open(self, cells: Sequence[C]) -> "Part[C] | None":
        """Reserve those cells of one group that no other process computes or has finished. None if there is none.

        The cells are in the part's `cells`.
        """
        free = set(self.reservations.take([cell.name for cell in cells]))
        cells = [cell for cell in cells if cell.name in free and not self.run.is_written(cell.name)]
        self.tried |= {cell.name for cell in cells}
        if not cells:
            return None
        key = self._key(cells)
        part = Part(self, cells, key, others=self._members[key] - {cell.name for cell in cells})
        self._open.append(part)
        self.report(cells[0].name)
        return part

    def settle(self, part: "Part[C]") -> None:
        """Count a part whose cells have all finished or failed."""
        self._open.remove(part)
        self._settled += part.size
        self.report("")

    def report(self, message: str) -> None:
        """Report the progress of the run."""
        within = sum(part.fraction * part.size for part in self._open)
        fraction = min(1.0, (self._settled + within) / self._total) if self._total else 1.0
        self._progress(Event(self.experiment.name, self.done, self.failed, self._total, fraction, message))


class Part(Generic[C]):
    """Cells of one group that are computed together. End the part with `close` or `fail`."""

    def __init__(self, ledger: Ledger[S, C], cells: Sequence[C], key: str, *, others: set[str]) -> None:
        self.ledger, self.cells, self._key, self._others = ledger, cells, key, others
        self._missing, self._name = {cell.name for cell in cells}, cells[0].name
        self.size, self.fraction = len(cells), 0.0
        self.scratch = ledger.run.partial(key)
        """The folder for partial state, which all parts of a group share."""

    @property
    def left(self) -> list[C]:
        """The cells without a result."""
        return [cell for cell in self.cells if cell.name in self._missing]

    def report(self, fraction: float, message: str = "", /) -> None:
        """Report the progress of these cells."""
        self.fraction = fraction
        self.ledger.report(message or self._name)

    def store(self, name: str, result: CellResult, seconds: float) -> None:
        """Store one cell."""
        self.ledger.run.write(name, result, seconds=seconds)
        self._missing.discard(name)
        self.ledger.done += 1

    def close(self) -> None:
        """End the part. A cell without a result has failed."""
        if self._missing:
            name = self.ledger.experiment.name
            self.fail(f"RuntimeError: `{name}` gave no result for the cells {sorted(self._missing)}.")
            return
        # Another part, call or process may still have to compute cells of the group.
        if not (self._others and self._others & set(self.ledger.run.pending)):
            self.ledger.run.drop_partial(self._key)
        self.ledger.settle(self)

    def fail(self, error: str) -> None:
        """End the part with an error. Its cells without a result have failed."""
        for name in sorted(self._missing):
            self.ledger.run.fail(name, error)
            self.ledger.failed += 1
        self.ledger.settle(self)


class Stopwatch:
    """Measures seconds per cell. The time of cells that are computed together counts for the first of them."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def __call__(self) -> float:
        """Return the seconds since the last call."""
        before, self._since = self._since, time.perf_counter()
        return self._since - before
