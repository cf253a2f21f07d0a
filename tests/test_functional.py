"""The public functions: HarMax on distances, and errors that name the argument, the value and the remedy."""

import pytest
import torch

from harmax import LossOptions, harmax, harmonic_logits, harmonic_loss, log_harmax, squared_distance


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0, 7.5])
def test_is_the_definition(exponent):
    torch.manual_seed(0)
    distance = torch.rand(4, 6, dtype=torch.float64) + 0.1
    weight = distance**-exponent
    torch.testing.assert_close(harmax(distance, exponent), weight / weight.sum(-1, keepdim=True))
    torch.testing.assert_close(log_harmax(distance, exponent), (weight / weight.sum(-1, keepdim=True)).log())


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_any_dimension(dim):
    distance = torch.rand(3, 4, 5) + 0.1
    probability = harmax(distance, 3.0, dim=dim)
    assert probability.shape == distance.shape
    torch.testing.assert_close(probability.sum(dim), torch.ones_like(probability.sum(dim)))
    torch.testing.assert_close(probability, harmax(distance.movedim(dim, -1), 3.0).movedim(-1, dim))


def test_scale_does_not_matter():
    distance = torch.rand(3, 4) + 0.1
    for power in (-40, 40):
        torch.testing.assert_close(harmax(2.0**power * distance, 5.0), harmax(distance, 5.0))


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0, 100.0])
def test_zeros_share_everything_and_gradients_stay_finite(exponent):
    distance = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [1.0, 2.0, 0.0]], requires_grad=True)
    probability = harmax(distance, exponent)
    want = torch.tensor([[0.5, 0.0, 0.5], [1 / 3, 1 / 3, 1 / 3], [0.0, 0.0, 1.0]])
    torch.testing.assert_close(probability, want, atol=1e-6, rtol=1e-5)
    probability[:, 2].sum().backward()
    assert distance.grad.isfinite().all()


def test_an_infinite_distance_has_no_probability():
    assert harmax(torch.tensor([1.0, float("inf"), 1.0]), 2.0).tolist() == [0.5, 0.0, 0.5]


def test_a_probability_close_to_one_keeps_its_logarithm():
    log_p = log_harmax(torch.tensor([1e-15, 1.0, 2.0]), 1.0)
    assert log_p[0].item() == pytest.approx(-1.5e-15, rel=1e-5)


def test_matches_the_logits_of_the_head():
    torch.manual_seed(1)
    x, w = torch.randn(4, 6), torch.randn(5, 6)
    got = harmax(squared_distance(x, w).sqrt(), 3.0)
    torch.testing.assert_close(got, harmonic_logits(x, w, exponent=3.0).softmax(-1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_dtype(dtype):
    got = harmax(torch.ones(3, dtype=dtype), 2.0)
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_gradcheck():
    distance = (torch.rand(3, 4, dtype=torch.float64) + 0.1).requires_grad_()
    exponent = torch.tensor(2.5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(harmax, (distance, exponent))
    assert torch.autograd.gradgradcheck(harmax, (distance, exponent))


x, w, target = torch.randn(4, 6), torch.randn(5, 6), torch.tensor([0, 1, 2, 3])
eight_bits = torch.float8_e4m3fn
no_value = torch.tensor(2.0, device="meta")


def nested():
    return torch.nested.nested_tensor([torch.randn(2, 6), torch.randn(3, 6)], layout=torch.jagged)


def loss(input=x, linear_weight=w, target=target, **settings):
    return harmonic_loss(input, linear_weight, target, **settings)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: squared_distance(x.long(), w), r"`input` must be a .*float32.*int64.*\.float\(\)"),
        (lambda: loss(linear_weight=w.long()), "`linear_weight` must be a .*float32.*got torch.int64"),
        (lambda: loss(target=target.int()), r"`target` .*int64, got torch.int32; .*\.long\(\)"),
        (lambda: loss(input=[[1.0]]), "`input` must be a tensor, got list; .*torch.as_tensor"),
        (lambda: loss(linear_weight=w.tolist()), "`linear_weight` must be a tensor, got list"),
        (lambda: loss(target=[0, 1, 2, 3]), "`target` must be a tensor, got list"),
        (lambda: loss(weight=[1.0] * 5), "`weight` must be a tensor, got list"),
        (lambda: loss(input=x.to_sparse()), r"`input` must be a dense tensor, got .*sparse.*\.to_dense\(\)"),
        (lambda: loss(linear_weight=w.to_sparse()), "`linear_weight` must be a dense tensor, got .*sparse"),
        (lambda: loss(target=target.to_sparse()), "`target` must be a dense tensor, got .*sparse"),
        (lambda: loss(input=nested()), "`input` must be an ordinary tensor, got a nested one"),
        (lambda: loss(input=x.to(eight_bits)), r"`input` must be .*got torch.float8_e4m3fn; .*\.float\(\)"),
        (lambda: loss(linear_weight=w.to(eight_bits)), "`linear_weight` must be .*got torch.float8"),
        (lambda: loss(target=torch.rand(4, 5).to(eight_bits)), "`target` must be .*got torch.float8"),
        (lambda: loss(exponent="two"), "`exponent` must be a number, got 'two'"),
        (lambda: loss(softening="a"), "`softening` must be a number, got 'a'"),
        (lambda: loss(options={"chunk_rows": 2}), "`options` must be a LossOptions, got dict"),
        (lambda: loss(exponent=[2.0]), r"`exponent` must be a number, got \[2.0\]"),
        (lambda: loss(exponent=torch.tensor(2.0).to_sparse()), "`exponent` must be a dense tensor"),
        (lambda: loss(weight=torch.ones(5).to(eight_bits)), r"`weight` must hold real numbers, got torch.float8"),
        (lambda: loss(weight=torch.ones(5) + 1j), "`weight` must hold real numbers, got torch.complex64"),
        (lambda: loss(ignore_index=[1]), r"`ignore_index` must be a whole number, got \[1\]"),
        (lambda: loss(ignore_index=1.0), "`ignore_index` must be a whole number, got 1.0"),
        (lambda: harmonic_logits([[1.0]], w), "`input` must be a tensor, got list"),
        (lambda: harmax(torch.tensor([1, 2]), 1.0), "`distance` must be a .*float32.*got torch.int64"),
        (lambda: harmax([1.0, 2.0], 1.0), "`distance` must be a tensor, got list"),
        (lambda: harmax(torch.ones(2), None), "`exponent` must be a number, got None"),
    ],
)
def test_a_wrong_type_is_named(call, message):
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: squared_distance(x, w[0]), r"`weight` must have shape \(classes, features\).*got \(6,\)"),
        (lambda: squared_distance(x, w[:0]), "`weight` .*at least one of each"),
        (lambda: squared_distance(x[:, :0], w[:, :0]), "`weight` .*at least one of each"),
        (lambda: squared_distance(x[:, :5], w), r"`input` must have shape \(\.\.\., 6\).*got \(4, 5\)"),
        (lambda: squared_distance(torch.tensor(1.0), w), r"`input` .*got \(\)"),
        (lambda: loss(target=target[:3]), r"`target` must have shape \(4,\).*got \(3,\); flatten both or neither"),
        (lambda: loss(target=torch.rand(4, 4)), r"`target` .*must have shape \(4, 5\).*got \(4, 4\)"),
        (lambda: loss(target=torch.rand(4, 5), ignore_index=1), "`ignore_index` must be left out"),
        (lambda: loss(weight=torch.ones(4)), r"`weight` must have shape \(5,\), got \(4,\)"),
        (lambda: loss(exponent=torch.ones(5)), r"`exponent` must be .*0-d.*got shape \(5,\)"),
        (lambda: loss(exponent=torch.tensor(-1.0)), "`exponent` must be a positive number.*got -1.0"),
        (lambda: loss(reduction="average"), "`reduction` must be one of mean, sum, none, got 'average'"),
        (lambda: loss(impl="chunk"), "`impl` must be one of auto, eager, chunked.*did you mean 'chunked'"),
        (lambda: loss(impl=["eager"]), r"`impl` must be one of auto, eager, chunked, triton, got \['eager'\]"),
        (lambda: loss(impl=None), "`impl` must be one of auto, eager, chunked, triton, got None"),
        (lambda: loss(label_smoothing=1.5), "`label_smoothing` must be .*0 to 1, got 1.5"),
        (
            lambda: loss(linear_weight=w.to("meta")),
            r"`linear_weight` must be on the device of `input` \(cpu\), got meta",
        ),
        (lambda: loss(target=target.to("meta")), "`target` must be on the device of `input`"),
        (lambda: loss(weight=torch.ones(5, device="meta")), "`weight` must be on the device of `input`"),
        (lambda: harmonic_logits(x, w.to("meta")), r"`weight` must be on the device of `input` \(cpu\), got meta"),
        (lambda: squared_distance(x, w.to("meta")), r"`weight` must be on the device of `input` \(cpu\), got meta"),
        (lambda: loss(exponent=no_value), r"`exponent` must have a value, like `input` \(cpu\), got a tensor on meta"),
        (lambda: harmonic_logits(x, w, exponent=no_value), "`exponent` must have a value, like `input`"),
        (lambda: harmax(torch.ones(3), no_value), "`exponent` must have a value, like `distance`"),
        (lambda: harmax(torch.tensor([-1.0, 2.0]), 2.0), "`distance` must not be negative, got -1.0"),
        (lambda: harmax(torch.ones(2), 0.0), "`exponent` must be a positive"),
        (lambda: LossOptions(chunk_rows=0), "`chunk_rows` must be .*got 0"),
    ],
)
def test_a_wrong_value_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("exponent", [0, -1.0, float("nan"), float("inf"), 1e300])
def test_an_exponent_must_be_positive_and_fit_float32(exponent):
    with pytest.raises(ValueError, match=r"`exponent` must be a positive number.*got .*; leave it out"):
        loss(exponent=exponent)


@pytest.mark.parametrize("softening", [-1e-4, float("nan"), float("inf"), 1e300])
def test_a_softening_must_not_be_negative_and_fit_float32(softening):
    with pytest.raises(ValueError, match=r"`softening` must be a number from 0.*got"):
        loss(softening=softening)


@pytest.mark.parametrize("impl", ["eager", "chunked"])
@pytest.mark.parametrize(("exponent", "softening"), [(1e30, 0.0), (2.0, 1e30), (1e30, 1e30)])
def test_the_largest_exponent_and_softening_are_finite(impl, exponent, softening):
    a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
    value = harmonic_loss(a, b, target, exponent=exponent, softening=softening, impl=impl)
    value.backward()
    assert value.isfinite()
    assert a.grad.isfinite().all()
    assert b.grad.isfinite().all()


@pytest.mark.parametrize("impl", ["eager", "chunked"])
@pytest.mark.parametrize("wrong", [5, -1, -99])
def test_target_out_of_range(impl, wrong):
    bad = torch.tensor([0, wrong, 2, 3])
    with pytest.raises(ValueError, match=f"`target` .*from 0 to 4 or ignore_index .-100., got {wrong}; check the"):
        harmonic_loss(x, w, bad, impl=impl)
    with pytest.raises(ValueError, match=f"got {wrong}"):
        harmonic_loss(x, w, bad, impl=impl, options=LossOptions(check_targets=True))
