"""Hundreds of small models trained as one: `Ensemble` holds them, `fit` trains them.

stack.py stacks parameters. step.py has the mathematics of a step, and trace.py turns it into a graph. batches.py
shuffles. trainer.py runs epochs on a device. parts.py splits what does not fit into memory. fit.py trains one ensemble
or several, worker.py does so in other processes. rows.py is a plain loop for models that are smaller still.

The specification is `lab/tests/ensemble/plain.py`: it trains one run, one step after the other.
"""

from harmax_lab.ensemble.fit import fit, fit_all
from harmax_lab.ensemble.parts import Job
from harmax_lab.ensemble.plan import History, Plan
from harmax_lab.ensemble.stack import Ensemble

__all__ = ["Ensemble", "History", "Job", "Plan", "fit", "fit_all"]
