"""`harmax list`: which experiments there are, and how long they take."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harmax.cli.usage import checking_usage, print_json
from harmax_lab.experiments import all_experiments
from harmax_lab.kit.durations import Duration, Key, durations
from harmax_lab.kit.experiment import PROFILES, Experiment
from harmax_lab.kit.store import readable_runs
from harmax_lab.kit.variants import changes_of, in_words

MARKS = "abcdefgh"


@dataclass(frozen=True)
class List:
    """List the experiments: name, place in the paper, measured times and title.

    An experiment that trains nothing itself also names the one whose runs it reads. Your own variants come last.
    """

    folder: Path = Path("runs")
    """Where run folders live. Times measured there are shown in place of those that come with the package."""
    json: bool = False
    """Print one JSON array instead, with claims, sizes and settings."""

    def __call__(self) -> int:
        """Print the list."""
        with checking_usage():
            known = all_experiments()
        times = durations(self.folder)
        own: dict[str, dict[str, None]] = {}
        for run in readable_runs(self.folder):
            if changes := changes_of(run):
                own.setdefault(run.experiment, {})[f"{in_words(changes)} ({run.profile})"] = None
        if self.json:
            problems: set[str] = set()
            print_json([_entry(one, times, list(own.get(one.name, {})), problems) for one in known.values()])
            for problem in sorted(problems):
                print(f"harmax: {problem}", file=sys.stderr)
            return 0
        _print(known, times, own)
        return 0


def _entry(
    experiment: Experiment[Any, Any], times: Mapping[Key, Duration], variants: list[str], problems: set[str]
) -> dict[str, Any]:
    known = {profile: times.get((experiment.name, profile)) for profile in PROFILES}
    return {
        "name": experiment.name,
        "figure": experiment.figure,
        "title": experiment.title,
        "claims": {claim.id: claim.statement for claim in experiment.claims},
        "source": experiment.source and experiment.source.name,
        "cells": count_cells(experiment, problems),
        "durations": {profile: one and one._asdict() for profile, one in known.items()},
        "variants": variants,
    }


def _print(
    known: Mapping[str, Experiment[Any, Any]], times: Mapping[Key, Duration], own: Mapping[str, Mapping[str, None]]
) -> None:
    used = [time for (name, _), time in times.items() if name in known]
    marks = dict(zip(dict.fromkeys(time.machine for time in used), MARKS, strict=False))
    width = max(map(len, known), default=0)
    place = max((len(experiment.figure) for experiment in known.values()), default=0)
    print(f"{'':<{width}}  {'':<{place}}  {'  '.join(f'{profile:>7}' for profile in PROFILES)}")
    for name, experiment in known.items():
        source = f" (reads {experiment.source.name})" if experiment.source else ""
        found = [times.get((name, profile)) for profile in PROFILES]
        spent = "  ".join(f"{f'{time} {marks[time.machine]}' if time else '-':>7}" for time in found)
        print(f"{name:<{width}}  {experiment.figure:<{place}}  {spent}  {experiment.title}{source}")
        for variant in own.get(name, {}):
            print(f"{'':<{width}}  your variant: {variant}")
    for machine, mark in marks.items():
        print(f"{mark}: measured {machine if machine.startswith('here') else f'on {machine}'}")
    if any((name, profile) not in times for name in known for profile in PROFILES):
        print("-: not measured yet, or nothing to train")


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
