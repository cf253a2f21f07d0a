"""A small experiment that the tests of reports run, draw and publish."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from harmax.figures import Picture
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.experiment import Cell, Experiment, Spec, Work
from harmax_lab.kit.results import Results
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table


@dataclass(frozen=True, kw_only=True)
class DemoSpec(Spec):
    level: int = 0
    fail: bool = False


@dataclass(frozen=True)
class DemoCell(Cell):
    seed: int


def compute(spec: DemoSpec, cells: Any, progress: Any) -> Any:
    for cell in cells:
        if spec.fail and cell.seed == 1:
            raise RuntimeError("cell <one> broke")
        yield cell, CellResult(curves={"y": np.arange(4.0) + cell.seed})


def judge(results: Results[DemoSpec, DemoCell]) -> Finding:
    return Finding(True, f"level {results.spec.level}", {})


def draw(results: Results[DemoSpec, DemoCell]) -> dict[str, Picture]:
    figure = drawing.new_figure(3, 2)
    axes = figure.subplots()
    for result in results.values():
        axes.plot(result.curves["y"])
    return {"demo_figure": Picture(figure, "A line a seed.")}


DEMO = Experiment(
    name="demo",
    title="Demo of a < b",
    figure="Fig. 0",
    claims=(
        Claim("smaller", "a < b & c", "The paper says 1.", sentences=("3.2/6",), judge=judge, seeds=2),
        Claim("checked", "Still true without d.", judge=judge, seeds=2),
    ),
    profiles={"smoke": DemoSpec(), "quick": DemoSpec(seeds=(0, 1), level=1), "full": DemoSpec(seeds=(0, 1), level=2)},
    work=Work(lambda spec: [DemoCell(seed) for seed in spec.seeds], compute),
    tables=lambda results: [Table("Numbers", ({"name": "x", "value": 1.23456e-7},))],
    figures=draw,
)
