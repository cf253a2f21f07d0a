"""Options of a benchmark."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BenchOptions:
    """Settings that every benchmark takes."""

    smoke: bool = False
    """Use tiny sizes, only to test that the benchmark runs."""
    device: str = "cpu"
    """Device to measure on."""
    threads: int | None = None
    """CPU threads; None means one for ensembles and torch's default for the others."""
    repeats: int = 9
    """Timed steps per subject. Subjects take turns, so that noise affects all of them equally."""
