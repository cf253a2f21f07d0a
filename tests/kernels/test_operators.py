"""The custom operators take meta tensors only among themselves. Their results have a shape and no value then."""

import pytest
import torch

from harmax import harmonic_logits, harmonic_loss, squared_distance
from harmax.kernels import autograd, distance
from oracle import ANYWHERE

x, w, target, number = torch.randn(4, 6), torch.randn(5, 6), torch.arange(4), torch.tensor(2.0)
matrix, rows = torch.rand(4, 5), torch.rand(4)
SETTINGS = (0.0, -100, 0.0)
BLOCK = ("chunked", 4, 5, True, True, True)
CALLS = {
    "distance": (distance._distance_op, (x, w)),
    "gradient of the distance": (distance._gradient_op, (matrix, matrix, x, w)),
    "loss": (autograd._loss_op, (x, w, target, number, w[:, 0], *SETTINGS, "mean", *BLOCK)),
    "gradient of the loss": (autograd._gradient_op, (rows, x, w, target, number, w[:, 0], *SETTINGS, *BLOCK)),
    "scaled gradient": (autograd._scale_op, (x, x[0])),
}


def moved(arguments, chosen):
    return [v.to("meta") if isinstance(v, torch.Tensor) and index in chosen else v for index, v in enumerate(arguments)]


@pytest.mark.parametrize("call", CALLS)
def test_a_meta_tensor_among_real_ones_is_refused(call):
    operator, arguments = CALLS[call]
    tensors = [index for index, value in enumerate(arguments) if isinstance(value, torch.Tensor)]
    for index in tensors:
        with pytest.raises(ValueError, match=r"` must be on the device of `.*` \(.*\), got .*; move one"):
            operator(*moved(arguments, {index}))
    results = operator(*moved(arguments, set(tensors)))
    for result in [results] if isinstance(results, torch.Tensor) else results:
        assert result.is_meta


@pytest.mark.parametrize("impl", [*ANYWHERE, "auto"])
def test_meta_tensors_alone_have_shapes(impl, monkeypatch):
    monkeypatch.setattr(distance, "DIRECT_ELEMENTS", 0)
    a, b = (v.to("meta").requires_grad_() for v in (x, w))
    assert squared_distance(a, b).shape == harmonic_logits(a, b).shape == (4, 5)
    for exponent in (2.0, number, number.to("meta")):
        loss = harmonic_loss(a, b, target.to("meta"), exponent=exponent, impl=impl)
        assert (loss.is_meta, loss.shape) == (True, ())
        assert [v.shape for v in torch.autograd.grad(loss, (a, b))] == [a.shape, b.shape]
