"""The exact cross-entropy: the usual value, and a gradient that is right however small the loss is."""

# B rows, V classes

import pytest
import torch
from torch.nn import functional as F

from harmax_lab.losses.base import exact_cross_entropy, mean_cross_entropy


def of(loss: object, logits_BV: torch.Tensor, target_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = logits_BV.clone().requires_grad_()
    value_B = loss(leaf, target_B)  # type: ignore[operator]
    return value_B.detach(), torch.autograd.grad(value_B.sum(), leaf)[0]


def usual(logits_BV: torch.Tensor, target_B: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits_BV, target_B, reduction="none")


@pytest.mark.parametrize("lead", [-300.0, -20.0, 0.0, 5.0, 15.0, 30.0, 80.0])
def test_value_and_gradient_are_those_of_float64_where_the_usual_gradient_is_rounded(lead: float) -> None:
    logits_BV = torch.randn(16, 25, generator=torch.Generator().manual_seed(0))
    target_B = torch.arange(16)
    logits_BV[torch.arange(16), target_B] += lead
    true_value_B, true_gradient_BV = of(exact_cross_entropy, logits_BV.double(), target_B)
    value_B, gradient_BV = of(exact_cross_entropy, logits_BV, target_B)
    torch.testing.assert_close(value_B.double(), true_value_B, rtol=1e-5, atol=0)
    torch.testing.assert_close(gradient_BV.double(), true_gradient_BV, rtol=1e-4, atol=0)
    if lead <= 15:  # beyond, float64 rounds the usual gradient too
        torch.testing.assert_close(
            of(usual, logits_BV.double(), target_B), (true_value_B, true_gradient_BV), rtol=1e-6, atol=1e-12
        )
    own_B = of(usual, logits_BV, target_B)[1][torch.arange(16), target_B]
    assert (own_B == 0).all() == (lead >= 30)


def test_classes_and_rows_that_are_padding_do_not_count() -> None:
    logits_BV = torch.tensor([[3.0, 1.0, -torch.inf], [0.0, 2.0, -torch.inf]])
    target_B, present_B = torch.tensor([0, 1]), torch.tensor([1.0, 0.0])
    value_B, gradient_BV = of(exact_cross_entropy, logits_BV, target_B)
    torch.testing.assert_close(value_B, usual(logits_BV[:, :2], target_B))
    assert (gradient_BV[:, 2] == 0).all()
    assert mean_cross_entropy(logits_BV, target_B, present_B, exact=True) == value_B[0]
    assert mean_cross_entropy(logits_BV, target_B, exact=True) == value_B.mean()
