"""The data of all runs on the device, and the batches of each epoch as a function of keys."""

# S runs, N training rows, M test rows, B batch, T tokens, P steps per epoch

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from harmax_lab.ensemble.stack import Ensemble
from harmax_lab.ensemble.step import Batch
from harmax_lab.models.random import derive_key, random_bits
from harmax_lab.tasks import Split

ORDER, DROPOUT, TEST = range(3)  # what a run's keys are for


class Data(NamedTuple):
    """Rows of all runs, padded to the longest run."""

    train: Tensor
    """(S, N, T + 1)."""
    train_rows: Tensor
    """Number of rows of each run, (S, 1)."""
    epochs: Tensor
    """Number of epochs of each run, (S, 1)."""
    test: Batch
    keys: Tensor
    """One key per purpose and run, (3, S)."""


def check_splits(splits: Sequence[Split], ensemble: Ensemble) -> None:
    """Raise unless each run has a data set with rows on both sides, as many tokens per row, and its vocabulary."""
    runs = len(ensemble)
    if len(splits) != runs:
        raise ValueError(f"`splits` must be one for each of {runs} runs, got {len(splits)}; repeat one to share it.")
    for number, (split, model) in enumerate(zip(splits, ensemble, strict=True)):
        for side in ("train", "test"):
            rows = getattr(split, side)
            if rows.ndim != 2 or not len(rows) or rows.shape[1] != splits[0].train.shape[1]:
                raise ValueError(
                    f"`splits[{number}].{side}` must have one row or more of {splits[0].train.shape[1]} tokens, as in "
                    f"the other runs, got shape {rows.shape}; change the train fraction, or train it separately."
                )
            if rows.min() < 0 or rows.max() >= split.vocabulary:
                raise ValueError(
                    f"`splits[{number}].{side}` must hold tokens from 0 to {split.vocabulary - 1}, got {rows.min()} to "
                    f"{rows.max()}; check the vocabulary."
                )
        embedded = len(model.get_parameter("embedding"))
        if embedded != split.vocabulary:
            raise ValueError(
                f"`splits[{number}].vocabulary` must be {embedded}, the number of tokens that its model embeds, got "
                f"{split.vocabulary}; build the model for its data."
            )


def load(
    splits: Sequence[Split], seeds: Sequence[int], epochs: Sequence[int], device: torch.device, dtype: torch.dtype
) -> Data:
    """Move the rows of all runs to the device."""
    train, train_rows = _padded([split.train for split in splits])
    test, test_rows = _padded([split.test for split in splits])
    weight = (torch.arange(test.shape[1]) < test_rows).to(dtype)
    seed_S = torch.tensor([seed % 2**32 for seed in seeds])
    keys = torch.stack([derive_key(seed_S, purpose) for purpose in (ORDER, DROPOUT, TEST)])
    batch = Batch(test.to(device), weight.to(device), keys[TEST].to(device))
    last = torch.tensor(epochs, device=device)[:, None]
    return Data(train.to(device), train_rows.to(device), last, batch, keys.to(device))


def _padded(rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    tensors = [torch.from_numpy(np.ascontiguousarray(own, dtype=np.int64)) for own in rows]
    return pad_sequence(tensors, batch_first=True), torch.tensor([[len(own)] for own in rows])


def shuffled(data: Data, epoch: Tensor, batch_size: int, dtype: torch.dtype) -> Batch:
    """Return the batches of an epoch: rows (P, S, B, T + 1), weights (P, S, B), keys (P, S).

    The order of a run depends only on its seed and the epoch: its rows are sorted by random numbers, and padding comes
    last. `epoch` is a 0-d tensor, so that nothing waits for the device.
    """
    runs, longest, tokens = data.train.shape
    steps = math.ceil(longest / batch_size)
    index_N = torch.arange(longest, device=epoch.device)
    bits_SN = random_bits(derive_key(data.keys[ORDER], epoch)[:, None], index_N)
    order_SN = torch.where(index_N < data.train_rows, bits_SN, 2**32).argsort(dim=1, stable=True)
    rows = data.train.gather(1, order_SN[..., None].expand(-1, -1, tokens))
    rows = torch.nn.functional.pad(rows, (0, 0, 0, steps * batch_size - longest))
    rows = rows.view(runs, steps, batch_size, tokens).transpose(0, 1).contiguous()
    place = torch.arange(steps * batch_size, device=epoch.device).view(steps, 1, batch_size)
    step_P = torch.arange(steps, device=epoch.device)[:, None]
    keys = derive_key(derive_key(data.keys[DROPOUT], epoch), step_P)
    return Batch(rows, ((place < data.train_rows) & (epoch < data.epochs)).to(dtype), keys)


def test_batch(data: Data, epoch: Tensor) -> Batch:
    """Return the test rows with the keys of an epoch."""
    return data.test._replace(key=derive_key(data.test.key, epoch))
