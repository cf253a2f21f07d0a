"""Verbs, benchmarks, sources and other parts that installed packages add to harmax through entry points.

A package names a group and an object in its metadata:

    [project.entry-points."harmax.verbs"]
    lab = "harmax_lab.cli:VERBS"
"""

from importlib.metadata import entry_points
from typing import Any


def plugins(group: str) -> dict[str, Any]:
    """Return the objects that installed packages register under `harmax.<group>`, by their names."""
    return {entry.name: entry.load() for entry in sorted(entry_points(group=f"harmax.{group}"))}
