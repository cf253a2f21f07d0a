"""A classifier on a page: decisions, neighbors and confidences are those of the head, for rows, texts and pictures."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_iris

from harmax import HarmonicHead
from harmax.inspect.explorer import Example, Shown, shown_classifier, unpack
from harmax.inspect.explorer.classifiers import data_address


@pytest.fixture(scope="module")
def flowers():
    """Iris flowers as rows of a table, and a head whose centers are the means of the classes."""
    found = load_iris()
    rows = (found.data - found.data.mean(0)).astype(np.float32)
    head = HarmonicHead(4, 3, exponent=2.0)
    head.weight.data.copy_(torch.stack([torch.from_numpy(rows[found.target == one].mean(0)) for one in range(3)]))

    def show(place: int) -> Example:
        row = {name: f"{value:.1f}" for name, value in zip(found.feature_names, found.data[place], strict=True)}
        return Example(f"flower {place}", row=row)

    return head, Shown(rows, found.target, show), list(found.target_names)


def test_decisions_are_those_of_the_head(flowers) -> None:
    head, side, names = flowers
    shown = shown_classifier(head, names, side, side, name="iris", examples=20, neighbors=4)
    with torch.no_grad():
        distances = head.distance(torch.from_numpy(side.features)).numpy()
        confidence = head(torch.from_numpy(side.features)).softmax(1).amax(1).numpy()
    np.testing.assert_array_equal(unpack(shown.winner), distances.argmin(1))
    np.testing.assert_allclose(unpack(shown.winner_distance), distances.min(1), rtol=1e-6)
    np.testing.assert_allclose(unpack(shown.confidence), confidence, rtol=1e-6)
    assert len(shown.examples) == 20
    for one in shown.examples:
        np.testing.assert_allclose(unpack(one.distances), distances[one.place], rtol=1e-6)
        assert one.example == side.show(one.place)
    for label, neighbors in enumerate(shown.nearest):
        nearest = np.argsort(distances[:, label], kind="stable")[:4]
        assert [one.example for one in neighbors] == [side.show(int(place)) for place in nearest]


def test_names_must_be_those_of_all_classes(flowers) -> None:
    head, side, _ = flowers
    with pytest.raises(ValueError, match=r"`classes` must be the names of the head's 3 classes.*got 2"):
        shown_classifier(head, ["setosa", "other"], side, side, name="iris")


@pytest.mark.parametrize(("shape", "kind"), [((8, 8), "png"), ((3, 8, 8), "png"), ((3, 300, 200), "webp")])
def test_a_picture_travels_in_its_address(shape: tuple[int, ...], kind: str) -> None:
    pixels = np.linspace(0, 1, int(np.prod(shape))).reshape(shape)
    start, _, data = data_address(pixels).partition(",")
    assert start == f"data:image/{kind};base64"
    with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
        assert max(picture.size) <= 96
        if kind == "png":
            drawn = np.asarray(picture) / 255
            expected = pixels if pixels.ndim == 2 else pixels.transpose(1, 2, 0)
            np.testing.assert_allclose(drawn, expected, atol=0.5 / 255)
