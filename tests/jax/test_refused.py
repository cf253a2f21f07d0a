"""Errors in the grammar of the functions of torch: the argument, the value and the remedy."""

import subprocess
import sys
from functools import partial

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

RANDOM = np.random.default_rng(0)
x, w = (jnp.asarray(RANDOM.normal(size=(rows, 6)), jnp.float32) for rows in (4, 5))
target = jnp.array([0, 1, 2, 3])
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
