"""Loss and gradients of JAX against float64 brute force, in 1500 drawn cases: far from, near and on centers."""

import contextlib
from typing import NamedTuple
from unittest.mock import patch

import jax
import pytest
import torch

from harmax.jax import distance, harmonic_loss
from harmax.kernels.eager import hit_floor
from jax_arrays import array, tensor
from oracle import GRADIENT_UNIT, UNIT, assert_matches, assert_prior_gradients_match, brute_force, lost_below_tiny

pytestmark = pytest.mark.jax


class Kind(NamedTuple):
    """What a compiled function is made for; everything else is drawn."""

    shape: tuple[int, int, int]
    dtype: torch.dtype = torch.float32
    probabilities: bool = False
    reduction: str = "mean"
    label_smoothing: float = 0.0
    softening: float = 0.0


KINDS = {
    "indices": Kind((9, 6, 30)),
    "softened": Kind((5, 40, 17), reduction="none", label_smoothing=0.1, softening=0.3),
    "least": Kind((1, 1, 2), reduction="sum"),
    "probabilities": Kind((6, 12, 29), probabilities=True, label_smoothing=0.1),
    "double": Kind((9, 16, 20), torch.float64, reduction="none"),
    "half": Kind((8, 20, 26), torch.bfloat16, reduction="sum"),
}
PATHS = [(path, kind) for path in ("eager", "chunked") for kind in KINDS]
PATHS += [("operator", kind) for kind in ("indices", "double", "half")]
"""The operator is for large distances; here even small ones go through it. Blocks of 7 classes overlap."""

CASES = 100
"""Of each path and kind: 1500 in all. Compiling costs more than they do."""


@contextlib.contextmanager
def on_path(path: str):
    small = patch.multiple(distance, DIRECT_ELEMENTS=0, BLOCK_ELEMENTS=1, LEAST_CLASSES=7)
    with small if path == "operator" else contextlib.nullcontext():
        yield


def settings_of(path: str) -> dict:
    return {"impl": "chunked", "chunk_classes": 7} if path == "chunked" else {"impl": "eager"}


def draw(kind: Kind, generator: torch.Generator):
    """Vectors far from, near and on centers, the right ones and wrong ones, and a prior that may leave out classes."""
    rows, features, classes = kind.shape
    normal = {"generator": generator, "dtype": torch.float64}
    x, w = torch.randn(rows, features, **normal), torch.randn(classes, features, **normal)
    target = torch.randint(classes, (rows,), generator=generator)

    def choice(values):
        return values[int(torch.randint(len(values), (), generator=generator))]

    for row in range(rows):
        place = choice(["far", "near", "near the target", "on", "on the target"])
        center = w[int(target[row]) if "target" in place else choice(range(classes))]
        x[row] = x[row] if place == "far" else center + ("on" not in place) * 10.0 ** -choice(range(1, 6)) * x[row]
    shift = choice([0.0, 0.0, 10.0])
    x, w = (x + shift).to(kind.dtype), (w + shift).to(kind.dtype)
    wide = torch.promote_types(kind.dtype, torch.float32)
    prior = choice([0.0, 0.1, 3.0, 30.0]) * torch.randn(classes, generator=generator, dtype=wide)
    if not kind.probabilities and not kind.label_smoothing and choice([True, False]):
        left_out = torch.rand(classes, generator=generator) < 0.3
        left_out[target] = False
        prior[left_out] = -torch.inf
    if kind.probabilities:
        target = torch.rand(rows, classes, generator=generator, dtype=wide)
        target /= target.sum(1, keepdim=True)
    elif rows > 1 and choice([True, False]):
        target[0] = -100
    weight = torch.rand(classes, generator=generator, dtype=wide) + 0.1
    exponent = choice([0.5, 1.0, 2.0, 3.7, 28.0, 300.0, 2048.0])
    return x, w, target, {"exponent": exponent, "prior": prior, "weight": weight}


@pytest.mark.parametrize(("path", "name"), PATHS)
def test_loss_and_gradients_match_float64(path, name):
    kind, generator = KINDS[name], torch.Generator().manual_seed(0)
    static = {"reduction": kind.reduction, "label_smoothing": kind.label_smoothing, "softening": kind.softening}
    with jax.enable_x64(kind.dtype == torch.float64), on_path(path):

        @jax.jit
        def compute(x, w, exponent, prior, target, weight):
            def total(*inputs):
                x, w, exponent, prior = inputs
                loss = harmonic_loss(
                    x, w, target, exponent=exponent, prior=prior, weight=weight, **static, **settings_of(path)
                )
                return loss.sum(), loss

            gradients, loss = jax.grad(total, argnums=(0, 1, 2, 3), has_aux=True)(x, w, exponent, prior)
            return loss, *gradients

        for _ in range(CASES):
            x, w, target, options = draw(kind, generator)
            wide = torch.promote_types(kind.dtype, torch.float32)
            inputs = x, w, torch.tensor(options["exponent"], dtype=wide), options["prior"], target, options["weight"]
            loss, dx, dw, dexponent, dprior = map(tensor, compute(*map(array, inputs)))
            assert (loss.dtype, dx.dtype, dw.dtype) == (wide, kind.dtype, kind.dtype)
            want = brute_force(x, w, target, hit_floor=hit_floor(wide), **options, **static)
            units = {"unit": UNIT[kind.dtype], "gradient_unit": GRADIENT_UNIT[kind.dtype]}
            # XLA makes 0 of what is below the smallest normal float.
            smallest = max(1e-36, lost_below_tiny(x, w, options | static, wide))
            assert_matches(want, loss, dx, dw, options=options | static, smallest=smallest, **units)
            assert_prior_gradients_match(want, dexponent, dprior, options=options, unit=units["unit"])
