"""Runs of `gpt2` whose models have planted embeddings and layers, for tests of the views."""

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np

from harmax.inspect.embedding import Arrays
from harmax_lab.kit.store import CellResult
from harmax_lab.language.arms import PAPERS, STANDARD
from harmax_lab.language.gpt2 import ArmCell, LanguageSpec
from planted_models import TASKS, TOKENS, measured, planted, states_of, tiny, with_embedding

SEEDS = (0, 1, 2)
SPEC = LanguageSpec(seeds=SEEDS, exponent=28.0)
LAYER = 6
Model = Callable[[int], Arrays]
"""The measured arrays of a model, by its seed."""


def models(standard: Model, harmonic: Model, seeds: tuple[int, ...] = SEEDS) -> dict[ArmCell, CellResult]:
    """Return the results of both arms."""
    arms = {STANDARD: standard, PAPERS: harmonic}
    return {ArmCell(arm, seed): CellResult(arrays=dict(model(seed))) for seed in seeds for arm, model in arms.items()}


@cache
def noisy(noise: float, seed: int) -> Arrays:
    """Measure an embedding whose pairs are parallelograms up to noise."""
    return measured(planted(noise, seed=seed))


def near(seed: int) -> Arrays:
    return noisy(0.2, seed)


def far(seed: int) -> Arrays:
    return noisy(0.8, seed)


@cache
def slanted(degrees: float, seed: int) -> Arrays:
    """Measure an embedding whose pairs of present and past are parallelograms with about this angle."""
    generator = np.random.default_rng(seed)
    x_VD = generator.normal(size=(TOKENS, 4)) * [3.0, 2.0, 0.1, 0.1]
    angle = np.radians(degrees + seed)
    for place, (first, second) in enumerate(TASKS["present-past"]):
        x_VD[int(first)] = [place / 10 - 1.5, 0.0, 0.0, 0.0]
        x_VD[int(second)] = x_VD[int(first)] + [np.cos(angle), np.sin(angle), 0.0, 0.0]
    return measured(x_VD.astype(np.float32))


@cache
def _states() -> Mapping[str, np.ndarray]:
    found = states_of(with_embedding(tiny(), planted(1.0)))
    return {key.replace("/0/", f"/{LAYER}/"): array for key, array in found.items()}


@cache
def layered(spike: float, tail: float, together: float, seed: int) -> Arrays:
    """Return the measures of a layer.

    Args:
        spike: share of the losses that are near zero.
        tail: all losses are raised to the power 1 + tail, which keeps their median at 1.
        together: distance of partners by that of shuffled ones.
        seed: of the losses.
    """
    generator, arrays = np.random.default_rng(seed), dict(_states())
    for task in TASKS:
        place = f"layers/{task}/{LAYER}"
        losses = np.sqrt(-np.log2(generator.uniform(size=len(arrays[f"{place}/losses"]))))  # of median 1
        losses = np.where(losses > 1, losses ** (1 + tail), losses)
        losses *= np.where(generator.uniform(size=len(losses)) < spike, 1e-3, 1.0)
        arrays[f"{place}/losses"] = losses.astype(np.float32)
        arrays[f"{place}/null"] = generator.permutation(np.linspace(0.1, 2, len(losses))).astype(np.float32)
        shuffled = generator.uniform(0.9, 1.1, size=len(arrays[f"{place}/partners"]))
        arrays[f"{place}/partners"] = np.stack([together * shuffled, generator.permutation(shuffled)], 1)
    return arrays
