"""A classifier's prototypes: which center is nearest to an image, how far it is, and which images are nearest to it.

Results are plain numpy arrays. Everything is computed in batches on the head's device, without gradients.
"""

# N images, B images of a batch, D features, V classes, K neighbors

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from harmax.heads.family import CosineHarmaxHead, DotHarmaxHead

Images = Tensor | np.ndarray | Iterable[Tensor | np.ndarray]
"""One array (N, ...), or an iterable of its batches if it does not fit into memory."""


class CenterHead(Protocol):
    """A head with centers (V, D) and the distances (B, V) of features (B, D) to them."""

    @property
    def centers(self) -> Tensor:
        """The class centers, (V, D)."""

    def distance(self, input: Tensor) -> Tensor:
        """Distance to every center, (..., V)."""


class PrototypeView(NamedTuple):
    """The reason for each image's class: its two nearest centers."""

    winner: np.ndarray
    """(N,) int64, the nearest center, which is the predicted class."""
    runner_up: np.ndarray
    """(N,) int64, the second nearest."""
    winner_distance: np.ndarray
    """(N,), to the nearest center. As a score for abstaining: how far an image is from every class."""
    runner_up_distance: np.ndarray
    """(N,), to the second nearest."""

    @property
    def ratio(self) -> np.ndarray:
        """Nearest distance divided by second nearest, (N,): 0 on a center, 1 halfway between two.

        As a score for abstaining: how unclear an image's class is. HarMax gives the winner odds of ratio^-exponent
        against the runner-up. The ratio is 1 where both distances are 0.
        """
        ones = np.ones_like(self.winner_distance)
        return np.divide(self.winner_distance, self.runner_up_distance, out=ones, where=self.runner_up_distance > 0)


def prototype_view(
    inputs: Images, head: CenterHead, *, model: nn.Module | None = None, batch_size: int = 512
) -> PrototypeView:
    """Find the nearest and the second nearest center of each image.

    Args:
        inputs: the input of `head`, (N, ...), flattened to (N, D). With `model`: the input of the model.
        head: a `HarmonicHead`, or another head that decides by distance.
        model: a classifier that contains `head`. Its features are taken where they enter the head. None: a one-layer
            classifier, or inputs that are features already.
        batch_size: images per batch, if `inputs` is one array.

    >>> from harmax import HarmonicHead
    >>> head = HarmonicHead(2, 3)
    >>> _ = head.weight.data.copy_(torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 9.0]]))
    >>> view = prototype_view(torch.tensor([[1.0, 0.0], [0.0, 8.0]]), head)
    >>> view.winner, view.winner_distance, view.runner_up, view.runner_up_distance
    (array([0, 2]), array([1., 1.], dtype=float32), array([1, 0]), array([3., 8.], dtype=float32))
    """
    parts: list[tuple[np.ndarray, ...]] = []
    with _measuring(head, model) as distances:
        if len(head.centers) < 2:
            raise ValueError(
                f"`head` must have at least 2 classes, got {len(head.centers)}; with one there is no runner-up."
            )
        for batch in _batches(inputs, batch_size, head.centers.device):
            d_BV = distances(batch)
            first_B1 = d_BV.argmin(1, keepdim=True)
            second_B1 = d_BV.scatter(1, first_B1, torch.inf).argmin(1, keepdim=True)
            columns = first_B1, second_B1, d_BV.gather(1, first_B1), d_BV.gather(1, second_B1)
            parts.append(tuple(column.squeeze(1).cpu().numpy() for column in columns))
    return PrototypeView(*(np.concatenate(part) for part in zip(*parts, strict=True)))


class NearestImages(NamedTuple):
    """The images nearest to each center, nearest first."""

    images: np.ndarray
    """(V, K) int64, their indices among the inputs."""
    distances: np.ndarray
    """(V, K), to the center."""


def nearest_images(
    inputs: Images, head: CenterHead, *, model: nn.Module | None = None, count: int = 5, batch_size: int = 512
) -> NearestImages:
    """Find the images nearest to each center, whatever their class. They show what a deep model's centers stand for.

    Every image is compared with every center, batch by batch. Distances are those of `head.distance` (float64 for
    float64 inputs). Equally near images keep their order.

    Args:
        inputs: usually the training images; see `prototype_view`.
        head: see `prototype_view`.
        model: see `prototype_view`.
        count: K, or all images if there are fewer.
        batch_size: see `prototype_view`.

    >>> from harmax import HarmonicHead
    >>> head = HarmonicHead(1, 2)
    >>> _ = head.weight.data.copy_(torch.tensor([[0.0], [10.0]]))
    >>> nearest_images(torch.tensor([[1.0], [7.0], [9.0], [3.0]]), head, count=2)
    NearestImages(images=array([[0, 3],
           [2, 1]]), distances=array([[1., 3.],
           [1., 3.]], dtype=float32))
    """
    if count < 1:
        raise ValueError(f"`count` must be at least 1, got {count}; try 5.")
    kept: list[tuple[Tensor, Tensor]] = []  # distances and numbers of the nearest so far, (V, K) each
    seen = 0
    with _measuring(head, model) as distances:
        for batch in _batches(inputs, batch_size, head.centers.device):
            d_VB = distances(batch).T
            numbers_VB = torch.arange(seen, seen + len(batch), device=d_VB.device).expand_as(d_VB)
            near, numbers = (torch.cat(both, 1) for both in zip(*kept, (d_VB, numbers_VB), strict=True))
            # The sort is stable and earlier images come first, so ties keep the images' order.
            order_VK = near.argsort(dim=1, stable=True)[:, :count]
            kept = [(near.gather(1, order_VK), numbers.gather(1, order_VK))]
            seen += len(batch)
    ((d_VK, numbers_VK),) = kept
    return NearestImages(numbers_VK.cpu().numpy(), d_VK.cpu().numpy())


def head_features(inputs: Images, head: nn.Module, *, model: nn.Module, batch_size: int = 512) -> np.ndarray:
    """Return the features that enter a classifier's head, (N, D), at least float32.

    Args:
        inputs: the input of `model`.
        head: any module inside `model`.
        model: the classifier. It is in evaluation mode meanwhile.
        batch_size: images per batch, if `inputs` is one array.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> head_features(torch.randn(10, 2, 2), model[3], model=model).shape
    (10, 3)
    """
    device = next(head.parameters()).device
    with torch.no_grad(), _entering(head, model) as features:
        found = [_wide(features(batch)).cpu().numpy() for batch in _batches(inputs, batch_size, device)]
    return np.concatenate(found)


def center_pictures(head: CenterHead, shape: Sequence[int]) -> np.ndarray:
    """Return the centers of a one-layer classifier in the shape of its images, (V, *shape), at least float32.

    Args:
        head: a head whose input is the pixels.
        shape: of an image, such as (28, 28) or (3, 32, 32).

    >>> from harmax import HarmonicHead
    >>> center_pictures(HarmonicHead(64, 10), (8, 8)).shape
    (10, 8, 8)
    """
    centers_VD = _wide(head.centers.detach()).cpu().numpy()
    if int(np.prod(shape)) != centers_VD.shape[1]:
        raise ValueError(
            f"`shape` must have {centers_VD.shape[1]} pixels, the size of a center, got {tuple(shape)}; for a head on "
            "features show `nearest_images`."
        )
    return centers_VD.reshape(-1, *shape)


@contextmanager
def _measuring(head: CenterHead, model: nn.Module | None) -> Iterator[Callable[[Tensor], Tensor]]:
    """Yield a function from a batch to its distances to every center, (B, V). Gradients are off meanwhile."""
    if not hasattr(head, "centers") or not hasattr(head, "distance"):
        raise TypeError(
            f"`head` must have `centers` and `distance`, got a {type(head).__name__}; a standard head has no "
            "prototypes, so train a HarmonicHead."
        )
    if isinstance(head, (CosineHarmaxHead, DotHarmaxHead)):
        raise TypeError(
            f"`head` must decide by the distance to its centers, got a {type(head).__name__}, which decides by angles; "
            "normalize features and centers first, and pass a HarmonicHead."
        )
    with torch.no_grad(), nullcontext(_flattened) if model is None else _entering(head, model) as features:

        def distances(batch: Tensor) -> Tensor:
            d_BV = head.distance(features(batch))
            broken = int((~d_BV.isfinite()).any(1).sum())
            if broken:
                raise ValueError(
                    f"`inputs` must have finite distances, got NaN or infinity for {broken} of the {len(d_BV)} images "
                    "of a batch; check the images and the model's weights."
                )
            return d_BV

        yield distances


def _flattened(batch: Tensor) -> Tensor:
    return batch.flatten(1)


@contextmanager
def _entering(head: Any, model: nn.Module) -> Iterator[Callable[[Tensor], Tensor]]:
    """Yield a function from a batch to the features (B, D) that enter the head, in evaluation mode."""
    if not any(module is head for module in model.modules()):
        raise ValueError(
            f"`model` must contain `head`, got a {type(model).__name__} without it; pass the module itself, such as "
            "model.classifier, not a copy."
        )
    caught: list[Tensor] = []
    modes = [(module, module.training) for module in model.modules()]

    def catch(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        given = [*arguments, *([named["input"]] if "input" in named else named.values())]
        caught.extend(given[:1])

    hook = head.register_forward_pre_hook(catch, with_kwargs=True)

    def features(batch: Tensor) -> Tensor:
        caught.clear()
        model(batch)
        if len(caught) != 1 or caught[0].dim() != 2 or len(caught[0]) != len(batch):
            came = [tuple(tensor.shape) for tensor in caught]
            raise ValueError(
                f"`model` must call `head` once, with one row of features for each of {len(batch)} images, got "
                f"{came or 'no call'}; pass features instead."
            )
        return caught[0]

    try:
        model.eval()
        yield features
    finally:
        hook.remove()
        for module, mode in modes:
            module.training = mode


def _batches(inputs: Images, size: int, device: torch.device) -> Iterator[Tensor]:
    if size < 1:
        raise ValueError(f"`batch_size` must be at least 1, got {size}; 512 is usual.")
    some = False
    for batch in _slices(inputs, size) if isinstance(inputs, (Tensor, np.ndarray)) else inputs:
        if not isinstance(batch, (Tensor, np.ndarray)) or batch.ndim < 2:
            came = f"shape {tuple(batch.shape)}" if hasattr(batch, "shape") else type(batch).__name__
            raise ValueError(
                f"`inputs` must be an array (images, ...) or batches of such arrays, got {came}; leave labels out, and "
                "pass one image as a batch of one."
            )
        some = some or len(batch) > 0
        if len(batch):
            yield torch.as_tensor(batch).to(device)
    if not some:
        raise ValueError("`inputs` must hold at least one image, got none; if it is an iterator, was it used before?")


def _slices(whole: Tensor | np.ndarray, size: int) -> Iterator[Tensor | np.ndarray]:
    for start in range(0, len(whole), size):
        yield whole[start : start + size]


def _wide(tensor: Tensor) -> Tensor:
    """Convert to float32 at least, because numpy has no bfloat16."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
