"""The paper as runnable experiments: one file a figure or table, one line here."""

from typing import Any

from harmax.experiments import theory, toy_cases
from harmax.experiments.spec import Experiment

EXPERIMENTS: dict[str, Experiment[Any, Any]] = {
    "toy_cases": toy_cases.EXPERIMENT,
    "theory": theory.EXPERIMENT,
}

__all__ = ["EXPERIMENTS"]
