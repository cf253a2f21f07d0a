"""`harmax bench`: measure, print and store the rows of a benchmark."""

import inspect
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from harmax.bench import BenchOptions, all_benchmarks, describe_benchmarks
from harmax.cli.usage import UsageError, print_json
from harmax.errors import unknown
from harmax.files import to_json, write_atomically


@dataclass(frozen=True)
class Bench:
    """Run a benchmark and store its rows in benchmarks/results; a smoke test stores nothing.

    harmax bench loss

    harmax bench gpt2 --device cuda

    harmax bench import --smoke
    """

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """Name of a benchmark from the list above."""
    smoke: bool = False
    """Only test that the benchmark runs: tiny shapes, and nothing is stored."""
    device: str = "cpu"
    """Device to measure on: cpu, cuda, cuda:1."""
    threads: int | None = None
    """CPU threads. Default: chosen by the benchmark (one for `ensemble`, all for the others)."""
    repeats: int = 9
    """Measurements per row."""
    output: Path | None = None
    """File for the rows. Default: benchmarks/results/NAME-DEVICE.jsonl."""
    json: bool = False
    """Print one JSON object per row, as soon as it is measured."""

    def __call__(self) -> int:
        """Measure, print and store the rows."""
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
            raise UsageError(f"`--repeats` must be at least 1, got {self.repeats}; leave it out for 9.")
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"`--threads` must be at least 1, got {self.threads}; leave it out for the default.")
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(
                f"`--device` must name a device of this machine, got {self.device!r} ({reason}); `harmax doctor` lists "
                "the devices."
            ) from None


# tyro prints this docstring as help. A blank line keeps each benchmark on a line of its own.
Bench.__doc__ = "\n\n".join([inspect.getdoc(Bench) or "", *map(": ".join, describe_benchmarks().items())])


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows as a table. Columns with the same value in every row are printed once, below the table."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    same = [
        column for column in columns if len(rows) > 1 and all(row.get(column) == rows[0].get(column) for row in rows)
    ]
    table = Table(*(column for column in columns if column not in same), title=title)
    for row in rows:
        table.add_row(*(_entry(row, column) for column in columns if column not in same))
    # A pipe has no width, and a narrow table would cut off numbers.
    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(table)
    if same:
        console.print(", ".join(f"{column} {_entry(rows[0], column)}" for column in same))


def _entry(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column, "")
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)
