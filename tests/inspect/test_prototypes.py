"""The prototype view: what the head decides, as numbers and pictures a person can check."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from harmax import HarmonicHead
from harmax.analysis.outliers import abstention_curve, distance_ratio, nearest_distance
from harmax.figures import house_style, to_png
from harmax.heads import HEADS
from harmax.inspect import PrototypeView, center_pictures, head_features, nearest_images, prototype_view
from harmax.inspect import prototype_figures as figures

NAMES = [str(digit) for digit in range(10)]
BY_DISTANCE = [name for name in HEADS if name not in ("linear", "dot_harmax", "cosine_harmax")]


class SmallNet(nn.Module):
    """Convolution, normalization, dropout: everything that differs between training and evaluation."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 6, 3, 2), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.5), nn.Flatten())
        self.head = head

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(self.body(images))}  # as Hugging Face's models, not a bare tensor


@pytest.fixture
def net() -> SmallNet:
    torch.manual_seed(0)
    return SmallNet(HarmonicHead(54, 10))


@pytest.fixture
def images() -> Tensor:
    return torch.randn(37, 1, 8, 8, generator=torch.Generator().manual_seed(1))


class Digits:
    """Scikit-learn's digits, pixels from 0 to 1, and a one-layer harmonic classifier trained on them."""

    def __init__(self) -> None:
        found = load_digits()
        order = np.random.default_rng(0).permutation(len(found.target))
        self.images = (found.images[order] / 16).astype(np.float32)
        self.labels = found.target[order]
        torch.manual_seed(0)
        self.head = HarmonicHead(64, 10)
        x, y = torch.from_numpy(self.images[:1200]).flatten(1), torch.from_numpy(self.labels[:1200])
        optimizer = torch.optim.AdamW(self.head.parameters(), lr=1e-2)
        for _ in range(300):
            optimizer.zero_grad()
            nn.functional.cross_entropy(self.head(x), y).backward()
            optimizer.step()
        self.test_images, self.test_labels = self.images[1200:], self.labels[1200:]


@pytest.fixture(scope="module")
def digits() -> Digits:
    return Digits()


@pytest.mark.parametrize("name", BY_DISTANCE)
def test_the_winner_is_what_the_head_predicts(name: str) -> None:
    torch.manual_seed(0)
    head = HEADS[name](12, 5).eval()  # in training the first batch would decide a scale
    x = torch.randn(200, 12)
    view = prototype_view(x, head, batch_size=64)
    with torch.no_grad():
        best = head(x).topk(2).indices.numpy()
        distances = head.distance(x).sort(1).values[:, :2].numpy()
    np.testing.assert_array_equal(np.stack([view.winner, view.runner_up], 1), best)
    np.testing.assert_allclose(np.stack([view.winner_distance, view.runner_up_distance], 1), distances, rtol=1e-5)


def test_the_ratio_gives_the_odds_and_is_the_score_of_the_analysis() -> None:
    torch.manual_seed(0)
    head, x = HarmonicHead(12, 5, exponent=6, scale=1.0), torch.randn(50, 12)
    view = prototype_view(x, head)
    with torch.no_grad():
        p, d = head(x).softmax(1).sort(1, descending=True).values.numpy(), head.distance(x).numpy()
    np.testing.assert_allclose(view.ratio**-6, p[:, 0] / p[:, 1], rtol=1e-3)
    np.testing.assert_allclose(view.ratio, -distance_ratio(d), rtol=1e-6)
    np.testing.assert_allclose(view.winner_distance, -nearest_distance(d), rtol=1e-6)


def test_an_image_on_a_center_is_certain_and_between_twins_undecided() -> None:
    head = HarmonicHead(2, 3)
    head.weight.data = torch.tensor([[1.0, 2.0], [4.0, 6.0], [4.0, 6.0]])
    view = prototype_view(head.centers, head)
    assert view.winner.tolist() == [0, 1, 1]
    assert view.runner_up.tolist() == [1, 2, 2]
    assert view.winner_distance.tolist() == [0, 0, 0]
    assert view.ratio.tolist() == [0, 1, 1]


@pytest.mark.parametrize("batch_size", [1, 5, 37, 1000])
def test_a_models_features_are_those_that_enter_its_head(net: SmallNet, images: Tensor, batch_size: int) -> None:
    with torch.no_grad():
        features = copy.deepcopy(net).eval().body(images)
    found = head_features(images, net.head, model=net, batch_size=batch_size)
    np.testing.assert_allclose(found, features.numpy(), rtol=1e-5, atol=1e-6)
    whole = prototype_view(images, net.head, model=net, batch_size=batch_size)
    for one, two in zip(whole, prototype_view(features, net.head), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5)


class AnyWords(nn.Module):
    """A head that does not mind what its arguments are called."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, **words: object) -> Tensor:
        return self.weight


class ByName(nn.Module):
    """Calls its head with names alone."""

    def __init__(self, head: nn.Module, words: tuple[str, ...]) -> None:
        super().__init__()
        self.head, self.words = head, words

    def forward(self, images: Tensor) -> Tensor:
        return self.head(**{word: 2.0 if word == "scale" else images.flatten(1) for word in self.words})


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (HarmonicHead(64, 10), ("input",)),
        (AnyWords(), ("scale", "input")),
        (AnyWords(), ("features", "scale")),
    ],
)
def test_a_head_may_be_called_by_name(images: Tensor, head: nn.Module, words: tuple[str, ...]) -> None:
    found = head_features(images, head, model=ByName(head, words))
    np.testing.assert_array_equal(found, images.flatten(1).numpy())


@pytest.mark.parametrize(
    "wrap", [Tensor.numpy, lambda x: list(x.split(10)), lambda x: (b.numpy() for b in x.split(16))]
)
def test_inputs_may_be_arrays_or_batches(net: SmallNet, images: Tensor, wrap: Callable) -> None:
    expected = nearest_images(images, net.head, model=net, count=3)
    found = nearest_images(wrap(images), net.head, model=net, count=3)
    np.testing.assert_array_equal(found.images, expected.images)
    np.testing.assert_allclose(found.distances, expected.distances, rtol=1e-5)


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(net: SmallNet, images: Tensor, fails: bool) -> None:
    net.train()
    net.body[1].eval()  # normalization frozen, as in fine-tuning
    before, modes = copy.deepcopy(net.state_dict()), [module.training for module in net.modules()]
    if fails:
        with pytest.raises(ValueError, match="NaN or infinity for 37 of the 37 images"):
            prototype_view(images * torch.nan, net.head, model=net)
    else:
        prototype_view(images, net.head, model=net)
    assert [module.training for module in net.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
    assert torch.is_grad_enabled()
    assert not net.head._forward_pre_hooks


@pytest.mark.parametrize("batch_size", [1, 7, 64, 1000])
def test_the_nearest_images_are_those_of_brute_force(batch_size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    head, x = HarmonicHead(6, 4), torch.randn(300, 6, generator=generator).double()
    distances = np.linalg.norm(x.numpy()[None] - head.centers.double().numpy()[:, None], axis=2)
    found = nearest_images(x, head, count=9, batch_size=batch_size)
    np.testing.assert_array_equal(found.images, distances.argsort(1)[:, :9])
    np.testing.assert_allclose(found.distances, np.sort(distances, 1)[:, :9], rtol=1e-9)


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_equally_near_images_come_in_their_order(batch_size: int) -> None:
    head = HarmonicHead(1, 2)
    head.weight.data = torch.tensor([[0.0], [100.0]])
    x = torch.tensor([[3.0], [-2.0], [2.0], [-2.0], [1.0], [2.0]])
    found = nearest_images(x, head, count=4, batch_size=batch_size)
    assert found.images[0].tolist() == [4, 1, 2, 3]
    assert nearest_images(x, head, count=50, batch_size=batch_size).images.shape == (2, 6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_half_precision_models_are_measured_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    head = HarmonicHead(8, 3, dtype=dtype)
    view = prototype_view(torch.randn(10, 8, dtype=dtype), head)
    assert view.winner_distance.dtype == np.float32
    assert center_pictures(head, (2, 4)).dtype == np.float32


def test_centers_trained_on_digits_are_pictures_of_them(digits: Digits) -> None:
    view = prototype_view(digits.test_images, digits.head)
    assert (view.winner == digits.test_labels).mean() > 0.9
    pictures = center_pictures(digits.head, (8, 8))
    means = np.stack([digits.images[:1200][digits.labels[:1200] == digit].mean(0) for digit in range(10)])
    correlation = np.corrcoef(pictures.reshape(10, -1), means.reshape(10, -1))[:10, 10:]
    assert np.diag(correlation).min() > 0.7
    assert (correlation.argmax(1) == np.arange(10)).all()
    near = nearest_images(digits.images[:1200], digits.head, count=5)
    assert (digits.labels[near.images] == np.arange(10)[:, None]).mean() > 0.9


def test_abstaining_by_either_score_leaves_better_answers(digits: Digits) -> None:
    view = prototype_view(digits.test_images, digits.head)
    correct = view.winner == digits.test_labels
    for score in (view.ratio, view.winner_distance):
        curve = abstention_curve(correct, -score)
        half = curve.accuracy[np.searchsorted(curve.coverage, 0.5)]
        assert half > curve.accuracy[-1] == pytest.approx(correct.mean())


def texts(figure: object) -> list[str]:
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]  # type: ignore[attr-defined]


def pictures_in(figure: object) -> list[np.ndarray]:
    from matplotlib.image import AxesImage

    return [np.asarray(image.get_array()) for image in figure.findobj(AxesImage)]  # type: ignore[attr-defined]


def test_centers_are_drawn_with_their_names_and_one_scale(digits: Digits) -> None:
    pictures = center_pictures(digits.head, (8, 8))
    with house_style():
        figure = figures.draw_centers(pictures, NAMES, columns=4)
        assert to_png(figure).startswith(b"\x89PNG")
    assert set(NAMES) <= set(texts(figure))
    np.testing.assert_allclose(np.stack(pictures_in(figure)), pictures)
    limits = {axes.images[0].get_clim() for axes in figure.axes if axes.images}
    assert limits == {(-np.abs(pictures).max(), np.abs(pictures).max())}


def test_neighbors_are_drawn_with_distances_and_those_of_other_classes_named(digits: Digits) -> None:
    near = nearest_images(digits.images[:1200], digits.head, count=3)
    images, labels = digits.images[near.images], digits.labels[near.images].copy()
    labels[2, 1] = 7
    with house_style():
        figure = figures.draw_nearest(
            images, near.distances, labels, NAMES, centers=center_pictures(digits.head, (8, 8))
        )
        assert to_png(figure).startswith(b"\x89PNG")
    assert len(pictures_in(figure)) == 40
    assert f"{near.distances[2, 1]:#.3g} (7)" in texts(figure)
    assert f"{near.distances[2, 0]:#.3g}" in texts(figure)
    chosen = figures.draw_nearest(images[[4, 6]], near.distances[[4, 6]], labels[[4, 6]], NAMES, classes=[4, 6])
    assert {"4", "6"} <= set(texts(chosen))
    assert not any("(" in text for text in texts(chosen))


def test_decisions_are_drawn_with_both_centers_and_distances(digits: Digits) -> None:
    view = prototype_view(digits.test_images, digits.head)
    rows = np.argsort(view.ratio)[[0, 100, -1]]
    chosen = PrototypeView(*(column[rows] for column in view))
    pictures = center_pictures(digits.head, (8, 8))
    with house_style():
        figure = figures.draw_decisions(digits.test_images[rows], chosen, digits.test_labels[rows], NAMES, pictures)
        assert to_png(figure).startswith(b"\x89PNG")
    shown = pictures_in(figure)
    for row, index in enumerate(rows):
        np.testing.assert_allclose(shown[3 * row], digits.test_images[index])
        np.testing.assert_allclose(shown[3 * row + 1], pictures[view.winner[index]])
        np.testing.assert_allclose(shown[3 * row + 2], pictures[view.runner_up[index]])
        assert any(f"(ratio {view.ratio[index]:.2f})" in text for text in texts(figure))


def test_color_pictures_are_drawn_channels_last() -> None:
    color = np.random.default_rng(0).random((3, 3, 8, 8))
    figure = figures.draw_centers(color, ["cat", "dog", "bird"])
    assert [picture.shape for picture in pictures_in(figure)] == [(8, 8, 3)] * 3
    np.testing.assert_allclose(pictures_in(figure)[1][..., 2], color[1, 2])


def test_abstention_is_drawn_a_line_a_score() -> None:
    one = abstention_curve(np.arange(100) < 80, -np.arange(100.0))
    figure = figures.draw_abstention({"harmonic": one[1:], "nearest distance": one[1:]}, least=0.2)
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines] == ["harmonic", "nearest distance"]
    assert axes.lines[0].get_xdata()[0] == 0.2
    assert axes.lines[0].get_ydata()[-1] == pytest.approx(80)


def small_head(classes: int = 3) -> HarmonicHead:
    return HarmonicHead(4, classes)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: prototype_view(torch.ones(2, 4), nn.Linear(4, 3)), TypeError, "a standard head has no prototypes"),
        (lambda: prototype_view(torch.ones(2, 4), HEADS["dot_harmax"](4, 3)), TypeError, "decides by angles"),
        (lambda: prototype_view(torch.ones(2, 4), HEADS["cosine_harmax"](4, 3)), TypeError, "decides by angles"),
        (lambda: prototype_view(torch.ones(2, 4), small_head(1)), ValueError, "at least 2 classes, got 1"),
        (lambda: prototype_view(torch.ones(4), small_head()), ValueError, r"`inputs` must be an array .* got shape"),
        (lambda: prototype_view([(torch.ones(2, 4), 1)], small_head()), ValueError, "got tuple; leave labels out"),
        (lambda: prototype_view(torch.ones(0, 4), small_head()), ValueError, "at least one image, got none"),
        (
            lambda: prototype_view(iter([]), small_head()),
            ValueError,
            "got none; if it is an iterator",
        ),
        (lambda: prototype_view(torch.ones(2, 4), small_head(), batch_size=0), ValueError, "`batch_size` must be"),
        (lambda: prototype_view(torch.ones(2, 5), small_head()), ValueError, r"shape \(..., 4\)"),
        (lambda: prototype_view(torch.ones(2, 4), small_head(), model=nn.Flatten()), ValueError, "must contain `head`"),
        (lambda: nearest_images(torch.ones(2, 4), small_head(), count=0), ValueError, "`count` must be at least 1"),
        (lambda: center_pictures(small_head(), (3, 3)), ValueError, r"have 4 pixels, .* got \(3, 3\)"),
        (lambda: figures.draw_centers(np.ones((2, 3, 3)), ["a"]), ValueError, "`names` must be 2"),
        (lambda: figures.draw_nearest(*[np.ones((99, 1, 2, 2))] * 3, ["a"]), ValueError, "1 to 24 centers, got 99"),
    ],
)
def test_bad_input_is_refused(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_model_that_calls_its_head_more_than_once_is_refused() -> None:
    head = HarmonicHead(4, 4)
    with pytest.raises(ValueError, match=r"must call `head` once, .* got \[\(2, 4\), \(2, 4\)\]"):
        prototype_view(torch.ones(2, 4), head, model=nn.Sequential(head, head))
