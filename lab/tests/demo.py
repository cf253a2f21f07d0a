"""A small experiment that notes what it computes, for tests of what runs experiments."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.experiment import Cell, Context, Experiment, Spec, Work
from harmax_lab.kit.results import Results
from harmax_lab.kit.store import CellResult


@dataclass(frozen=True, kw_only=True)
class DemoSpec(Spec):
    groups: tuple[str, ...] = ("a", "b")
    scale: float = 1.0


@dataclass(frozen=True)
class DemoCell(Cell):
    group: str
    seed: int


Hook = Callable[[DemoCell], None]


def demo(calls: list[str], hook: Hook = lambda cell: None) -> Experiment[DemoSpec, DemoCell]:
    """An experiment that notes each cell it computes and lets a test fail or interrupt one."""

    def run_cells(spec: DemoSpec, cells: Sequence[DemoCell], context: Context) -> Iterator[tuple[DemoCell, CellResult]]:
        for index, cell in enumerate(cells):
            hook(cell)
            calls.append(cell.name)
            context(index / len(cells))
            generator = np.random.default_rng(cell.seed)
            yield cell, CellResult(arrays={"x": spec.scale * generator.normal(size=4)}, metrics={"seed": cell.seed})

    def judge(results: Results[DemoSpec, DemoCell]) -> Finding:
        return Finding(None, f"{len(results)} cells", {"cells": len(results)})

    return Experiment(
        name="demo",
        title="Demo",
        figure="Fig. 0",
        claims=(Claim("finished", "It finishes.", "Nothing.", judge=judge),),
        profiles={"smoke": DemoSpec(scale=0.1), "quick": DemoSpec(seeds=(0, 1)), "full": DemoSpec(seeds=(0, 1, 2))},
        work=Work(
            lambda spec: [DemoCell(group, seed) for group in spec.groups for seed in spec.seeds],
            run_cells,
            group=lambda cell: cell.group,
        ),
    )
