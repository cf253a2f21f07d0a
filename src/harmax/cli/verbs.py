"""The verbs of the command line, in the order of the help."""

from collections.abc import Callable
from typing import Any

from harmax.cli.analyze import Analyze
from harmax.cli.bench import Bench
from harmax.cli.data import PrepareData
from harmax.cli.doctor import Doctor
from harmax.cli.geometry import Geometry
from harmax.cli.listing import List
from harmax.cli.pretrain import Pretrain
from harmax.cli.report import WriteReport
from harmax.cli.run import Reproduce, RunExperiment
from harmax.cli.usage import UsageError
from harmax.cli.vision import Vision

VERBS: dict[str, Callable[..., Any]] = {
    "list": List,
    "run": RunExperiment,
    "reproduce": Reproduce,
    "analyze": Analyze,
    "geometry": Geometry,
    "report": WriteReport,
    "data": PrepareData,
    "pretrain": Pretrain,
    "vision": Vision,
    "bench": Bench,
    "doctor": Doctor,
}

__all__ = ["VERBS", "UsageError"]
