"""The relatives of the harmonic head: their formulas, their limits, and the arguments that they take."""

import pytest
import torch
import torch.nn.functional as F

from harmax.heads import (
    HEADS,
    CosineHarmaxHead,
    DiagonalMahalanobisHead,
    DotHarmaxHead,
    EuclideanHead,
    FullMahalanobisHead,
    GaussianHead,
    MinkowskiHead,
    StudentTHead,
)


def test_gaussian_head_is_a_linear_head_with_bias():
    torch.manual_seed(7)
    head = GaussianHead(6, 5, precision=0.7).double()
    x = torch.randn(8, 6).double()
    linear = F.linear(x, 0.7 * head.weight, -0.35 * head.weight.square().sum(1))
    torch.testing.assert_close(head(x).log_softmax(-1), linear.log_softmax(-1))


def test_student_t_tends_to_gaussian():
    torch.manual_seed(8)
    gaussian = GaussianHead(6, 5, precision=0.7).double()
    student = StudentTHead(6, 5, exponent=0.7e7, softening=1e7).double()
    student.load_state_dict(gaussian.state_dict())
    x = torch.randn(8, 6).double()
    torch.testing.assert_close(student(x).log_softmax(-1), gaussian(x).log_softmax(-1), atol=1e-4, rtol=1e-4)


def test_formulas_of_the_relatives():
    torch.manual_seed(9)
    x = torch.randn(4, 6, dtype=torch.float64)

    def made(cls, **options):
        return cls(6, 5, exponent=3.0, **options).double()

    head = EuclideanHead(6, 5).double()
    torch.testing.assert_close(head(x), -(x[:, None] - head.weight).norm(dim=-1))
    head = made(DotHarmaxHead)
    torch.testing.assert_close(head(x), -3.0 * (x @ head.weight.T).abs().log())
    head = made(CosineHarmaxHead)
    cosine = F.cosine_similarity(x[:, None], head.weight, dim=-1)
    torch.testing.assert_close(head(x), -1.5 * (2 - 2 * cosine).log())
    for order in (1.0, 1.5, 2.0, float("inf")):
        head = made(MinkowskiHead, order=order)
        distance = torch.linalg.vector_norm(x[:, None] - head.weight, ord=order, dim=-1)
        torch.testing.assert_close(head.distance(x), distance)
        torch.testing.assert_close(head(x), -3.0 * distance.log())
    head = made(FullMahalanobisHead)
    head.metric.data.copy_(torch.randn(6, 6))
    metric = head.metric.tril() @ head.metric.tril().T
    difference = x[:, None] - head.weight
    want = torch.einsum("bvd,de,bve->bv", difference, metric, difference)
    torch.testing.assert_close(head.distance(x).square(), want)
    head = made(DiagonalMahalanobisHead)
    head.log_scale.data.copy_(torch.randn(6))
    want = (x[:, None] - head.weight).square() @ (2 * head.log_scale).exp()
    torch.testing.assert_close(head(x), -1.5 * want.log())


@pytest.mark.parametrize("name", ["linear", "l2", "gaussian"])
@pytest.mark.parametrize("option", ["exponent", "softening"])
def test_a_head_refuses_an_argument_that_its_formula_does_not_use(name, option):
    with pytest.raises(TypeError, match=option):
        HEADS[name](6, 5, **{option: 2.0})
    assert option not in repr(HEADS[name](6, 5))


@pytest.mark.parametrize("name", [name for name in HEADS if name not in ("linear", "l2", "gaussian")])
@pytest.mark.parametrize("option", ["exponent", "softening"])
def test_every_argument_that_a_head_takes_changes_its_logits(name, option):
    torch.manual_seed(12)
    one, two = HEADS[name](6, 5, **{option: 2.0}), HEADS[name](6, 5, **{option: 3.0})
    two.load_state_dict({**two.state_dict(), "weight": one.weight.detach()})
    x = torch.randn(4, 6)
    assert (one(x).log_softmax(-1) - two(x).log_softmax(-1)).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: StudentTHead(4, 3, softening=0.0), "`softening` must be positive.*HarmonicHead"),
        (lambda: GaussianHead(4, 3, precision=0.0), "`precision` must be above 0.*got 0"),
        (lambda: MinkowskiHead(4, 3, order=0.5), "`order` must be at least 1, got 0.5"),
    ],
)
def test_an_error_names_the_argument_and_what_came(call, message):
    with pytest.raises(ValueError, match=message):
        call()
