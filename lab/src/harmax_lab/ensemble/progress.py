"""Progress messages: what is done, how accurate the runs are, and the time that is left."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from harmax_lab.ensemble.parts import Job, Status

ReportProgress = Callable[[float, str], None]
Look = Callable[[int, Status], None]
BARS = "▁▂▃▄▅▆▇█"


def accuracy_bars(accuracy: Sequence[float] | np.ndarray, most: int = 40) -> str:
    """Draw one bar per run, higher for a higher accuracy. Of many runs draw evenly spaced ones of the sorted list.

    >>> accuracy_bars([0.0, 0.5, 1.0])
    '▁▄█'
    """
    values = np.nan_to_num(np.asarray(accuracy, dtype=float))
    if len(values) > most:
        values = np.sort(values)[np.linspace(0, len(values) - 1, most).astype(int)]
    return "".join(BARS[min(7, int(value * 7.999))] for value in values)


class Progress:
    """Reports the progress of all jobs together."""

    def __init__(self, jobs: Sequence[Job], report: ReportProgress | None, look: Look | None = None) -> None:
        self.report, self.look, self.looks = report, look, look is not None
        self.weights = [len(job.ensemble) * job.plan.longest for job in jobs]
        self.done = [0.0] * len(jobs)
        self.start: tuple[float, float] | None = None

    def __call__(self, number: int, status: Status) -> None:
        """Report the progress of one job."""
        if self.look is not None:
            self.look(number, status)
        self.done[number] = self.weights[number] * status.done
        fraction = sum(self.done) / sum(self.weights)
        now = time.monotonic()
        # Earlier work and compilation must not count for the time that is left.
        if self.start is None:
            self.start = (now, fraction)
        if self.report is None or not len(status.accuracy):
            return
        since, before = self.start
        left = ""
        if fraction > before:
            left = f", {_duration((now - since) / (fraction - before) * (1 - fraction))} left"
        known = status.accuracy[np.isfinite(status.accuracy)]
        median = f" median {np.median(known):.2f}" if len(known) else ""
        self.report(
            fraction,
            f"epoch {status.epoch} of {status.epochs}, test accuracy {accuracy_bars(status.accuracy)}{median}{left}",
        )


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
