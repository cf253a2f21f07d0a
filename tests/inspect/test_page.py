"""Parts of the page of prototypes: thumbnails, escaped text, plots in the right place, many classes."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from harmax.inspect.page_parts import page, plot_coverage, plot_reliability, text, thumbnail
from harmax.inspect.prototype_page import _most_confused, _wilson


def image_of(element: str) -> Image.Image:
    found = re.search(r"base64,([^\"]+)", element)
    assert found is not None
    return Image.open(io.BytesIO(base64.b64decode(found[1])))


@pytest.mark.parametrize("shape", [(8, 8), (3, 8, 8)])
def test_a_small_thumbnail_keeps_every_pixel(shape: tuple[int, ...]) -> None:
    levels = np.random.default_rng(0).integers(256, size=shape)
    shown = np.asarray(image_of(thumbnail(levels / 255, "a")))
    np.testing.assert_array_equal(shown, levels if levels.ndim == 2 else levels.transpose(1, 2, 0))


def test_a_large_picture_becomes_small_and_its_name_is_escaped() -> None:
    element = thumbnail(np.full((3, 300, 400), 0.5), 'a" onerror="alert(1)')
    assert max(image_of(element).size) == 112
    assert "onerror=&quot;" in element
    assert 'onerror="' not in element


def test_a_name_that_is_no_text_is_shown_all_the_same() -> None:
    assert text("caf\udce9") == "caf\ufffd"
    page("caf\udce9 <b>", "").encode()
    assert "<title>caf\ufffd &lt;b&gt;</title>" in page("caf\udce9 <b>", "")


def test_dots_of_a_calibrated_classifier_lie_on_the_diagonal() -> None:
    levels = np.array([0.25, 0.5, np.nan])
    drawn = plot_reliability(levels, levels, np.array([10, 40, 0]))
    dots = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', drawn)]
    ends = [
        float(value) for value in re.findall(r'class="ideal" x1="(.+?)" y1="(.+?)" x2="(.+?)" y2="(.+?)"', drawn)[0]
    ]
    x0, y0, x1, y1 = ends
    assert len(dots) == 2  # nothing for the empty bin
    for (x, y), level in zip(dots, levels, strict=False):
        assert x == pytest.approx(x0 + level * (x1 - x0), abs=0.2)
        assert y == pytest.approx(y0 + level * (y1 - y0), abs=0.2)


def test_an_accuracy_that_falls_is_drawn_downward() -> None:
    share = np.linspace(0.01, 1, 1000)
    drawn = plot_coverage([(share, 1 - 0.2 * share), (share, 1 - 0.3 * share)])
    lines = [[float(pair.split(",")[1]) for pair in one.split()] for one in re.findall(r'points="(.+?)"', drawn)]
    assert [len(line) for line in lines] == [300, 300]
    assert all((np.diff(line) >= 0).all() for line in lines)
    assert lines[1][-1] > lines[0][-1]


def test_of_many_classes_the_most_frequent_confusions_are_listed() -> None:
    counts = np.diag(np.full(30, 50))
    counts[3, 7], counts[8, 2] = 4, 9
    listed = re.findall(
        r"<td>(.+?)</td><td>(.+?)</td><td>(\d+)</td>", _most_confused(counts, [f"<{n}>" for n in range(30)])
    )
    assert listed == [("&lt;8&gt;", "&lt;2&gt;", "9"), ("&lt;3&gt;", "&lt;7&gt;", "4")]


@pytest.mark.parametrize(("count", "total"), [(0, 5), (5, 5), (34, 36), (588, 600)])
def test_the_interval_is_that_of_scipy(count: int, total: int) -> None:
    from scipy.stats import binomtest

    low, high = binomtest(count, total).proportion_ci(0.95, method="wilson")
    assert _wilson(count, total) == pytest.approx((100 * low, 100 * high), abs=1e-3)
