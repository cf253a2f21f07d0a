"""What all tests of the laboratory share, and a check that every verdict can turn.

Without a GPU Triton's kernels run in its interpreter; that must be said before anything imports them.
"""

import os
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from verdicts_seen import Verdicts

# That kernels run in the interpreter must be said before anything imports them.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

PROJECT = Path(__file__).parent.parent / "pyproject.toml"
collect_ignore = ["vision/stand_in_speedrun.py"]
"""A script that a test runs: it has no doctests, and needs torchvision."""


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the project's metadata says, whether or not it was installed since it last changed."""
    groups = tomllib.loads(PROJECT.read_text())["project"]["entry-points"]
    declared = [EntryPoint(name, value, group) for group, some in groups.items() for name, value in some.items()]
    monkeypatch.setattr("harmax.plugins.entry_points", lambda group: [one for one in declared if one.group == group])


def pytest_configure(config: pytest.Config) -> None:
    """Watch the verdicts on planted results."""
    if not config.pluginmanager.hasplugin("verdicts"):
        config.pluginmanager.register(Verdicts(), "verdicts")
