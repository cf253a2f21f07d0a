"""Triton's interpreter where there is no GPU, and a check that every verdict can turn."""

import os

import pytest
import torch

from verdicts_seen import Verdicts

# That kernels run in the interpreter must be said before anything imports them.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_configure(config: pytest.Config) -> None:
    """Watch the verdicts on planted results."""
    if not config.pluginmanager.hasplugin("verdicts"):
        config.pluginmanager.register(Verdicts(), "verdicts")
