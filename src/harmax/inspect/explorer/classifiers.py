"""A classifier for a page: its centers, what lies near them, and the reasons for its decisions."""

# N test examples, D features, V classes, K neighbors

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from harmax.errors import needs
from harmax.heads import CenterHead
from harmax.inspect.classifiers import ClassifierWithImages, choose_decisions
from harmax.inspect.explorer.document import Example, Neighbor, ShownClassifier, ShownExample, pack
from harmax.inspect.image_sides import Side
from harmax.inspect.prototypes import PrototypeView, center_pictures, head_features, nearest_images

LARGEST_PICTURE = 96  # pixels
BATCH = 4096


@dataclass(frozen=True, eq=False)
class Shown:
    """Examples with features and classes, and how one of them looks: a picture, a text or a row."""

    features: np.ndarray
    """What enters the head, (N, D)."""
    labels: np.ndarray
    """(N,)"""
    show: Callable[[int], Example]
    """Returns the example at a place."""


def shown_classifier(
    head: CenterHead,
    classes: Sequence[str],
    train: Shown,
    test: Shown,
    *,
    name: str,
    source: str = "",
    neighbors: int = 5,
    examples: int = 120,
    centers: Sequence[Example] = (),
) -> ShownClassifier:
    """Return any classifier with a harmonic head as a page shows it: of pictures, texts or rows.

    Args:
        head: has the centers.
        classes: their names, (V,).
        train: examples to be found near the centers.
        test: examples whose decisions are shown.
        name: of the classifier.
        source: what it was read from.
        neighbors: training examples to show for each center.
        examples: test examples to show: right ones from sure to unsure, and the surest mistakes.
        centers: pictures of the centers, where the head's inputs are pixels.
    """
    if len(classes) < 2 or len(classes) != len(head.centers):
        raise ValueError(
            f"`classes` must be the names of the head's {len(head.centers)} classes, at least 2, got {len(classes)}; "
            "name each once."
        )
    device = head.centers.device
    near = nearest_images(torch.from_numpy(train.features), head, count=neighbors)
    distances_NV, confidence_N = _decided(head, torch.from_numpy(test.features).to(device))
    order_NV = np.argsort(distances_NV, axis=1, kind="stable")
    winner, runner_up = order_NV[:, 0], order_NV[:, 1]
    far, second = (np.take_along_axis(distances_NV, one[:, None], 1)[:, 0] for one in (winner, runner_up))
    chosen = choose_decisions(PrototypeView(winner, runner_up, far, second), test.labels, examples)
    return ShownClassifier(
        name=name,
        source=source,
        classes=tuple(classes),
        exponent=float(head.exponent),
        softening=float(head.softening),
        train_count=len(train.labels),
        centers=tuple(centers),
        nearest=tuple(
            tuple(
                Neighbor(train.show(int(place)), int(train.labels[place]), round(float(distance), 6))
                for place, distance in zip(places, own, strict=True)
            )
            for places, own in zip(near.images, near.distances, strict=True)
        ),
        label=pack(test.labels, "int32"),
        winner=pack(winner, "int32"),
        runner_up=pack(runner_up, "int32"),
        winner_distance=pack(far),
        runner_up_distance=pack(second),
        confidence=pack(confidence_N),
        examples=tuple(ShownExample(one, test.show(one), pack(distances_NV[one])) for one in chosen),
    )


def shown_pictures(
    subject: ClassifierWithImages, *, name: str, source: str = "", neighbors: int = 5, examples: int = 120
) -> ShownClassifier:
    """Return an image classifier and its images as a page shows them; the arguments are those of `shown_classifier`."""
    one = subject.classifier
    sides = []
    for words, side in (("training", subject.train), ("test", subject.test)):
        batches = side.batches(one.prepare, lambda done, of: None)
        if one.model is None:
            features = torch.cat([batch.flatten(1) for batch in batches]).cpu().numpy()
        else:
            features = head_features(batches, one.head, model=one.model)

        def show(place: int, words: str = words, side: Side = side) -> Example:
            pixels = side.pictures(np.array([place]))[0]
            named = f"{words} image {side.numbers[place]}" if side.files is None else side.files[place]
            return Example(named, data_address(pixels))

        sides.append(Shown(features, side.labels, show))
    centers: tuple[Example, ...] = ()
    if one.model is None:
        height, width = subject.train.pictures(np.zeros(1, int)).shape[-2:]
        drawn = _between_0_and_1(center_pictures(one.head, (height, width)))
        centers = tuple(
            Example(f"center of {name}", data_address(picture))
            for name, picture in zip(subject.classes, drawn, strict=True)
        )
    return shown_classifier(
        one.head,
        subject.classes,
        *sides,
        name=name,
        source=source,
        neighbors=neighbors,
        examples=examples,
        centers=centers,
    )


def data_address(pixels: np.ndarray) -> str:
    """Return a picture from 0 to 1, (H, W) or (3, H, W), as an address that holds it. Large ones are made smaller.

    >>> data_address(np.zeros((2, 2)))[:22]
    'data:image/png;base64,'
    """
    with needs("figures"):
        from PIL import Image  # comes with matplotlib

    channels_last = pixels.transpose(1, 2, 0) if pixels.ndim == 3 else pixels
    picture = Image.fromarray(np.rint(255 * channels_last.clip(0, 1)).astype(np.uint8))
    kind = "webp" if max(picture.size) > 40 else "png"  # small pictures keep every pixel
    picture.thumbnail((LARGEST_PICTURE, LARGEST_PICTURE))
    buffer = io.BytesIO()
    picture.save(buffer, kind)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


@torch.no_grad()
def _decided(head: CenterHead, features_ND: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return all distances (N, V) and the winners' probabilities (N,)."""
    distances, confidence = [], []
    for batch in features_ND.split(BATCH):
        distances.append(head.distance(batch).float().cpu().numpy())
        confidence.append(head(batch).float().softmax(1).amax(1).cpu().numpy())
    return np.concatenate(distances), np.concatenate(confidence)


def _between_0_and_1(centers: np.ndarray) -> np.ndarray:
    """Return pictures with one scale for all centers; 0 stays at middle gray where some weights are negative."""
    reach = float(np.abs(centers).max()) or 1.0
    return centers / reach if centers.min() >= 0 else 0.5 + centers / (2 * reach)
