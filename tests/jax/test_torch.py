"""What JAX computes is what torch computes, to 1e-6 in float32: functions, losses, heads, and weights carried over."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import linen, nnx

import harmax
from harmax import jax as hj
from harmax.functional import harmonic_log_probabilities
from jax_arrays import array, assert_close, tensor


def drawn(rows=24, width=16, classes=30):
    """Vectors far from, near and on centers."""
    torch.manual_seed(0)
    x, w, target = torch.randn(rows, width), torch.randn(classes, width), torch.randint(classes, (rows,))
    x[0], x[1], x[2] = w[target[0]], w[5], w[target[2]] + 1e-4 * x[2]
    return x, w, target, torch.randn(classes), torch.rand(classes) + 0.1


@pytest.mark.parametrize("rows", [24, 3000])  # the second is too large for all differences at once
def test_functions(rows):
    x, w, _, prior, _ = drawn(rows)
    kernel = {"exponent": 5.0, "softening": 0.1}
    given, centers, log_weights = array(x), array(w), array(prior)
    assert_close(jax.jit(hj.squared_distance)(given, centers), harmax.squared_distance(x, w))
    for mine, its in (
        (hj.harmonic_logits, harmax.harmonic_logits),
        (hj.harmonic_log_probabilities, harmonic_log_probabilities),
    ):
        compiled = jax.jit(partial(mine, **kernel))
        assert_close(compiled(given, centers, prior=log_weights), its(x, w, prior=prior, **kernel))
    d = harmax.squared_distance(x, w).sqrt()
    assert_close(jax.jit(partial(hj.harmax, axis=0))(array(d), 3.0), harmax.harmax(d, 3.0, dim=0))
    assert_close(jax.jit(hj.log_harmax)(array(d), 3.0), harmax.log_harmax(d, 3.0))


@pytest.mark.parametrize("impl", ["eager", "chunked"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("indices", {}),
        ("indices", {"exponent": 5.0, "label_smoothing": 0.1, "reduction": "sum", "ignore_index": 4}),
        ("probabilities", {"exponent": 0.5, "softening": 0.3, "reduction": "none"}),
    ],
)
def test_losses_and_gradients(impl, kind, options):
    x, w, target, prior, weight = drawn()
    if kind == "probabilities":
        target = torch.rand(24, 30)
    leaves = [one.clone().requires_grad_() for one in (x, w, prior)]
    want = harmax.harmonic_loss(*leaves[:2], target, prior=leaves[2], weight=weight, return_stats=True, **options)
    gradients = torch.autograd.grad(want.loss.sum(), leaves)

    @jax.jit
    def run(*leaves):
        def total(x, w, prior):
            given = {"prior": prior, "weight": array(weight), "impl": impl, "return_stats": True, **options}
            output = hj.harmonic_loss(x, w, array(target), **given)
            return output.loss.sum(), output

        return jax.grad(total, argnums=(0, 1, 2), has_aux=True)(*leaves)

    got_gradients, got = run(array(x), array(w), array(prior))
    assert_close(got.loss, want.loss)
    assert_close(got.logsumexp, want.logsumexp)
    assert torch.equal(tensor(got.hit), want.hit)
    for mine, its in zip(got_gradients, gradients, strict=True):
        assert_close(mine, its)


SETTINGS = [{}, {"exponent": 7.3, "scale": 0.125, "prior": True}, {"exponent": 3.0, "softening": 0.2, "prior": True}]


def torch_head(settings) -> harmax.HarmonicHead:
    torch.manual_seed(1)
    head = harmax.HarmonicHead(16, 30, **settings).eval()
    if head.prior is not None:
        torch.nn.init.normal_(head.prior)
    return head


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_head_with_the_weights_of_torch_computes_the_same(settings):
    x, _, target, *_ = drawn()
    theirs = torch_head({"scale": 1, **settings})
    model = torch.nn.ModuleDict({"body": torch.nn.Linear(3, 4), "head": theirs})
    head = hj.HarmonicHead.from_torch(model.state_dict(), prefix="head.")
    assert (head.exponent, head.softening, head.scale) == (theirs.exponent, theirs.softening, theirs.scale)
    assert_close(head(array(x)), theirs(x))
    assert_close(head(array(x), array(target)), theirs(x, target))
    assert_close(head.distance(array(x)), theirs.distance(x))
    assert_close(head.centers, theirs.centers)
    back = harmax.HarmonicHead.from_state_dict(head.to_torch())
    assert repr(back) == repr(theirs)
    assert all(torch.equal(back.state_dict()[name], value) for name, value in theirs.state_dict().items())


def test_a_scale_that_torch_has_not_found_stays_unknown():
    head = hj.HarmonicHead.from_torch(torch_head({}).state_dict())
    assert head.wants_scale
    x = 20 * torch.nn.functional.normalize(torch.randn(100, 16), dim=1)
    with pytest.warns(UserWarning, match=r"the scale of a HarmonicHead must be found.*call head\.find_scale"):
        head(array(x), jnp.zeros(100, int))
    assert head.find_scale(array(x)) == torch_head({}).find_scale(x)
    assert harmax.HarmonicHead.from_state_dict(head.to_torch()).scale == head.scale
    with pytest.raises(ValueError, match="`features` must be known to find the scale, got traced ones; call"):
        jax.jit(lambda x: head.find_scale(x))(array(x))


def test_bfloat16_weights_travel_exactly():
    theirs = torch_head({"scale": 1}).bfloat16()
    head = hj.HarmonicHead.from_torch(theirs.state_dict())
    assert head.weight.dtype == jnp.bfloat16
    assert torch.equal(head.to_torch()["weight"], theirs.weight)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"exponent": 5.0}, "with exponent=4, .*got exponent=5, weight"),
        ({"softening": 0.5}, r"got softening=0\.5"),
        ({"scale": 2.0}, "got scale=2"),
        ({"prior": True}, r"got weight \(30, 16\), prior \(30,\); build the head with these, or use"),
    ],
)
def test_another_head_never_loads_silently(settings, message):
    head = hj.HarmonicHead(16, 30, scale=1, rngs=nnx.Rngs(0))
    before = np.asarray(head.weight[...])
    with pytest.raises(ValueError, match=message):
        head.load_torch(torch_head({"scale": 1} | settings).state_dict())
    np.testing.assert_array_equal(head.weight[...], before)
    head.load_torch(torch_head({"scale": 1}).state_dict())
    np.testing.assert_array_equal(head.weight[...], torch_head({"scale": 1}).weight.detach())


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (torch.nn.Linear(3, 4).state_dict(), r"`state_dict` must have weight and settings, got \['bias', 'weight'\]"),
        (harmax.LearnableHarmonicHead(3, 4).state_dict(), "must be that of a head with a fixed exponent"),
        (torch.nn.Module().state_dict(), "`state_dict` must have weight"),
    ],
)
def test_another_state_dict_is_refused(state, message):
    with pytest.raises(ValueError, match=message):
        hj.HarmonicHead.from_torch(state)


def test_damaged_settings_are_refused():
    state = torch_head({}).state_dict()
    state["settings"] = state["settings"] + 1
    with pytest.raises(ValueError, match="the settings of a harmonic head must be as a head has saved them"):
        hj.HarmonicHead.from_torch(state)


def test_a_training_step_is_the_step_of_torch():
    x, _, target, *_ = drawn()
    theirs = torch_head({"exponent": 7.3, "scale": 0.5, "prior": True}).train()
    head = hj.HarmonicHead.from_torch(theirs.state_dict())
    optimizer = nnx.Optimizer(head, optax.sgd(0.1), wrt=nnx.Param)

    @nnx.jit
    def step(head, optimizer, x, target):
        loss, gradients = nnx.value_and_grad(lambda head: head(x, target))(head)
        optimizer.update(head, gradients)
        return loss

    own = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for _ in range(3):
        own.zero_grad()
        want = theirs(x, target)
        want.backward()
        own.step()
        assert_close(step(head, optimizer, array(x), array(target)), want)
    assert_close(head.weight[...], theirs.weight)
    assert_close(head.prior[...], theirs.prior)


def test_a_linen_model_takes_the_head():
    class Model(linen.Module):
        @linen.compact
        def __call__(self, x):
            return nnx.bridge.to_linen(hj.HarmonicHead, 8, 5, exponent=3.0, scale=1.0)(linen.Dense(8)(x))

    x = jnp.ones((4, 6))
    model = Model()
    variables = model.init(jax.random.key(0), x)
    weight = next(leaf for leaf in jax.tree.leaves(variables["params"]) if leaf.shape == (5, 8))
    features = linen.Dense(8).apply({"params": variables["params"]["Dense_0"]}, x)
    np.testing.assert_allclose(
        model.apply(variables, x), hj.harmonic_log_probabilities(features, weight, exponent=3.0), rtol=1e-6
    )


def test_losses_of_log_probabilities_are_those_of_optax():
    x, w, target, *_ = drawn()
    log_p = hj.harmonic_log_probabilities(array(x), array(w), exponent=3.0)
    losses = hj.negative_log_likelihood(log_p, array(target))
    want = harmax.harmonic_loss(x, w, target, exponent=3.0, reduction="none")
    torch.testing.assert_close(tensor(losses), want, rtol=1e-6, atol=0)  # also the smallest, next to its center
    np.testing.assert_allclose(
        losses[3:], optax.softmax_cross_entropy_with_integer_labels(log_p, array(target))[3:], rtol=1e-5
    )
    shares = jax.nn.softmax(array(torch.randn(24, 30)))
    np.testing.assert_allclose(
        hj.negative_log_likelihood(log_p, shares), optax.softmax_cross_entropy(log_p, shares), rtol=1e-5
    )
