"""The entropy of each row, by brute force in float64, in chunks of rows, with its gradients."""

import math

import mpmath
import pytest
import torch

from harmax import HarmonicHead, LossOptions, harmonic_entropy, harmonic_logits

CHUNKS = LossOptions(chunk_rows=3)


def drawn(rows=11, width=6, classes=9, **kind):
    torch.manual_seed(0)
    tensors = torch.randn(rows, width), torch.randn(classes, width), torch.randn(classes), torch.tensor(7.5)
    return [tensor.to(**kind).requires_grad_() for tensor in tensors]


def brute_force(x, w, prior, exponent, softening):
    s = (x[:, None] - w).square().sum(-1) + softening
    return torch.distributions.Categorical(logits=prior - exponent / 2 * s.log()).entropy()


@pytest.mark.parametrize("options", [None, CHUNKS], ids=["whole", "chunks"])
@pytest.mark.parametrize("softening", [0.0, 0.5])
def test_value_and_gradients_are_those_of_the_formula(options, softening):
    leaves = drawn(dtype=torch.float64)
    x, w, prior, exponent = leaves
    weights = torch.rand(11, dtype=torch.float64)
    got = harmonic_entropy(x, w, exponent=exponent, softening=softening, prior=prior, options=options)
    want = brute_force(x, w, prior, exponent, softening)
    torch.testing.assert_close(got, want)
    for one, other in zip(
        torch.autograd.grad((weights * got).sum(), leaves),
        torch.autograd.grad((weights * want).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_no_chunk_is_kept_for_the_backward_pass():
    x, w, *_ = drawn(rows=40, classes=50)
    kept = []

    def note(tensor):
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        entropy = harmonic_entropy(x, w, options=CHUNKS)
    assert max(kept, default=0) < 3 * 50
    entropy.sum().backward()
    assert x.grad.isfinite().all()


def test_next_to_a_center_a_small_entropy_keeps_its_digits():
    x, w = torch.tensor([[1e-6]]), torch.tensor([[0.0], [1.0], [2.0]])
    with mpmath.workdps(50):
        s = [(mpmath.mpf(x.item()) - j) ** 2 for j in range(3)]
        p = [one**-2 / sum(other**-2 for other in s) for one in s]
        want = float(-sum(one * mpmath.log(one) for one in p))
    assert want < 1e-20
    assert harmonic_entropy(x, w, exponent=4).item() == pytest.approx(want, rel=1e-5)


def test_a_class_that_the_prior_leaves_out_adds_nothing():
    x, w, prior, _ = drawn()
    prior = prior.detach().clone()
    prior[2] = -math.inf
    prior.requires_grad_()
    kept = torch.arange(9) != 2
    got = harmonic_entropy(x, w, prior=prior)
    torch.testing.assert_close(got, harmonic_entropy(x, w[kept], prior=prior[kept]))
    got.sum().backward()
    assert all(leaf.grad.isfinite().all() for leaf in (x, w, prior))


def test_between_equally_distant_centers_it_is_largest():
    w = torch.eye(8)
    torch.testing.assert_close(harmonic_entropy(torch.zeros(2, 3, 8), w), torch.full((2, 3), math.log(8)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gives_float32(dtype):
    x, w, *_ = drawn(dtype=dtype)
    entropy = harmonic_entropy(x, w)
    assert entropy.dtype == torch.float32
    torch.testing.assert_close(entropy, harmonic_entropy(x.float(), w.float()))


def test_under_torch_func_and_compile():
    x, w, *_ = drawn()
    want = harmonic_entropy(x, w)
    torch.testing.assert_close(torch.func.vmap(lambda row: harmonic_entropy(row, w, options=CHUNKS))(x), want)
    compiled = torch.compile(lambda x: harmonic_entropy(x, w, options=CHUNKS), backend="aot_eager")
    torch.testing.assert_close(compiled(x), want)


def test_the_head_takes_its_scale_and_prior():
    head = HarmonicHead(6, 9, exponent=5, scale=0.25, prior=True)
    with torch.no_grad():
        head.prior.copy_(torch.linspace(-1, 1, 9))
    x = torch.randn(4, 6)
    logits = harmonic_logits(0.25 * x, head.weight, exponent=5, prior=head.prior)
    torch.testing.assert_close(head.entropy(x), torch.distributions.Categorical(logits=logits).entropy())


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"`input` must have shape \(\.\.\., 6\)"):
        harmonic_entropy(torch.zeros(2, 5), torch.zeros(3, 6))
    with pytest.raises(TypeError, match="`options` must be a LossOptions"):
        harmonic_entropy(torch.zeros(2, 6), torch.zeros(3, 6), options={"chunk_rows": 2})
