"""Features of rows from a trained network or any function, which stay as they are."""

# N rows, D features

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

BATCH = 256


def extract(features: nn.Module | Callable[[Any], Any], x: Any) -> np.ndarray:
    """Return the features of all rows, (N, D), float64.

    A module is run in evaluation mode without gradients, in batches, on its own device. A function is called once.
    """
    found = _through(features, x) if isinstance(features, nn.Module) else features(x)
    if isinstance(found, Tensor):
        found = found.detach().cpu().double().numpy()
    try:
        x_ND = np.array(found, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"`features` must return one row of numbers per row of X, got {type(found).__name__}; return an array or a "
            "tensor."
        ) from error
    if x_ND.ndim != 2 or len(x_ND) != len(x):
        raise ValueError(
            f"`features` must return shape ({len(x)}, features), got {x_ND.shape}; flatten or average what it returns."
        )
    if not np.isfinite(x_ND).all():
        rows = int((~np.isfinite(x_ND)).any(axis=1).sum())
        raise ValueError(f"`features` must return finite numbers, got NaN or infinity in {rows} rows; look at X there.")
    return x_ND


@torch.no_grad()
def _through(module: nn.Module, x: Any) -> Tensor:
    first = next(module.parameters(), None)
    dtype = first.dtype if first is not None else torch.float32
    device = first.device if first is not None else torch.device("cpu")
    try:
        rows = x if isinstance(x, Tensor) else torch.tensor(np.asarray(x))
    except TypeError:
        raise TypeError(
            "X must hold numbers for a module as `features`, got other objects; pass a function instead, such as "
            "features=model.encode for texts."
        ) from None
    training = {one: one.training for one in module.modules()}
    module.eval()
    try:
        return torch.cat([module(batch.to(device=device, dtype=dtype)).cpu() for batch in rows.split(BATCH)])
    finally:
        for one, mode in training.items():
            one.training = mode
