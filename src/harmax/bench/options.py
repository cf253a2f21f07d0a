"""What a benchmark is told."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BenchOptions:
    """Settings that every benchmark takes."""

    smoke: bool = False
    """Tiny sizes: does it run, not how fast."""
    device: str = "cpu"
    """Where to measure."""
    threads: int | None = None
    """CPU threads; None: one for ensembles, else torch's own choice."""
    repeats: int = 9
    """Timed steps of each subject, taken in turn so that noise falls on all alike."""
