"""Enough of torchvision for timm to be imported where torchvision is not installed.

Its wheel on the package index loads its operators only beside a torch for GPUs, and a torchvision that does not load
breaks transformers too. So `make test-tools` takes it away again. timm uses it for data sets and pictures, and these
tests for neither.
"""

import enum
import importlib.util
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


class InterpolationMode(enum.Enum):
    """timm makes a table of these on import."""

    NEAREST, BILINEAR, BICUBIC, BOX, HAMMING, LANCZOS = "nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"


class FrozenBatchNorm2d(nn.Module):
    """timm asks whether layers are of this class."""


class Stub(types.ModuleType):
    """A module in which every other name is an empty class."""

    __path__ = ()
    InterpolationMode, FrozenBatchNorm2d = InterpolationMode, FrozenBatchNorm2d

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


MODULES = ("torchvision", "torchvision.ops", "torchvision.ops.misc", "torchvision.datasets")
TRANSFORMS = ("torchvision.transforms", "torchvision.transforms.functional")


@contextmanager
def torchvision_for_timm() -> Iterator[None]:
    """Stand in for torchvision while timm is imported, unless it is there."""
    if importlib.util.find_spec("torchvision") is not None:
        yield
        return
    stubs = {name: Stub(name) for name in (*MODULES, *TRANSFORMS)}
    stubs["torchvision"].transforms = stubs["torchvision.transforms"]
    stubs["torchvision.transforms"].functional = stubs["torchvision.transforms.functional"]
    sys.modules.update(stubs)
    try:
        yield
    finally:
        for name in stubs:
            del sys.modules[name]
