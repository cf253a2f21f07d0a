"""`harmax list`: which experiments there are."""

import sys
from dataclasses import dataclass
from typing import Any

from harmax.cli.usage import print_json
from harmax_lab.experiments import EXPERIMENTS
from harmax_lab.kit.experiment import Experiment


@dataclass(frozen=True)
class List:
    """List the experiments: name, place in the paper, title, and whose runs it reads if it trains nothing itself."""

    json: bool = False
    """Print one JSON array instead, with claims and sizes."""

    def __call__(self) -> int:
        """Print the list."""
        if self.json:
            problems: set[str] = set()
            print_json(
                [
                    {
                        "name": experiment.name,
                        "figure": experiment.figure,
                        "title": experiment.title,
                        "claims": {claim.id: claim.statement for claim in experiment.claims},
                        "source": experiment.source and experiment.source.name,
                        "cells": count_cells(experiment, problems),
                    }
                    for experiment in EXPERIMENTS.values()
                ]
            )
            for problem in sorted(problems):
                print(f"harmax: {problem}", file=sys.stderr)
            return 0
        width = max(map(len, EXPERIMENTS), default=0)
        place = max((len(experiment.figure) for experiment in EXPERIMENTS.values()), default=0)
        for experiment in EXPERIMENTS.values():
            source = f" (reads {experiment.source.name})" if experiment.source else ""
            print(f"{experiment.name:<{width}}  {experiment.figure:<{place}}  {experiment.title}{source}")
        return 0


def count_cells(experiment: Experiment[Any, Any], problems: set[str]) -> dict[str, int | None]:
    """Count the cells of every profile; None, and a problem, where nobody can say which data sets are there."""
    counts: dict[str, int | None] = {}
    for profile in experiment.profiles:
        try:
            counts[profile] = len(experiment.work.cells(experiment.profiles[profile]))
        except ValueError as error:
            counts[profile] = None
            problems.add(str(error))
    return counts
