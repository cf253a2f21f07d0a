"""The choice of the exponent and of the temperature, by rows that a head was not fitted to."""

# N rows, V classes

import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold

from harmax.analysis import fit_temperature
from harmax.sklearn.training import MINI_BATCH_ABOVE, Fitting, Rows, fit_model

Auto = float | Literal["auto"]

START, SMALLEST, LARGEST = 8.0, 1.0, 512.0
"""The search starts at the best single exponent of eight development data sets, and doubles or halves from there."""
LEAST_ROWS = 3
"""Rows of the rarest class without which nothing can be held out."""
ONE_FOLD_ABOVE = 1000
"""Number of rows above which one fold is enough to compare exponents."""
TEMPERATURES = (0.5, 10.0)
"""With few mistakes among the held-out rows the best temperature is not determined; it stays between these limits."""


class FewRowsWarning(UserWarning):
    """There are too few rows to choose the exponent or to calibrate probabilities."""


@dataclass(frozen=True)
class HeldOut:
    """Predictions for rows by heads that did not see them."""

    places: np.ndarray
    """(K,), of the distinct training rows."""
    log_p: np.ndarray
    """(K, V), before the temperature."""


@dataclass(frozen=True)
class Choice:
    """What was chosen, and from which comparison."""

    exponent: float
    temperature: float
    calibration: str
    tried: dict[float, float]
    """Log loss of held-out rows per exponent, each with its best temperature; empty if none was compared."""
    held_out: HeldOut | None


def choose(rows: Rows, exponent: Auto, temperature: Auto, fitting: Fitting, folds: int, names: list[str]) -> Choice:
    """Choose what is "auto" by stratified cross-validation; without enough rows warn and take fixed values.

    Args:
        rows: distinct rows. Copies of a row were merged before, so they never are on both sides of a split.
        exponent: a number, or "auto".
        temperature: a number, or "auto".
        fitting: as for training.
        folds: number of folds; at most the number of rows of the rarest class.
        names: of the classes, for the warning.
    """
    fixed_exponent = START if exponent == "auto" else float(exponent)
    fixed_temperature = 1.0 if temperature == "auto" else float(temperature)
    if exponent != "auto" and temperature != "auto":
        return Choice(fixed_exponent, fixed_temperature, "given", {}, None)
    counts_V = np.bincount(rows.y_N.numpy(), minlength=fitting.classes)
    rarest = int(counts_V.argmin())
    if counts_V[rarest] < LEAST_ROWS:
        warnings.warn(
            f"every class must have at least {LEAST_ROWS} distinct rows to hold some out, got {counts_V[rarest]} of "
            f"class {names[rarest]}; exponent {fixed_exponent:g} is taken and probabilities are not calibrated. Add "
            "rows, leave the class out, or set `exponent` and `temperature`.",
            FewRowsWarning,
            stacklevel=3,
        )
        return Choice(fixed_exponent, fixed_temperature, "none: too few rows", {}, None)
    splits = _splits(rows, min(folds, int(counts_V[rarest])), fitting.seed)
    tried: dict[float, float] = {}
    if exponent == "auto":
        some = splits if len(rows) <= ONE_FOLD_ABOVE else splits[:1]
        fixed_exponent = _climb(rows, some, fitting, tried)
    used = splits if len(rows) <= MINI_BATCH_ABOVE else splits[:1]
    held_out = _predict_held_out(rows, used, fixed_exponent, fitting, loose=False)
    if temperature == "auto":
        fixed_temperature = _temperature(rows, held_out)
    how = f"{len(used)}-fold cross-validation" if len(used) > 1 else "a held-out fold"
    return Choice(fixed_exponent, fixed_temperature, how if temperature == "auto" else "given", tried, held_out)


def with_temperature(log_p_NV: np.ndarray, temperature: float) -> np.ndarray:
    """Return log-probabilities after a temperature, (N, V)."""
    z_NV = log_p_NV / temperature
    z_NV = z_NV - z_NV.max(axis=1, keepdims=True)
    return z_NV - np.log(np.exp(z_NV).sum(axis=1, keepdims=True))


def _splits(rows: Rows, folds: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    order = StratifiedKFold(folds, shuffle=True, random_state=seed)
    return list(order.split(np.zeros(len(rows)), rows.y_N.numpy()))


def _climb(
    rows: Rows, splits: list[tuple[np.ndarray, np.ndarray]], fitting: Fitting, tried: dict[float, float]
) -> float:
    """Double the exponent while that lowers the held-out loss, else halve it while that does."""

    def loss(exponent: float) -> float:
        if exponent not in tried:
            held_out = _predict_held_out(rows, splits, exponent, fitting, loose=True)
            log_p_NV = with_temperature(held_out.log_p, _temperature(rows, held_out))
            weight_N = rows.weight_N.numpy()[held_out.places]
            true_N = log_p_NV[np.arange(len(log_p_NV)), rows.y_N.numpy()[held_out.places]]
            tried[exponent] = float(-(weight_N @ true_N) / weight_N.sum())
        return tried[exponent]

    best = START
    for factor in (2.0, 0.5):
        while SMALLEST <= best * factor <= LARGEST and loss(best * factor) < loss(best):
            best *= factor
        if best != START:
            break
    return best


def _predict_held_out(
    rows: Rows, splits: list[tuple[np.ndarray, np.ndarray]], exponent: float, fitting: Fitting, *, loose: bool
) -> HeldOut:
    parts = []
    for known, new in splits:
        model, _, _ = fit_model(rows.take(known), exponent, fitting, loose=loose)
        with torch.no_grad():
            parts.append(model(rows.x_ND[new]).numpy())
    return HeldOut(np.concatenate([new for _, new in splits]), np.concatenate(parts))


def _temperature(rows: Rows, held_out: HeldOut) -> float:
    weights_K = rows.weight_N.numpy()[held_out.places]
    labels_K = rows.y_N.numpy()[held_out.places]
    return fit_temperature(held_out.log_p, labels_K, weights=weights_K, limits=TEMPERATURES)
