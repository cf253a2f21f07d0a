"""The time that `import harmax` adds to `import torch`."""

import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from harmax.bench.options import BenchOptions

_PROGRAM = """
import time, torch
start = time.perf_counter()
import harmax
print(1e3 * (time.perf_counter() - start))
"""


def rows(options: BenchOptions) -> Iterator[dict[str, Any]]:
    """Time that `import harmax` adds to `import torch`.

    One row, with one fresh process per measurement.
    """
    count = 2 if options.smoke else options.repeats
    times = [float(subprocess.check_output([sys.executable, "-c", _PROGRAM])) for _ in range(count)]
    yield {"module": "harmax", "after": "torch", "ms_p50": statistics.median(times), "ms_max": max(times)}
