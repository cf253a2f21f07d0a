"""`harmax report`: the report from the runs that are there."""

import sys
from dataclasses import dataclass
from pathlib import Path

from harmax.cli.usage import UsageError, checking_usage, print_json
from harmax_lab.experiments import all_experiments
from harmax_lab.kit.store import open_runs
from harmax_lab.report import write_report

RUNS = Path("runs")
NO_RUNS = "harmax: there is no folder runs, so the report shows published results only; `harmax run NAME` makes a run."


@dataclass(frozen=True)
class WriteReport:
    """Write one self-contained HTML file: the published verdicts, and beside them the runs that are there."""

    folder: Path = RUNS
    """Where run folders live."""
    output: Path | None = None
    """The file to write; report.html in the folder if left out."""
    json: bool = False
    """Print path, verdicts and damaged folders as JSON."""

    def __call__(self) -> int:
        """Write the report."""
        with checking_usage():
            if self.folder == RUNS and not self.folder.exists():
                print(NO_RUNS, file=sys.stderr)
                self.folder.mkdir()
            open_runs(self.folder)
        if self.output is not None and self.output.is_dir():
            raise UsageError(f"`--output` must be a file, got the folder {str(self.output)!r}; add a name to it.")
        report = write_report(all_experiments().values(), self.folder, self.output)
        for damage in report.damaged:
            print(f"harmax: left out: {damage}", file=sys.stderr)
        if self.json:
            print_json(report.to_dict())
        else:
            print(report.path)
        return 0
