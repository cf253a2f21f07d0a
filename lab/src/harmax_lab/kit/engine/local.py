"""The engine that needs nothing else: cells run in this process, one group after the other."""

import traceback
from collections.abc import Callable, Collection

from harmax.environment import environment
from harmax_lab.kit.engine.ledger import C, Event, Ledger, S, Stopwatch
from harmax_lab.kit.experiment import Context, Experiment
from harmax_lab.kit.writer import RunWriter


def execute(
    experiment: Experiment[S, C],
    spec: S,
    run: RunWriter,
    names: Collection[str],
    *,
    device: str,
    progress: Callable[[Event], None],
) -> None:
    """Run the named cells. A failure is recorded and the others continue. An interrupt keeps what is finished."""
    run.add_environment(environment(device))
    ledger = Ledger(experiment, spec, run, names, progress)
    for group in ledger.groups:
        part, seconds = ledger.open(group), Stopwatch()
        try:
            for cell, result in experiment.run_cells(spec, group, Context(part.scratch, device, part.report)):
                part.store(cell.name, result, seconds())
        except Exception:
            part.fail(traceback.format_exc())
        else:
            part.close()
