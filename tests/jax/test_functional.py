"""The functions under the transformations of JAX, their memory, and errors in the grammar of the functions of torch."""

import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from harmax.jax import (
    HarmonicHead,
    harmax,
    harmonic_logits,
    harmonic_loss,
    log_harmax,
    negative_log_likelihood,
    squared_distance,
)
from jax_arrays import array
from oracle import assert_right_next_to_a_center

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
    for loss in (chunked, partial(harmonic_loss, impl="eager")):
        run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
        got = jax.jit(jax.vmap(run))(xs, ws, targets)
        for place in range(3):
            want = run(xs[place], ws[place], targets[place])
            jax.tree.map(
                partial(np.testing.assert_allclose, rtol=2e-6, atol=1e-6),
                [leaf[place] for leaf in jax.tree.leaves(got)],
                jax.tree.leaves(want),
            )


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

    step, direction = 1e-2, jnp.ones_like(x)
    first = jax.jit(partial(slope, "eager"))
    want = (first(x + step * direction) - first(x - step * direction)) / (2 * step)
    got = (jax.jit(jax.grad(first))(x) * direction).sum()
    np.testing.assert_allclose(got, want, rtol=1e-2)
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


@pytest.mark.parametrize("impl", ["eager", "chunked"])
@pytest.mark.parametrize("shape", [(), (2, 3), (2, 0)])
def test_any_leading_shape(impl, shape):
    given, labels = jnp.ones((*shape, 6)), jnp.zeros(shape, int)
    loss = jax.jit(partial(harmonic_loss, impl=impl, reduction="none"))(given, w, labels)
    assert loss.shape == shape
    if loss.size:
        np.testing.assert_allclose(loss, harmonic_loss(jnp.ones((1, 6)), w, jnp.zeros(1, int)), rtol=1e-6)


def test_an_infinitely_far_center_has_no_probability():
    far = jnp.concatenate([w, jnp.full((1, 6), 1e30)])
    for loss in (partial(harmonic_loss, impl="eager"), chunked):
        got, want = (gradients(partial(loss, target=target), x, centers) for centers in (far, w))
        np.testing.assert_allclose(got[0], want[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(got[1][:5], want[1], rtol=1e-5, atol=1e-6)


loss = partial(harmonic_loss, x, w)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: squared_distance(x.astype(int), w), r"`input` must be a .*float32.*got int32; convert it with"),
        (lambda: squared_distance(torch.ones(4, 6), w), "`input` must be an array of jax or numpy, got torch.Tensor"),
        (
            lambda: harmonic_loss(x, w.tolist(), target),
            "`linear_weight` must be an array of jax or numpy, got builtins",
        ),
        (lambda: loss([0, 1, 2, 3]), "`target` must be an array of jax or numpy, got builtins.list"),
        (lambda: loss(target > 1), "`target` must be a .*float32.*got bool"),
        (lambda: loss(target, exponent="two"), "`exponent` must be a number, got 'two'"),
        (lambda: loss(target, softening="a"), "`softening` must be a number, got 'a'"),
        (lambda: loss(target, weight=[1.0] * 5), "`weight` must be an array of jax or numpy"),
        (lambda: loss(target, weight=jnp.ones(5) + 1j), "`weight` must hold real numbers, got complex64"),
        (lambda: loss(target, ignore_index=1.0), "`ignore_index` must be a whole number, got 1.0"),
        (lambda: loss(target, chunk_classes=1.5), "`chunk_classes` must be a whole number, got 1.5"),
        (lambda: loss(target, prior=jnp.zeros(5, int)), "`prior` must be a .*float32.*got int32"),
        (lambda: harmax(jnp.ones(2), None), "`exponent` must be a number, got None"),
        (lambda: HarmonicHead(6, 5, rngs=nnx.Rngs(0))(x, reduction="sum"), "`reduction` must come with a `target`"),
        (lambda: HarmonicHead(6.5, 5, rngs=nnx.Rngs(0)), "`in_features` must be a whole number, got 6.5"),
        (lambda: negative_log_likelihood([0.0], target), "`log_probabilities` must be an array"),
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
        (lambda: squared_distance(x[:, :5], w), r"`input` must have shape \(\.\.\., 6\).*got \(4, 5\)"),
        (lambda: loss(target[:3]), r"`target` must have shape \(4,\).*got \(3,\); flatten both or neither"),
        (lambda: loss(jnp.ones((4, 4))), r"`target` .*must have shape \(4, 5\).*got \(4, 4\)"),
        (lambda: loss(jnp.ones((4, 5)), ignore_index=1), "`ignore_index` must be left out"),
        (lambda: loss(jnp.array([0, 5, 2, 3])), r"`target` .*from 0 to 4 or ignore_index \(-100\), got 5; check the"),
        (lambda: loss(target, weight=jnp.ones(4)), r"`weight` must have shape \(5,\), got \(4,\)"),
        (lambda: loss(target, exponent=jnp.ones(5)), r"`exponent` must be .*0-d.*got shape \(5,\)"),
        (lambda: loss(target, exponent=-1.0), "`exponent` must be a positive number.*got -1.0; leave it out"),
        (lambda: loss(target, exponent=jnp.array(0.0)), "`exponent` must be a positive number.*got 0.0"),
        (lambda: loss(target, softening=-1.0), "`softening` must be a number from 0.*got -1.0"),
        (lambda: loss(target, reduction="average"), "`reduction` must be one of mean, sum, none, got 'average'"),
        (lambda: loss(target, impl="triton"), "`impl` must be one of auto, eager, chunked, got 'triton'"),
        (lambda: loss(target, label_smoothing=1.5), "`label_smoothing` must be .*0 to 1, got 1.5"),
        (lambda: loss(target, chunk_classes=0), "`chunk_classes` must be .*at least 1, got 0"),
        (lambda: loss(target, prior=jnp.full(5, jnp.nan)), "`prior` must hold finite log-weights or -inf, got nan"),
        (lambda: loss(target, prior=jnp.full(5, -jnp.inf)), "`prior` must leave at least one class"),
        (lambda: loss(target, prior=jnp.ones(4)), r"`prior` must have shape \(5,\), got \(4,\)"),
        (lambda: harmonic_logits(x, w, prior=jnp.ones(4)), r"`prior` must have shape \(5,\)"),
        (lambda: loss(target, class_axis="model"), "`class_axis` must be a mesh axis .*got 'model'; call the loss"),
        (lambda: loss(target, batch_axis="data"), "`batch_axis` must be a mesh axis .*got 'data'; call the loss"),
        (lambda: log_harmax(jnp.array([-1.0, 2.0]), 2.0), "`distance` must not be negative, got -1.0"),
        (lambda: negative_log_likelihood(jnp.ones((4, 5)), target[:3]), r"`labels` must have shape \(4,\).*\(3,\)"),
        (lambda: negative_log_likelihood(jnp.ones((4, 3)), target), "`labels` must hold .*from 0 to 2, got 3; check"),
        (lambda: HarmonicHead(6, 0, rngs=nnx.Rngs(0)), "`out_features` must be .*at least 1, got 0"),
    ],
)
def test_a_wrong_value_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_without_jax_the_error_names_the_command():
    code = "import sys; sys.modules['jax'] = None; import harmax; import harmax.jax"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (
        '`jax` must be installed for this part of harmax, but it is not; run pip install "harmax[jax]".' in done.stderr
    )
