"""The command line of the trials; see the package's docstring."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from torture.table import Line, Trial, append, as_text, next_seed, read, tally

TABLE = Path("benchmarks") / "results" / "torture.jsonl"


def main(words: Sequence[str] | None = None) -> int:
    """Run trials and print the table of all of them; the exit status is 1 where a case of this call failed."""
    if "draws-gpu" not in (sys.argv if words is None else words):
        os.environ["TRITON_INTERPRET"] = "1"  # which counts only until Triton is imported, as the next line does
    from torture.trials import TRIALS

    reader = argparse.ArgumentParser(prog="make torture", description=__doc__)
    about = "; ".join(f"{name}: {trial.about}" for name, trial in TRIALS.items())
    reader.add_argument("trials", nargs="*", metavar="TRIAL", help=f"which, in turn; none: all but draws-gpu. {about}.")
    reader.add_argument("--seed", type=int, help="the first case; without it, what follows the cases of the table")
    reader.add_argument("--count", type=int, help="cases per trial")
    reader.add_argument("--minutes", type=float, help="per trial; 1 if neither this nor --count is given")
    reader.add_argument("--table", type=Path, default=TABLE, help="the file of all that was tried")
    reader.add_argument("--show", action="store_true", help="print the table and do nothing")
    given = reader.parse_args(words)
    unknown = [name for name in given.trials if name not in TRIALS]
    if unknown:
        reader.error(f"TRIAL must be one of {', '.join(TRIALS)}, got {unknown[0]!r}.")
    failures = 0
    if not given.show:
        minutes = 1.0 if given.minutes is None and given.count is None else given.minutes
        for name in given.trials or [name for name in TRIALS if name != "draws-gpu"]:
            failures += run(name, TRIALS[name], given.table, given.seed, given.count, minutes)
    print(as_text(tally(read(given.table)), TRIALS))
    return int(failures > 0)


def run(name: str, trial: Trial, table: Path, seed: int | None, count: int | None, minutes: float | None) -> int:
    """Try cases until their number or the time is used up; return how many failed."""
    first = next_seed(read(table), name) if seed is None else seed
    until = None if minutes is None else time.monotonic() + 60 * minutes
    done, failures = 0, 0
    while (count is None or done < count) and (until is None or time.monotonic() < until):
        cases = trial.batch if count is None else min(trial.batch, count - done)
        begun = sum(os.times()[:4])
        line = Line(name, first + done, cases, cases * trial.calls, {}, 0.0)
        for one in range(line.seed, line.seed + cases):
            if (words := trial.case(one)) is not None:
                line.failed[str(one)] = words
                print(f"{name}, seed {one}: {words}", file=sys.stderr, flush=True)
        append(table, line._replace(seconds=round(sum(os.times()[:4]) - begun, 1)))
        done, failures = done + cases, failures + len(line.failed)
    return failures


if __name__ == "__main__":
    sys.exit(main())
