"""The engine that needs nothing else: cells run in this process, one group after the other."""

import traceback

from harmax.environment import environment
from harmax_lab.kit.engine.ledger import C, Ledger, S, Stopwatch
from harmax_lab.kit.experiment import Context


def execute(ledger: Ledger[S, C], device: str) -> None:
    """Run cells. A failure is recorded and the other cells continue. An interrupt keeps what is finished."""
    ledger.run.add_environment(environment(device))
    for group in ledger.groups:
        part, seconds = ledger.open(group), Stopwatch()
        if part is None:
            continue
        context = Context(part.scratch, device, part.report)
        try:
            for cell, result in ledger.experiment.work.run_cells(ledger.spec, part.cells, context):
                part.store(cell.name, result, seconds())
        except Exception:
            part.fail(traceback.format_exc())
        else:
            part.close()
