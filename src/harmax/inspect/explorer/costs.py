"""Measured times and memory of head and loss, from the rows of `benchmarks/results`, which the wheel brings along."""

import json
from collections.abc import Iterator
from pathlib import Path

from harmax.errors import DamagedError
from harmax.inspect.explorer.document import CostRow

MEASURED = ("loss-cuda.jsonl", "loss-cpu.jsonl", "loss-cpu-1-thread.jsonl")


def rows_folder() -> Path | None:
    """Return the folder with measured rows: inside an installed package, or of the checkout."""
    here = Path(__file__).parent
    # A wheel has a copy beside this file; an editable installation reads the original.
    places = (here / "measured", here.parents[3] / "benchmarks/results")
    return next((place for place in places if (place / MEASURED[0]).is_file()), None)


def measured_costs() -> list[CostRow]:
    """Return every measured row of head and loss; none where the package has no rows."""
    folder = rows_folder()
    return [] if folder is None else [row for name in MEASURED for row in _read(folder / name)]


def _read(path: Path) -> Iterator[CostRow]:
    try:
        for line in path.read_text().splitlines():
            row = json.loads(line)
            place = (
                f"{row['gpu']}, {row['dtype']}" if "gpu" in row else f"CPU, {_threads(row['threads'])}, {row['dtype']}"
            )
            yield CostRow(
                impl=row["impl"],
                place=place,
                tokens=row["tokens"],
                features=row["features"],
                classes=row["classes"],
                dtype=row["dtype"],
                ms=row["ms_p50"],
                mib=row["peak_mib"],
                gradients_mib=row["gradients_mib"],
            )
    except (OSError, ValueError, KeyError) as error:
        raise DamagedError(
            f"{path} must hold measured rows, but cannot be read: {error!r}; install harmax again."
        ) from None


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count != 1)}"
