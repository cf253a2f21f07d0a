"""The losses that pytorch-metric-learning has too, against it: two codes written apart must agree."""

import math
from typing import Any

import pytest
import torch

from harmax_lab.losses import LOSSES, training_loss

# Theirs, under warnings as errors: it hands torch tensors to scipy.
pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")
theirs = pytest.importorskip("pytorch_metric_learning.losses", reason="pip install pytorch-metric-learning")

# Ours, its options, their class, its options.
PAIRS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "normface": ("normface", {"scale": 8.0}, "NormalizedSoftmaxLoss", {"temperature": 1 / 8}),
    "cosface": ("cosface", {}, "CosFaceLoss", {"margin": 0.35, "scale": 64}),
    "arcface": ("arcface", {"scale": 16.0}, "ArcFaceLoss", {"margin": math.degrees(0.5), "scale": 16}),
    "arcface, wide": ("arcface", {"margin": 2.0}, "ArcFaceLoss", {"margin": math.degrees(2.0), "scale": 64}),
    "large margin, 2": ("large_margin", {"margin": 2}, "LargeMarginSoftmaxLoss", {"margin": 2}),
    "large margin, 3": ("large_margin", {"margin": 3}, "LargeMarginSoftmaxLoss", {"margin": 3}),
    "large margin, 4": ("large_margin", {"margin": 4}, "LargeMarginSoftmaxLoss", {"margin": 4}),
    "supcon": ("supcon", {}, "SupConLoss", {"temperature": 0.1}),
    "infonce": ("infonce", {"temperature": 0.5}, "NTXentLoss", {"temperature": 0.5}),
}  # fmt: skip


@pytest.mark.parametrize("case", PAIRS)
def test_value_and_gradient_are_theirs(case: str) -> None:
    name, options, their_name, their_options = PAIRS[case]
    torch.manual_seed(1)
    head = LOSSES[name](4, 6, dtype=torch.float64, **options)
    x = torch.randn(40, 4, dtype=torch.float64, requires_grad=True)
    y = torch.randint(6, (40,))
    pairwise = getattr(head, "reads_out", False)
    if pairwise:
        other = getattr(theirs, their_name)(**their_options)
        got = head.extra_loss(x, y, torch.ones(40))
    else:
        other = getattr(theirs, their_name)(num_classes=6, embedding_size=4, **their_options)
        other.W.data = head.weight.detach().T.clone()
        got = training_loss(head, x, y)
    want = other(x, y)
    torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-9)
    (one,), (another,) = torch.autograd.grad(got, x, retain_graph=True), torch.autograd.grad(want, x, retain_graph=True)
    torch.testing.assert_close(one, another, rtol=1e-7, atol=1e-8)
    if not pairwise:
        (one,), (another,) = torch.autograd.grad(got, head.weight), torch.autograd.grad(want, other.W)
        torch.testing.assert_close(one, another.T, rtol=1e-7, atol=1e-8)
