"""Ctrl-C that takes effect at the end of a step."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """A context manager in which the first SIGINT or SIGTERM only sets `wanted`; the next one acts as usual.

    Args:
        patient: whether later signals do nothing more either. torchrun repeats signals that its processes have
            received themselves, and kills processes that take too long.

    >>> with Interrupts() as interrupts:
    ...     signal.raise_signal(signal.SIGINT)
    ...     interrupts.wanted
    True
    """

    def __init__(self, *, patient: bool = False) -> None:
        self.wanted, self._patient = False, patient
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():  # handlers can be set nowhere else
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.wanted = True
        if not self._patient:
            self._restore()

    def _restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)
