"""What `harmax explore` shows of the laboratory: trainings of the algorithmic tasks, and the paper's verdicts."""

from harmax.inspect.explorer.parts import ExplorerOptions, ExplorerParts
from harmax_lab.explorer.verdicts import published_verdicts


def published_parts(options: ExplorerOptions) -> ExplorerParts:
    """Return the published verdicts, which need no runs."""
    return ExplorerParts(verdicts=published_verdicts(pictures=options.pictures))
