"""`harmax bench`: measure, show, and keep the rows."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from harmax.cli.usage import UsageError, print_json
from harmax.errors import unknown
from harmax.files import to_json, write_atomically


@dataclass(frozen=True)
class Bench:
    """Run a benchmark; its rows go to benchmarks/results unless it is only a smoke test."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """A benchmark, for example `loss`."""
    smoke: bool = False
    """Tiny shapes, nothing kept: does it run?"""
    device: str = "cpu"
    """Where to measure: cpu, cuda, cuda:1."""
    threads: int | None = None
    """CPU threads; if left out the benchmark's own choice: all of them for `loss`, one for `ensemble`."""
    repeats: int = 9
    """Measurements a row."""
    output: Path | None = None
    """The file of rows; benchmarks/results/NAME-DEVICE.jsonl if left out."""
    json: bool = False
    """Print one JSON object a row, as soon as it is measured."""

    def __call__(self) -> int:
        """Measure, print and keep the rows."""
        from harmax.bench import BenchOptions, all_benchmarks

        benchmarks = all_benchmarks()
        if self.name not in benchmarks:
            raise UsageError(unknown("benchmark", self.name, benchmarks))
        self._check()
        output = self.output or Path("benchmarks/results") / f"{self.name}-{self.device.replace(':', '')}.jsonl"
        options = BenchOptions(smoke=self.smoke, device=self.device, threads=self.threads, repeats=self.repeats)
        progress = Console(stderr=True)
        rows: list[dict[str, Any]] = []
        with progress.status(f"measuring {self.name} on {self.device}"):
            for row in benchmarks[self.name](options):
                rows.append(row)
                if self.json:
                    print_json(row)
        if not self.json:
            show(self.name, rows)
        if not self.smoke:
            write_atomically(output, "".join(to_json(row) + "\n" for row in rows).encode())
            progress.print(f"rows written to {output}")
        return 0

    def _check(self) -> None:
        import torch

        if self.repeats < 1:
            raise UsageError(f"`--repeats` must be at least 1, got {self.repeats}.")
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"`--threads` must be at least 1, got {self.threads}; leave it out for all of them.")
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"`--device` must name a device of this machine, got {self.device!r}: {reason}") from None


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows as a table; what is the same in every row stands once, below it."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    same = [
        column for column in columns if len(rows) > 1 and all(row.get(column) == rows[0].get(column) for row in rows)
    ]
    table = Table(*(column for column in columns if column not in same), title=title)
    for row in rows:
        table.add_row(*(_entry(row, column) for column in columns if column not in same))
    # A pipe has no width of its own, and a narrower table would lose its numbers.
    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(table)
    if same:
        console.print(", ".join(f"{column} {_entry(rows[0], column)}" for column in same))


def _entry(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column, "")
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)
