"""One layer on pixels, all heads and seeds of a protocol trained as one stack.

A seed's three heads see the same batches from the same start, so that what differs between them is the head. The
gradients are written out: a step of the layer is two products, and the rest must not cost more than they do.
"""

# S seeds, A = 3 heads, V classes, D pixels, B batch, N images, E epochs

import math
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from harmax.data.images import Images
from harmax.environment import cores
from harmax.functional import squared_distance
from harmax_lab.ensemble.rows import descend, orders, streams
from harmax_lab.kit.experiment import Progress
from harmax_lab.vision.one_layer import BIASED, HARMONIC, HEADS, PROTOCOLS, OneLayerSpec, exponent_of

STACK = 5
"""Seeds that are trained together, whatever the number of cores: their batches fit into a core's own cache."""

CANCELED = 1e-6
"""Share of |x|^2 + |w|^2 below which |x|^2 + |w|^2 - 2 x.w is nothing but rounding."""


@dataclass(frozen=True)
class Data:
    """Images as rows of numbers in 0..1."""

    x_ND: Tensor
    y_N: Tensor
    classes: int

    @cached_property
    def norm_N(self) -> Tensor:
        """Squared length of each row: needed in every step, and always the same."""
        return self.x_ND.square().sum(1)

    def to(self, device: str) -> "Data":
        """Return the rows on a device; these very rows where they are there."""
        return Data(self.x_ND.to(device), self.y_N.to(device), self.classes)

    def pick(self, rows_SB: Tensor) -> "Batch":
        """Return some images, given by number."""
        x_SBD = self.x_ND.index_select(0, rows_SB.flatten()).unflatten(0, rows_SB.shape)
        return Batch(x_SBD, self.y_N[rows_SB], self.norm_N[rows_SB])


class Batch(NamedTuple):
    """Images of one step; each seed has its own."""

    x_SBD: Tensor
    y_SB: Tensor
    norm_SB: Tensor


def as_data(images: Images) -> Data:
    """Return images (N, H, W) as rows, 0 for black and 1 for white."""
    x_ND = torch.from_numpy(images.pixels.reshape(len(images.pixels), -1).astype(np.float32) / np.float32(255))
    return Data(x_ND, torch.from_numpy(images.labels), len(images.classes))


def closest(x_ND: Tensor, w_VD: Tensor) -> float:
    """Return the least squared distance of a row to a center over |x|^2 + |w|^2: it should be far above CANCELED."""
    norms_NV = x_ND.square().sum(1)[:, None] + w_VD.square().sum(1)
    return float((squared_distance(x_ND, w_VD) / norms_NV).min())


class Layer(NamedTuple):
    """The parameters of a stack."""

    weight_SAVD: Tensor
    bias_SV: Tensor
    """Of the head with a bias."""


class Trained(NamedTuple):
    """Where each run of a stack ended, and how it got there."""

    layer: Layer
    epochs_SA: np.ndarray
    """Epochs until the run stopped."""
    kept_SA: np.ndarray
    """Epochs after which the weights are those of `layer`: fewer, where the best of them on held-out images counts."""
    loss_SAE: np.ndarray
    """Mean training loss of each epoch, NaN after the run stopped."""
    watched_SAE: np.ndarray
    """The loss that decides when to stop: of held-out images where there are some."""


def initial_layer(seeds: Sequence[int], classes: int, pixels: int) -> Layer:
    """Draw N(0, 1 / pixels) weights and nn.Linear's bias, the same for every head of a seed; the authors start so."""
    bound = 1 / math.sqrt(pixels)
    weights, biases = [], []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        weights.append(torch.randn(classes, pixels, generator=generator) * bound)
        biases.append(torch.empty(classes).uniform_(-bound, bound, generator=generator))
    return Layer(torch.stack(weights)[:, None].repeat(1, len(HEADS), 1, 1), torch.stack(biases))


def scores(batch: Batch, layer: Layer, exponent: float, softening: float) -> tuple[Tensor, Tensor]:
    """Return every head's logits (S, A, V, B), and the harmonic head's s + a (S, V, B), s the squared distance.

    Distances come from products here, which cancel only where an image lies on a center. mnist.py uses the
    library's exact ones for whatever is reported, and stores how close to a center any image comes.
    """
    w_SAVD = layer.weight_SAVD
    z_SAVB = torch.bmm(w_SAVD.flatten(1, 2), batch.x_SBD.mT).unflatten(1, w_SAVD.shape[1:3])
    harmonic, biased = HEADS.index(HARMONIC), HEADS.index(BIASED)
    w_SVD = w_SAVD[:, harmonic]
    norms_SVB = batch.norm_SB[:, None] + torch.linalg.vecdot(w_SVD, w_SVD)[..., None]
    s_SVB = torch.maximum(norms_SVB - 2 * z_SAVB[:, harmonic], CANCELED * norms_SVB).add_(softening)
    z_SAVB[:, harmonic] = s_SVB.log().mul_(-exponent / 2)
    z_SAVB[:, biased] += layer.bias_SV[..., None]
    return z_SAVB, s_SVB


def losses_of(z_SAVB: Tensor, y_SB: Tensor) -> Tensor:
    """Return the mean loss of each run, (S, A)."""
    target = y_SB[:, None, None].expand(-1, z_SAVB.shape[1], 1, -1)
    return (z_SAVB.logsumexp(2) - z_SAVB.gather(2, target)[:, :, 0]).mean(2)


def gradients(batch: Batch, layer: Layer, exponent: float, softening: float) -> tuple[Tensor, Layer]:
    """Return each run's mean loss (S, A), and its gradient.

    With g = (softmax(z) - [true class]) / B: a linear head's is g^T x, its bias's the sum of g; for a harmonic head
    h = g n / (s + a), and it is h^T x - (sum of h) w.
    """
    z_SAVB, s_SVB = scores(batch, layer, exponent, softening)
    log_SAVB = z_SAVB.log_softmax(2)
    target = batch.y_SB[:, None, None].expand(-1, len(HEADS), 1, -1)
    loss_SA = -log_SAVB.gather(2, target)[:, :, 0].mean(2)
    g_SAVB = log_SAVB.exp_().scatter_add_(2, target, log_SAVB.new_full(target.shape, -1.0)).div_(batch.y_SB.shape[1])
    bias_SV = g_SAVB[:, HEADS.index(BIASED)].sum(2)
    harmonic = HEADS.index(HARMONIC)
    h_SVB = g_SAVB[:, harmonic].mul_(exponent).div_(s_SVB)  # in place: g's own rows
    d_SAVD = torch.bmm(g_SAVB.flatten(1, 2), batch.x_SBD).view_as(layer.weight_SAVD)
    d_SAVD[:, harmonic].addcmul_(h_SVB.sum(2, keepdim=True), layer.weight_SAVD[:, harmonic], value=-1)
    return loss_SA, Layer(d_SAVD, bias_SV)


def train(spec: OneLayerSpec, protocol: str, data: Data, progress: Progress) -> Trained:
    """Train all heads and seeds of a spec, some seeds per core; runs that stop early wait for the rest."""
    stacks = [spec.seeds[start : start + STACK] for start in range(0, len(spec.seeds), STACK)]
    steps, ended = [(0.0, "")] * len(stacks), threading.Event()

    def work(number: int) -> Trained:
        def tell(fraction: float, message: str = "", /) -> None:
            if ended.is_set():
                raise InterruptedError("the training was given up")
            steps[number] = fraction, message

        return _train(replace(spec, seeds=stacks[number]), protocol, data, tell)

    with _one_thread(), ThreadPoolExecutor(min(cores(), len(stacks))) as pool:
        futures = [pool.submit(work, number) for number in range(len(stacks))]
        try:
            # Only this thread reports: its listeners need not be ready for several.
            while wait(futures, timeout=0.5, return_when=FIRST_EXCEPTION).not_done:
                if any(future.done() and future.exception() for future in futures):
                    break
                progress(sum(fraction for fraction, _ in steps) / len(steps), min(steps)[1])
            parts = [future.result() for future in futures]
        finally:
            ended.set()  # after an interrupt the other threads would go on to their last epoch
    layers, *arrays = zip(*parts, strict=True)
    return Trained(Layer(*map(torch.cat, zip(*layers, strict=True))), *map(np.concatenate, arrays))


def _train(spec: OneLayerSpec, protocol: str, data: Data, progress: Progress) -> Trained:
    rule, pixels = PROTOCOLS[protocol], data.x_ND.shape[1]
    formula = exponent_of(protocol, pixels), rule.softening
    draws = streams(spec.seeds)
    held = round(len(data.x_ND) * (spec.held_out if rule.stop == "validation" else 0.0))
    held_SN, learned_SN = orders(len(data.x_ND), draws).tensor_split([held], 1)
    layer = Layer(*map(torch.nn.Parameter, initial_layer(spec.seeds, data.classes, pixels)))
    optimizer = torch.optim.AdamW(
        list(layer), lr=spec.learning_rate, weight_decay=spec.weight_decay, fused=True, foreach=False
    )
    epochs, passes = spec.epochs(protocol), max(1, round(spec.epoch_images / len(data.x_ND)))
    stops = _Stops(layer, epochs, spec, rule.stop)

    def losses(rows_SB: Tensor) -> Tensor:
        loss_SA, (layer.weight_SAVD.grad, layer.bias_SV.grad) = gradients(data.pick(rows_SB), layer, *formula)
        return loss_SA

    total_SA = torch.zeros(len(spec.seeds), len(HEADS))
    for epoch in range(epochs):
        passed = [learned_SN.gather(1, orders(learned_SN.shape[1], draws)) for _ in range(passes)]
        batches = [batch for rows_SN in passed for batch in rows_SN.split(spec.batch_size, 1)]
        total_SA.zero_()
        with torch.no_grad():
            descend(batches, losses, optimizer, lambda step, loss_SA: total_SA.add_(loss_SA))
            # The authors' code averages over batches, the smaller last one included.
            loss_SA = total_SA / len(batches)
            watched_SA = _held_loss(data, held_SN, layer, formula) if rule.stop == "validation" else loss_SA
            running = stops.after(epoch, layer, loss_SA.numpy(), watched_SA.numpy())
        progress((epoch + 1) / epochs, f"{protocol}, epoch {epoch + 1}")
        if not running:
            break
    return stops.so_far


class _Stops:
    """Which runs have stopped, where, and with which weights."""

    def __init__(self, layer: Layer, epochs: int, spec: OneLayerSpec, stop: str) -> None:
        shape = layer.weight_SAVD.shape[:2]
        losses = (np.full((*shape, epochs), np.nan, np.float32) for _ in range(2))
        kept = Layer(*(part.detach().clone() for part in layer))
        self.so_far = Trained(kept, np.zeros(shape, int), np.zeros(shape, int), *losses)
        self._spec, self._stop, self._last, self._going_SA = spec, stop, epochs - 1, np.ones(shape, bool)
        self._best_SA, self._since_SA = np.full(shape, np.inf), np.zeros(shape, int)

    def after(self, epoch: int, layer: Layer, loss_SA: np.ndarray, watched_SA: np.ndarray) -> int:
        """Take note of an epoch; return how many runs go on."""
        going, (kept, epochs_SA, kept_SA, loss_SAE, watched_SAE) = self._going_SA, self.so_far
        loss_SAE[..., epoch][going], watched_SAE[..., epoch][going] = loss_SA[going], watched_SA[going]
        epochs_SA[going] = epoch + 1
        better = watched_SA < self._best_SA - self._spec.least_improvement
        self._best_SA = np.where(better, watched_SA, self._best_SA)
        self._since_SA = np.where(better, 0, self._since_SA + 1)
        ended = (self._since_SA >= self._spec.patience) & (self._stop != "fixed") | (epoch == self._last)
        # Held-out images choose the best epoch; the other rules end with the weights they have.
        chosen_SA = going & (better if self._stop == "validation" else ended)
        if chosen_SA.any():
            kept_SA[chosen_SA] = epoch + 1
            kept.weight_SAVD[chosen_SA] = layer.weight_SAVD[chosen_SA]
            biased_S = chosen_SA[:, HEADS.index(BIASED)]
            kept.bias_SV[biased_S] = layer.bias_SV[biased_S]
        self._going_SA = going & ~ended
        return int(self._going_SA.sum())


def _held_loss(data: Data, held_SN: Tensor, layer: Layer, formula: tuple[float, float]) -> Tensor:
    total_SA = torch.zeros(layer.weight_SAVD.shape[:2])
    for rows_SB in held_SN.split(1000, 1):
        batch = data.pick(rows_SB)
        total_SA += losses_of(scores(batch, layer, *formula)[0], batch.y_SB) * rows_SB.shape[1]
    return total_SA / held_SN.shape[1]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one core: a step is too short to be worth waking a second one up."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
