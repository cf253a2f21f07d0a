"""The explorer in a real browser: what a reader sees and can do."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harmax import harmonic_logits
from harmax.analysis import abstention_curve, expected_calibration_error, pca, project
from harmax.inspect.classifiers import BINS
from harmax.inspect.explorer import ExplorerDocument, page_of, unpack
from planted_pages import FEATURES, SNAPSHOTS, embedding, grown

pytestmark = pytest.mark.browser

AXE = Path(__file__).parents[2] / "site/node_modules/axe-core/axe.min.js"
VIEWS = ("growth", "by_hand", "classifiers", "verdicts", "costs")
MOST_MS = 16


def open_view(page: Any, view: str) -> None:
    page.click(f"#tab-{view}")
    page.wait_for_timeout(100)  # a frame is drawn


def set_slider(page: Any, selector: str, value: float) -> None:
    page.eval_on_selector(
        selector, "(node, value) => { node.value = value; node.dispatchEvent(new Event('input')); }", value
    )


def dots(page: Any, head: str) -> np.ndarray:
    """Where the dots are, in the units of the data."""
    view, places = page.eval_on_selector(
        f"#growth .{head} svg.plane",
        """node => {
            const dots = [...node.querySelectorAll('.dot')];
            return [node.dataset.view, dots.map((one) => [one.cx.baseVal.value, one.cy.baseVal.value])];
        }""",
    )
    x, y, scale = map(float, view.split())
    places = np.array(places)
    return np.stack([(places[:, 0] - 220) / scale + x, (220 - places[:, 1]) / scale + y], 1)


@pytest.mark.parametrize("snapshot", [0, 5, SNAPSHOTS - 1])
def test_dots_are_where_numpy_puts_them(page: Any, snapshot: int) -> None:
    open_view(page, "growth")
    set_slider(page, "#growth .time input", snapshot)
    found = embedding(seed=0)
    assert found.shape[-1] == FEATURES
    expected = project(found[snapshot], fitted=pca(found[-1]))
    for head in ("standard", "harmonic"):
        assert np.abs(dots(page, head) - expected).max() < 1e-3


def test_the_page_opens_at_its_heading_and_remembers_the_view(page: Any) -> None:
    assert page.evaluate("scrollY") == 0
    open_view(page, "costs")
    page.reload()
    page.locator("#costs input").first.wait_for()
    assert page.evaluate("scrollY") == 0


def test_another_seed_is_another_picture(page: Any) -> None:
    open_view(page, "growth")
    set_slider(page, "#growth .time input", 0)
    before = dots(page, "harmonic")
    page.select_option("#growth .controls label:has-text('Seed') select", "1")
    set_slider(page, "#growth .time input", 0)
    found = embedding(seed=1)
    after = dots(page, "harmonic")
    assert np.abs(after - before).max() > 0.01
    assert np.abs(after - project(found[0], fitted=pca(found[-1]))).max() < 1e-3


def test_play_moves_to_the_end_and_the_curves_follow(page: Any) -> None:
    open_view(page, "growth")
    page.click("#growth .time button")
    page.locator("#growth .time button", has_text="Pause").wait_for()
    page.locator("#growth .time button", has_text="Play").wait_for(timeout=10_000)
    assert page.input_value("#growth .time input") == str(SNAPSHOTS - 1)
    now = page.locator("#growth .now")
    right = float(now.get_attribute("x1"))
    set_slider(page, "#growth .time input", 0)
    assert float(now.get_attribute("x1")) < right
    assert "before training" in page.inner_text("#growth .harmonic h3")


def test_a_frame_that_began_before_the_click_moves_nothing_backwards(page: Any) -> None:
    open_view(page, "growth")
    page.evaluate(
        "() => { const ask = requestAnimationFrame; window.requestAnimationFrame = (f) => ask((now) => f(now - 500)); }"
    )
    page.click("#growth .time button")
    page.wait_for_timeout(100)
    assert np.isfinite(dots(page, "harmonic")).all()


def test_two_thousand_dots_move_within_a_frame(browser: Any, document: ExplorerDocument, tmp_path: Path) -> None:
    many = replace(document, growth=tuple(grown(head, 0, 2000) for head in ("linear", "harmonic")))
    path = tmp_path / "many.html"
    path.write_text(page_of(many), encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    # Script time alone: both panels are moved, and the browser draws later. Other programs can only add to a time,
    # so the shortest one is the script's own.
    times = page.evaluate(
        """() => {
            const input = document.querySelector('#growth .time input');
            return Array.from({ length: 40 }, (_, turn) => {
                input.value = turn % 12;
                const start = performance.now();
                input.dispatchEvent(new Event('input'));
                return performance.now() - start;
            });
        }"""
    )
    assert page.locator("#growth .dot").count() == 4000
    assert min(times) < MOST_MS, "for two panels of 2000 dots each"
    page.close()


def test_a_center_is_moved_by_keyboard_and_by_pointer(page: Any) -> None:
    open_view(page, "by_hand")
    probability = page.locator("#by_hand tr[data-class='0'] td").nth(1)
    center = page.locator("#by_hand .harmonic [data-what='center-0']")
    before = probability.inner_text()
    center.focus()
    for _ in range(3):
        page.keyboard.press("Shift+ArrowLeft")
    page.wait_for_timeout(100)
    assert "at -3.1, -1.0" in center.get_attribute("aria-label")
    moved = probability.inner_text()
    assert moved != before
    box = center.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 120, box["y"] + 60, steps=4)
    page.mouse.up()
    page.wait_for_timeout(100)
    assert probability.inner_text() != moved


@pytest.mark.parametrize(("exponent", "softening"), [(2.0, 0.0), (16.0, 0.5)])
def test_probabilities_by_hand_are_those_of_the_library(page: Any, exponent: float, softening: float) -> None:
    open_view(page, "by_hand")
    set_slider(page, "#by_hand label:has-text('Exponent') input", np.log2(exponent))
    set_slider(page, "#by_hand label:has-text('Softening') input", softening)
    page.wait_for_timeout(100)
    centers = torch.tensor([[-1.6, -1.0], [1.7, -0.9], [0.0, 1.8]], dtype=torch.float64)
    point = torch.tensor([[-1.2, -0.6]], dtype=torch.float64)
    expected = harmonic_logits(point, centers, exponent=exponent, softening=softening).softmax(1)[0]
    linear = (point @ centers.T).softmax(1)[0]
    rows = page.locator("#by_hand tr[data-class]")
    for label in range(3):
        cells = [float(text.split()[0]) / 100 for text in rows.nth(label).locator("td").all_inner_texts()[1:]]
        assert cells == pytest.approx([float(expected[label]), float(linear[label])], abs=6e-4)


def test_abstaining_gives_what_the_library_computes(page: Any, document: ExplorerDocument) -> None:
    open_view(page, "classifiers")
    shown = document.classifiers[0]
    far, second = unpack(shown.winner_distance), unpack(shown.runner_up_distance)
    correct = unpack(shown.winner) == unpack(shown.label)
    assert 0.5 < correct.mean() < 0.95
    curve = abstention_curve(correct, -far / second)
    for share in (1.0, 0.8, 0.4):
        set_slider(page, "#classifiers label:has-text('Share') input", 100 * share)
        said = page.inner_text("#classifiers [role=status]")
        expected = float(curve.accuracy[np.searchsorted(curve.coverage, share)])
        found = re.search(r"examples are answered; ([\d.]+) %", said)
        assert found is not None
        assert float(found[1]) == pytest.approx(100 * expected, abs=0.06)
    assert page.locator("#classifiers .left-out").count() > 0


def test_the_mean_gap_is_that_of_the_page_of_prototypes(page: Any, document: ExplorerDocument) -> None:
    open_view(page, "classifiers")
    shown = document.classifiers[0]
    confidence, correct = unpack(shown.confidence).astype(np.float64), unpack(shown.winner) == unpack(shown.label)
    others = np.repeat((1 - confidence)[:, None] / 1000, 1000, axis=1)
    expected = expected_calibration_error(
        np.log(np.column_stack([confidence, others]) + 1e-30), (~correct).astype(int), bins=BINS
    )
    said = page.inner_text("#classifiers h3:has-text('Reliability')")
    assert float(said.split("gap")[1].split()[0]) == pytest.approx(100 * expected, abs=0.06)


@pytest.mark.parametrize(("place", "inside"), [("0", "img"), ("1", "text=A sentence"), ("2", "td")])
def test_pictures_texts_and_rows_are_explained(page: Any, place: str, inside: str) -> None:
    open_view(page, "classifiers")
    page.select_option("#classifiers label:has-text('Classifier') select", place)
    reason = page.locator("#classifiers .card[aria-live]")
    page.locator("#classifiers ul[aria-label='Test examples'] button").nth(3).click()
    assert "second nearest" in reason.inner_text()
    assert reason.locator(".example").first.locator(inside).count() >= 1
    page.locator("#classifiers ul[aria-label='Classes'] button").nth(2).click()
    assert reason.locator("h3").first.inner_text() == "Class south"


def test_verdicts_are_filtered_and_lead_to_figures_and_runs(page: Any) -> None:
    open_view(page, "verdicts")
    claims = page.locator("#verdicts .claims > li")
    assert claims.count() == 2  # without controls
    page.check("#verdicts input[type=checkbox]")
    assert claims.count() == 3
    page.select_option("#verdicts label:has-text('Verdict') select", "not reproduced")
    assert claims.all_inner_texts()[0].startswith("not reproduced")
    assert page.inner_text("#verdicts [role=status]") == "1 claim: 1 not reproduced."
    claims.first.locator("summary").click()
    claims.first.locator("figure img").wait_for()
    assert claims.first.locator("a", has_text="the runs").get_attribute("href") == "https://example.org/runs"
    page.select_option("#verdicts label:has-text('Verdict') select", "")
    page.fill("#verdicts input[type=search]", "claim a")
    assert claims.count() == 1


def test_costs_at_a_measured_size_are_measured_and_others_say_from_where(page: Any, document: ExplorerDocument) -> None:
    open_view(page, "costs")
    for key, value in {"tokens": 16384, "features": 768, "classes": 50304}.items():
        page.fill(f"#costs input[data-size={key}]", str(value))
    row = page.locator("#costs tr[data-impl=triton_fast]")
    measured = next(one for one in document.costs if one.impl == "triton_fast" and one.classes == 50304)
    assert float(row.locator("[data-ms]").get_attribute("data-ms")) == pytest.approx(measured.ms)
    memory = float(row.locator("[data-mib]").get_attribute("data-mib"))
    assert memory == pytest.approx(measured.mib + measured.gradients_mib, abs=0.1)
    assert "measured at this size" in row.inner_text()
    page.fill("#costs input[data-size=tokens]", str(2 * 65536))
    assert float(row.locator("[data-ms]").get_attribute("data-ms")) > 6 * measured.ms
    assert "scaled from 65,536 x 768 x 50,304" in row.inner_text()
    page.fill("#costs input[data-size=tokens]", "-3")
    assert "Tokens per step must be a whole number" in page.inner_text("#costs [role=status]")


def test_tabs_are_reached_by_keyboard(page: Any) -> None:
    page.focus("#tab-growth")
    for view in VIEWS[1:]:
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.id") == f"tab-{view}"
        assert page.locator(f"#{view}").is_visible()
    page.keyboard.press("Home")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('[role=tablist]')") is None


@pytest.mark.parametrize("colors", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_screen_and_axe_is_content(browser: Any, file: Path, width: int, colors: str) -> None:
    # axe is injected from outside the page, past the page's policy, which lets no other script run.
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=colors, bypass_csp=True)
    page = context.new_page()
    page.goto(file.as_uri())
    page.add_script_tag(path=str(AXE))
    for view in VIEWS:
        open_view(page, view)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        assert not serious, [(view, one["id"], [node["html"][:120] for node in one["nodes"]][:3]) for one in serious]
    context.close()


def test_a_script_in_the_data_does_not_run(browser: Any, document: ExplorerDocument, tmp_path: Path) -> None:
    attack = "<img src=x onerror='document.title=1'></script><script>document.title = 'attacked'</script>"
    path = tmp_path / "attack.html"
    path.write_text(page_of(replace(document, source=attack, notes=(attack,))), encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    assert page.title() == "harmax explorer"
    assert attack in page.inner_text("footer")
    assert page.locator("img[src=x]").count() == 0
    page.close()


def test_a_page_without_data_opens_with_the_views_that_need_none(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "empty.html"
    path.write_text(page_of(ExplorerDocument("t", "", "", missing={"growth": "Run `harmax run`."})), encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    assert page.locator("#by_hand").is_visible()
    open_view(page, "growth")
    assert page.inner_text("#growth") == "Run harmax run."
    assert page.inner_text("#growth code") == "harmax run"
    page.close()
