"""Hundreds of small models trained as one: `Ensemble` holds them, `fit` trains them.

stack.py puts parameters together, step.py has the mathematics, trace.py turns it into a graph, batches.py shuffles,
trainer.py runs epochs on a device, parts.py cuts what is too large, fit.py trains one ensemble or several side by side,
worker.py uses the other cores. plain.py is the specification: one run, one step after the other.
"""

from harmax_lab.ensemble.fit import fit, fit_all
from harmax_lab.ensemble.parts import Job
from harmax_lab.ensemble.plan import History, Plan
from harmax_lab.ensemble.stack import Ensemble

__all__ = ["Ensemble", "History", "Job", "Plan", "fit", "fit_all"]
