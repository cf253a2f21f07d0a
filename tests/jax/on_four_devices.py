"""A program that computes losses split over four devices and writes what it finds, for test_sharding.py."""

import os
import sys
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from harmax.jax import harmonic_loss

ROWS, FEATURES, CLASSES = 12, 10, 40
MESHES = {"classes": (1, 4), "rows": (4, 1), "both": (2, 2)}
CASES: dict[str, dict[str, Any]] = {
    "indices": {},
    "smoothed": {"label_smoothing": 0.1, "softening": 0.2, "reduction": "none"},
    "probabilities": {"label_smoothing": 0.1, "reduction": "sum"},
}


def drawn(case: str) -> tuple[jax.Array, ...]:
    """Vectors, centers, exponent, prior, class weights and targets; some rows on and near centers, one ignored."""
    generator = np.random.default_rng(0)
    x, w = generator.normal(size=(ROWS, FEATURES)), generator.normal(size=(CLASSES, FEATURES))
    x[0], x[1], x[2] = w[39], w[11] + 1e-3 * x[1], w[0]
    prior, weight = generator.normal(size=CLASSES), generator.uniform(0.1, 1, size=CLASSES)
    target = generator.integers(CLASSES, size=ROWS)
    target[:4] = 39, 11, 20, -100
    if case == "probabilities":
        target = generator.dirichlet(np.ones(CLASSES), size=ROWS)
    if case == "indices":
        prior[[class_ for class_ in (5, 6, 33) if class_ not in target]] = -np.inf
    return tuple(jnp.asarray(one) for one in (*map(np.float32, (x, w, 5.0, prior, weight)), target))


def compute(case: str, mesh: str | None) -> list[np.ndarray]:
    """The loss, its statistics and its gradients, on one device or split."""
    x, w, exponent, prior, weight, target = drawn(case)
    settings: dict[str, Any] = {"impl": "chunked", "chunk_classes": 7, "return_stats": True, **CASES[case]}

    def loss(x, w, exponent, prior, weight, target):
        return tuple(harmonic_loss(x, w, target, exponent=exponent, prior=prior, weight=weight, **settings))

    run = loss
    if mesh is not None:
        settings |= {"class_axis": "model", "batch_axis": "data"}
        row, column = P("data"), P("model")
        targets = P("data", "model") if case == "probabilities" else row
        run = jax.shard_map(
            loss,
            mesh=jax.make_mesh(MESHES[mesh], ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto)),
            in_specs=(row, column, P(), column, column, targets),
            out_specs=(row if settings.get("reduction") == "none" else P(), row, row),
        )

    def total(*inputs):
        loss, *statistics = run(*inputs, weight, target)
        return loss.sum(), (loss, *statistics)

    gradients, found = jax.jit(jax.grad(total, argnums=(0, 1, 2, 3), has_aux=True))(x, w, exponent, prior)
    return [np.asarray(one) for one in (*found, *gradients)]


def refusal(**axes: str) -> str:
    """The error of a loss of which nothing is split."""
    x, w, *_, target = drawn("indices")
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))
    try:
        jax.shard_map(lambda *inputs: harmonic_loss(*inputs, **axes), mesh=mesh, in_specs=P(), out_specs=P())(
            x, w, target
        )
    except ValueError as error:
        return str(error)
    return "no error"


def main(path: str, *splits: str) -> None:
    """Compute everything and write it as one file of arrays."""
    assert len(jax.devices()) == 4
    found = {"classes": np.array(refusal(class_axis="model")), "rows": np.array(refusal(batch_axis="data"))}
    for split in splits:
        case, mesh = split.split("/")
        for one in (None, mesh):
            if f"{case}/{one}/0" not in found:
                found |= {f"{case}/{one}/{place}": array for place, array in enumerate(compute(case, one))}
    np.savez(path, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
