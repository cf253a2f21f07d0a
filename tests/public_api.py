"""How a user's program sees the public names; a type checker reads this file."""

from typing import assert_type

import torch
from torch import Tensor

import harmax
from harmax import (
    HarmonicHead,
    HarmonicLoss,
    LearnableHarmonicHead,
    LossOptions,
    LossOutput,
    harmonic_logits,
    harmonic_loss,
    log_harmax,
    replace_head,
    squared_distance,
)
from harmax.analysis import Interval, mean_interval
from harmax.data.images import Images, load_images
from harmax.data.text import TokenShards
from harmax.heads import HEADS, MinkowskiHead

x, w, target = torch.randn(4, 6), torch.randn(5, 6), torch.tensor([0, 1, 2, 3])


def loss_and_statistics(chosen: bool) -> None:
    """The kind of the result follows from `return_stats`."""
    assert_type(harmonic_loss(x, w, target), Tensor)
    assert_type(harmonic_loss(x, w, target, return_stats=False, exponent=2.0, weight=None), Tensor)
    assert_type(harmonic_loss(x, w, target, return_stats=True, options=LossOptions(chunk_rows=2)), LossOutput)
    assert_type(harmonic_loss(x, w, target, return_stats=True).hit, Tensor)
    assert_type(harmonic_loss(x, w, target, return_stats=chosen), Tensor | LossOutput)


def functions_and_modules() -> None:
    """Every other public name has a type of its own."""
    assert_type(harmonic_logits(x, w, exponent=torch.tensor(2.0), softening=1.0), Tensor)
    assert_type(squared_distance(x, w), Tensor)
    assert_type(harmax.harmax(x.abs(), 2.0, dim=0), Tensor)
    assert_type(log_harmax(x.abs(), 2.0), Tensor)
    assert_type(HarmonicHead.from_linear(torch.nn.Linear(6, 5, bias=False), exponent=3.0), HarmonicHead)
    assert_type(LearnableHarmonicHead(6, 5).exponent, Tensor)
    assert_type(HarmonicLoss(6, 5).head, HarmonicHead)
    assert_type(replace_head(torch.nn.Sequential(torch.nn.Linear(6, 5, bias=False)), "0"), HarmonicHead)
    assert_type(harmax.__version__, str)


def other_modules() -> None:
    """The public names of other modules can be imported from where the documentation shows them."""
    assert_type(HEADS["harmonic"](6, 5), torch.nn.Module)
    assert_type(MinkowskiHead(6, 5, order=2.0, exponent=3.0).distance(x), Tensor)
    assert_type(mean_interval([1.0, 2.0]), Interval)
    assert_type(load_images("digits"), Images)
    assert_type(TokenShards("folder").tokens, int)


def mistakes() -> None:
    """Mistakes are reported. Strict mode refuses an ignore comment on a line without one."""
    harmonic_loss(x, w, target, exponant=2.0)  # type: ignore[call-overload]
    harmonic_loss(x, w, [0, 1, 2, 3])  # type: ignore[call-overload]
    harmonic_loss(x, w, target, return_stats=True).backward()  # type: ignore[attr-defined]
    HarmonicHead(6, 5, bias=True)  # type: ignore[call-arg]
    MinkowskiHead(6, 5, exponant=3.0)  # type: ignore[call-arg]
