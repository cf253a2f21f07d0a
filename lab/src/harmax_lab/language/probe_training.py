"""Small classifiers of vectors, many trained at once: one hidden layer to two classes, and how well they do.

Probes that share a seed share their start, their held-out tenth and the order of their batches, whatever features they
look at, so that differences between features, layers or models are paired. No probe's numbers depend on the others.
"""

# P kinds of features (layers, read-outs), S seeds, N sentences, B of a batch, D features, H hidden units

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from harmax_lab.ensemble.rows import descend, keep_where, orders, streams

SCORES = ("f1", "macro_f1", "accuracy")
LEAST = 10  # below it there is no tenth to hold out
EVALUATED_AT_ONCE = 1024


@dataclass(frozen=True, kw_only=True)
class ProbeTraining:
    """How a probe is trained; the paper says no more than one hidden layer of 16."""

    hidden: int = 16
    epochs: int = 20
    """Of which the one with the least loss on the held-out tenth counts."""
    batch: int = 128
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        if min(self.hidden, self.epochs, self.batch) < 1 or not self.learning_rate > 0:
            raise ValueError(
                f"`hidden`, `epochs`, `batch` and `learning_rate` must be positive, got {self}; raise them."
            )


class Probes(NamedTuple):
    """Trained probes, (P, S) of them, and what they expect of features."""

    weights: tuple[Tensor, ...]
    """Of the first layer (P, S, D, H), its bias (P, S, 1, H), of the second (P, S, H, 2), its bias (P, S, 1, 2)."""
    mean_P1D: Tensor
    scale_P1D: Tensor
    epoch_PS: Tensor
    """Epochs after which each was taken, from 1."""

    @torch.no_grad()
    def classify(self, features_PND: Tensor) -> Tensor:
        """Say 0 or 1 for each sentence, (P, S, N) uint8."""
        seeds, count = self.epoch_PS.shape[1], features_PND.shape[1]
        ready_PND = (features_PND - self.mean_P1D) / self.scale_P1D
        index_SN = torch.arange(count, device=features_PND.device).expand(seeds, -1)
        parts = [_logits(self.weights, ready_PND, part).argmax(-1) for part in index_SN.split(EVALUATED_AT_ONCE, 1)]
        return torch.cat(parts, -1).to(torch.uint8)


@torch.enable_grad()  # whoever measures a model may have switched gradients off
def train_probes(
    features_PND: Tensor, labels_N: Tensor, *, seeds: Sequence[int], training: ProbeTraining | None = None
) -> Probes:
    """Train a probe for each kind of features and seed, all in one stack, by Adam on the cross-entropy.

    Features are standardized by all N sentences. A tenth of them is held out: after every epoch its loss decides
    whether a probe is the best so far. Nothing waits for the device between two batches.

    Args:
        features_PND: on the device to train on, float32.
        labels_N: 0 or 1, int64, on the same device.
        seeds: each decides initial weights, batch order and the held-out tenth, alike on every device.
        training: None means the defaults.
    """
    training = training or ProbeTraining()
    kinds, count, width = features_PND.shape
    if count < LEAST:
        raise ValueError(
            f"`features` must be of at least {LEAST} sentences, so that a tenth can be held out, got {count}."
        )
    if not bool(features_PND.isfinite().all()):
        raise ValueError("`features` must be finite, got infinity or NaN; has the model diverged?")
    device, draws = features_PND.device, streams(seeds)
    mean_P1D, scale_P1D = _standard(features_PND)
    ready_PND = (features_PND - mean_P1D) / scale_P1D
    held_SN, kept_SN = (part.to(device) for part in orders(count, draws).tensor_split([count // 10], 1))
    weights = tuple(
        torch.stack(starts).to(device).repeat(kinds, 1, 1, 1).requires_grad_()
        for starts in zip(*(_start(stream, width, training.hidden) for stream in draws), strict=True)
    )
    chosen = tuple(weight.detach().clone() for weight in weights)
    least_PS = torch.full((kinds, len(seeds)), torch.inf, device=device)
    epoch_PS = torch.zeros(kinds, len(seeds), dtype=torch.int64, device=device)
    optimizer = torch.optim.Adam(weights, lr=training.learning_rate)

    def losses(index_SB: Tensor) -> Tensor:
        return _losses(weights, ready_PND, labels_N, index_SB)

    for epoch in range(training.epochs):
        index_SN = kept_SN.gather(1, orders(kept_SN.shape[1], draws).to(device))
        descend(index_SN.split(training.batch, 1), lambda index_SB: losses(index_SB).mean(-1), optimizer)
        with torch.no_grad():
            held_PS = torch.cat([losses(part) for part in held_SN.split(EVALUATED_AT_ONCE, 1)], -1).mean(-1)
            better_PS = held_PS < least_PS
            least_PS = torch.where(better_PS, held_PS, least_PS)
            epoch_PS = torch.where(better_PS, epoch + 1, epoch_PS)
            keep_where(better_PS, chosen, weights)
    return Probes(chosen, mean_P1D, scale_P1D, epoch_PS)


def _standard(features_PND: Tensor) -> tuple[Tensor, Tensor]:
    deviation_P1D, mean_P1D = torch.std_mean(features_PND, 1, correction=0, keepdim=True)
    # What varies by its rounding alone is left as it is, near 0, instead of being blown up to a feature.
    return mean_P1D, torch.where(deviation_P1D > 1e-5 * mean_P1D.abs(), deviation_P1D, 1.0)


def _start(stream: torch.Generator, width: int, hidden: int) -> list[Tensor]:
    """Draw nn.Linear's default weights and biases of the two layers."""
    shapes = ((width, width, hidden), (width, 1, hidden), (hidden, hidden, 2), (hidden, 1, 2))
    return [torch.empty(shape).uniform_(-(inputs**-0.5), inputs**-0.5, generator=stream) for inputs, *shape in shapes]


def _logits(weights: tuple[Tensor, ...], features_PND: Tensor, index_SB: Tensor) -> Tensor:
    """Return logits (P, S, B, 2) of each seed's own sentences."""
    first, first_bias, second, second_bias = (weight.flatten(0, 1) for weight in weights)
    x_PSBD = features_PND[:, index_SB]
    hidden = torch.baddbmm(first_bias, x_PSBD.flatten(0, 1), first).relu()
    return torch.baddbmm(second_bias, hidden, second).unflatten(0, x_PSBD.shape[:2])


def _losses(weights: tuple[Tensor, ...], features_PND: Tensor, labels_N: Tensor, index_SB: Tensor) -> Tensor:
    logits = _logits(weights, features_PND, index_SB)
    target_PSB = labels_N[index_SB].expand(logits.shape[:-1])
    return F.cross_entropy(logits.flatten(0, 2), target_PSB.flatten(), reduction="none").view(target_PSB.shape)


def scores(said: np.ndarray, labels: np.ndarray, counts: np.ndarray | None = None) -> dict[str, np.ndarray]:
    r"""Return how well answers fit labels: F1 of class 1, the mean F1 of both classes, and accuracy.

    .. math:: F_1 = \frac{2\,\mathrm{TP}}{2\,\mathrm{TP} + \mathrm{FP} + \mathrm{FN}}, \text{ and 0 where that is } 0/0

    Args:
        said: answers 0 or 1, (..., N).
        labels: 0 or 1, (N,).
        counts: how often each sentence counts, (K, N), for K scores each; None: once, for one score.

    Returns:
        `SCORES`, each (...) or with counts (..., K), float64.

    >>> {name: float(found) for name, found in scores(np.array([1, 1, 0, 0]), np.array([1, 0, 0, 0])).items()}
    {'f1': 0.6666666666666666, 'macro_f1': 0.7333333333333334, 'accuracy': 0.75}
    """
    weight = np.ones((1, len(labels))) if counts is None else np.asarray(counts, dtype=np.float64)
    yes, truth = np.asarray(said, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    total, positive, claimed = weight.sum(1), weight @ truth, yes @ weight.T
    right = (yes * truth) @ weight.T
    rejected = total - positive - claimed + right
    f1 = _share(2 * right, claimed + positive)
    both = (f1 + _share(2 * rejected, 2 * total - claimed - positive)) / 2
    found = dict(zip(SCORES, (f1, both, (right + rejected) / total), strict=True))
    return found if counts is not None else {name: values[..., 0] for name, values in found.items()}


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros(np.broadcast(part, whole).shape), where=whole > 0)
