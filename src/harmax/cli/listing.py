"""`harmax list`: which experiments there are."""

from dataclasses import dataclass

from harmax.cli.usage import print_json
from harmax.experiments import EXPERIMENTS


@dataclass(frozen=True)
class List:
    """List the experiments: name, place in the paper, title, and whose runs it reads if it trains nothing itself."""

    json: bool = False
    """Print one JSON array instead, with claims and sizes."""

    def __call__(self) -> int:
        """Print the list."""
        if self.json:
            print_json(
                [
                    {
                        "name": experiment.name,
                        "figure": experiment.figure,
                        "title": experiment.title,
                        "claims": {claim.id: claim.statement for claim in experiment.claims},
                        "source": experiment.source and experiment.source.name,
                        "cells": {profile: len(experiment.cells(s)) for profile, s in experiment.profiles.items()},
                    }
                    for experiment in EXPERIMENTS.values()
                ]
            )
            return 0
        width = max(map(len, EXPERIMENTS), default=0)
        place = max((len(experiment.figure) for experiment in EXPERIMENTS.values()), default=0)
        for experiment in EXPERIMENTS.values():
            source = f" (reads {experiment.source.name})" if experiment.source else ""
            print(f"{experiment.name:<{width}}  {experiment.figure:<{place}}  {experiment.title}{source}")
        return 0
