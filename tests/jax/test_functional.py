"""The functions under the transformations of JAX, and their memory."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from harmax.jax import harmonic_loss, negative_log_likelihood
from jax_arrays import array
from oracle import assert_right_next_to_a_center

pytestmark = pytest.mark.jax
RANDOM = np.random.default_rng(0)
x, w = (jnp.asarray(RANDOM.normal(size=(rows, 6)), jnp.float32) for rows in (4, 5))
target = jnp.array([0, 1, 2, 3])
chunked = partial(harmonic_loss, impl="chunked", chunk_classes=2)


def gradients(function, *inputs):
    return jax.jit(jax.grad(function, argnums=(0, 1)))(*inputs)


@pytest.mark.parametrize("impl", ["eager", "chunked"])
def test_next_to_a_center_matches_mpmath(impl):
    @jax.jit
    def run(x, w, target, exponent):
        loss = partial(harmonic_loss, target=target, exponent=exponent, impl=impl)
        return jax.value_and_grad(loss, argnums=(0, 1))(x, w)

    def compute(x, w, target, exponent):
        loss, found = run(array(x), array(w), array(target), exponent)
        return torch.tensor(float(loss)), *(torch.from_numpy(np.array(one)) for one in found)

    for exponent in (0.5, 1.0, 2.0, 28.0, 512.0):
        for gap in (1e-2, 1e-4, 1e-6):
            for right in (True, False):
                assert_right_next_to_a_center(compute, exponent, gap, right)


def test_vmap_is_a_loop():
    xs, ws, targets = jnp.stack([x, x + 1, w[:4]]), jnp.stack([w, w - 1, w]), jnp.stack([target, target[::-1], target])
    run = jax.jit(jax.value_and_grad(chunked, argnums=(0, 1)))
    got = jax.tree.leaves(jax.jit(jax.vmap(run))(xs, ws, targets))
    for place in range(3):
        for one, want in zip(got, jax.tree.leaves(run(xs[place], ws[place], targets[place])), strict=True):
            np.testing.assert_allclose(one[place], want, rtol=2e-6, atol=1e-6)


def sizes(jaxpr) -> set[int]:
    """The numbers of elements of everything that a function computes, in all its loops."""
    found = {variable.aval.size for equation in jaxpr.eqns for variable in equation.outvars}
    for equation in jaxpr.eqns:
        for inner in jax.tree.leaves(
            equation.params, is_leaf=lambda one: hasattr(one, "eqns") or hasattr(one, "jaxpr")
        ):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                found |= sizes(getattr(inner, "jaxpr", inner))
    return found


def test_no_large_matrix_is_ever_held():
    """256 tokens and 1000 classes in blocks of 100: nothing of more than 256 * 100 elements, also in the gradient."""
    wide, centers, labels = jnp.ones((256, 8)), jnp.ones((1000, 8)), jnp.zeros(256, int)

    def largest(**settings):
        loss = partial(harmonic_loss, label_smoothing=0.1, **settings)
        return max(sizes(jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(wide, centers, labels).jaxpr))

    assert largest(impl="eager") >= 256 * 1000
    assert largest(impl="chunked", chunk_classes=100) == 256 * 100


def test_second_derivatives_come_from_eager():
    def slope(impl, x):
        return jax.grad(partial(harmonic_loss, impl=impl))(x, w, target).sum()

    with jax.enable_x64(True):
        given, first = jnp.asarray(x, jnp.float64), jax.jit(partial(slope, "eager"))
        want = (first(given + 1e-5) - first(given - 1e-5)) / 2e-5
        np.testing.assert_allclose(jax.jit(jax.grad(first))(given).sum(), want, rtol=1e-6)
    with pytest.raises(ValueError, match=r"a second derivative .* must come from impl='eager'.*; pass impl='eager'"):
        jax.grad(partial(slope, "chunked"))(x)


def test_a_learned_weight_or_target_comes_from_eager():
    shares, weight = jnp.full((4, 5), 0.2), jnp.ones(5)

    def loss(shares, weight, **settings):
        return harmonic_loss(x, w, shares, weight=weight, **settings)

    found = jax.jit(jax.grad(partial(loss, impl="eager"), argnums=(0, 1)))(shares, weight)
    assert all(np.abs(one).min() > 0 for one in found)
    for place, name in enumerate(("target", "weight")):
        with pytest.raises(
            ValueError, match=f"`{name}` must have no gradient with impl='chunked', got one; pass impl="
        ):
            jax.grad(partial(loss, impl="chunked"), argnums=place)(shares, weight)


@pytest.mark.parametrize("impl", ["eager", "chunked"])
def test_what_a_compiled_function_cannot_refuse_is_a_nan(impl):
    rows = jax.jit(partial(harmonic_loss, impl=impl, reduction="none"))
    wrong = jnp.array([0, 5, -1, -100])
    assert np.isnan(rows(x, w, wrong)).tolist() == [False, True, True, False]
    power = jax.jit(lambda exponent: harmonic_loss(x, w, target, exponent=exponent, impl=impl))
    assert np.isnan(power(-2.0))
    assert np.isfinite(power(2.0))


def test_traced_losses_of_log_probabilities_show_a_wrong_label():
    log_p = jnp.log(jnp.full((3, 2), 0.5))
    assert np.isnan(jax.jit(negative_log_likelihood)(log_p, jnp.array([0, 2, -1]))).tolist() == [False, True, True]


@pytest.mark.parametrize(("impl", "shape"), [("eager", ()), ("chunked", (2, 3)), ("chunked", (2, 0))])
def test_any_leading_shape(impl, shape):
    given, labels = jnp.ones((*shape, 6)), jnp.zeros(shape, int)
    loss = jax.jit(partial(harmonic_loss, impl=impl, reduction="none"))(given, w, labels)
    assert loss.shape == shape
    if loss.size:
        np.testing.assert_allclose(loss, harmonic_loss(jnp.ones((1, 6)), w, jnp.zeros(1, int)), rtol=1e-6)


def test_an_infinitely_far_center_has_no_probability():
    far = jnp.concatenate([w, jnp.full((1, 6), 1e30)])
    got, want = (gradients(partial(chunked, target=target), x, centers) for centers in (far, w))
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got[1][:5], want[1], rtol=1e-5, atol=1e-6)
