"""Figures and tables of the loss on a GPU show every row that was measured, where it was measured."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import build
from harmax.bench import figures
from harmax.bench.loss import IN_SWEEP, ON_GPU, Shape
from pages import benchmarks, site

SIZES = {
    "tokens": [Shape(tokens, 768, 50304) for tokens in (2048, 8192, 16384, 65536)],
    "classes": [Shape(8192, 768, classes) for classes in (8192, 50304, 524288)],
}
PANELS = (("tokens", "time"), ("classes", "time"), ("tokens", "memory"), ("classes", "memory"))


def row(impl: str, shape: Shape, **changes: Any) -> dict[str, Any]:
    """A row whose numbers tell it apart from every other one."""
    time = (1 + list(figures.SUBJECTS).index(impl) / 8) * np.prod(shape, dtype=float) / 1e11
    return {
        "impl": impl,
        **shape._asdict(),
        "dtype": "bfloat16",
        "ms_p20": 0.9 * time,
        "ms_p50": time,
        "ms_p80": 1.2 * time,
        "time_ratio": 1 + list(figures.SUBJECTS).index(impl) / 8,
        "host_ms": 2.5,
        "peak_mib": 1000 * time,
        "gradients_mib": (shape.tokens + shape.classes) * shape.features / 2**19,
        "error": 0.004,
        "torch": "2.11.0",
        "gpu": "Abacus 9",
        **changes,
    }


def everything() -> list[dict[str, Any]]:
    swept = dict.fromkeys(shape for shapes in SIZES.values() for shape in shapes if shape not in ON_GPU)
    rows = [row(impl, shape) for shape in ON_GPU for impl in figures.SUBJECTS]
    rows += [row(impl, shape) for shape in swept for impl in IN_SWEEP]
    # A neighbor that belongs to no sweep, and an order that is nobody's.
    rows += [row(impl, Shape(16384, 768, 50257)) for impl in IN_SWEEP]
    return rows[::-1]


def curves(axes: Any) -> dict[str, np.ndarray]:
    return {line.get_label(): line.get_xydata() for line in axes.get_lines()}


def texts(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("panel", range(4), ids=[f"{what} against {along}" for along, what in PANELS])
def test_a_panel_has_every_curve_with_its_points(panel: int) -> None:
    along, what = PANELS[panel]
    axes = figures.draw_sweep(everything()).axes[panel]
    found = curves(axes)
    shown = [impl for impl in figures.CURVES if what == "time" or impl != "three_products"]
    assert list(found) == [figures.CURVES[impl].label for impl in shown]
    for impl in shown:
        want = [(getattr(s, along), figures.cost(row(impl, s), what)) for s in SIZES[along]]
        np.testing.assert_allclose(found[figures.CURVES[impl].label], want)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlabel() == along
    assert axes.get_ylabel().endswith(", ms" if what == "time" else ", MiB")
    assert len(axes.collections) == (len(shown) if what == "time" else 0), "a band a curve of times"


def test_the_band_goes_from_the_20th_to_the_80th_percentile() -> None:
    axes = figures.draw_sweep(everything()).axes[0]
    label = figures.CURVES["triton_lean"].label
    band = axes.collections[list(curves(axes)).index(label)].get_paths()[0].vertices
    middle = curves(axes)[label]
    assert band[:, 1].min() == pytest.approx(0.9 * middle[0, 1])
    assert band[:, 1].max() == pytest.approx(1.2 * middle[-1, 1])


def test_memory_counts_the_gradients() -> None:
    with_gradients = row("triton_lean", ON_GPU[0], peak_mib=100.0, gradients_mib=23.0)
    assert figures.cost(with_gradients, "memory") == 123.0


def test_labels_name_the_curves_with_their_ratio_at_the_right_end() -> None:
    axes = figures.draw_sweep(everything()).axes[0]
    lean = (1 + 7 / 8) / (1 + 1 / 8)
    assert f"harmonic, lean {lean:.2f}x" in texts(axes)
    assert "cross-entropy, compiled" in texts(axes)


def test_labels_keep_apart_and_in_order() -> None:
    rows = [found | {"ms_p50": found["ms_p50"] / found["time_ratio"]} for found in everything()]
    axes = figures.draw_sweep(rows).axes[0]
    heights = np.sort([text.get_position()[1] for text in axes.texts])
    assert len(heights) == len(figures.CURVES)
    assert np.diff(heights).min() > figures.LABEL_GAP - 1e-9
    assert figures.spread([0.2, 0.9, 0.5], 0.1) == pytest.approx([0.2, 0.9, 0.5])
    crowded = figures.spread([0.95, 0.94, 0.96, 0.1], 0.1, top=0.97)
    assert crowded == pytest.approx([0.87, 0.77, 0.97, 0.1])


def test_the_headline_says_what_is_seen() -> None:
    rows = [found for found in everything() if found["impl"] in IN_SWEEP]
    for found in rows:
        if found["impl"] == "triton_fast":
            slow = found["classes"] == 524288
            base = row("cross_entropy_compiled", figures.shape_of(found))["ms_p50"]
            found["ms_p50"] = base * (1.5 if slow else 1.1)
    title = figures.draw_sweep(rows).get_suptitle()
    assert "fast 1.10 to 1.50 times its time" in title
    assert "Abacus 9" in title


@pytest.mark.parametrize("missing", ["triton_fast", "triton_lean", "three_products", "cross_entropy_compiled"])
def test_what_was_not_measured_is_left_out_of_the_sweeps(missing: str) -> None:
    rows = [found for found in everything() if found["impl"] != missing]
    for axes in figures.draw_sweep(rows).axes:
        found = curves(axes)
        assert figures.CURVES[missing].label not in found
        assert len(found) >= 3


def test_a_curve_may_end_early() -> None:
    most = max(SIZES["tokens"])
    rows = [r for r in everything() if (r["impl"], figures.shape_of(r)) != ("cross_entropy_compiled", most)]
    axes = figures.draw_sweep(rows).axes[0]
    assert curves(axes)["cross-entropy, compiled"][-1, 0] == 16384
    assert "harmonic, lean" in texts(axes), "no ratio where there is nothing to hold it against"


@pytest.mark.parametrize(
    ("along", "keep"),
    [
        ("tokens", lambda found: found["tokens"] == 8192),
        ("classes", lambda found: found["classes"] == 50304),
        ("tokens", lambda found: False),
    ],
)
def test_no_sweep_is_an_error_that_says_what_to_run(along: str, keep: Callable[[dict[str, Any]], bool]) -> None:
    with pytest.raises(ValueError, match=rf"`rows` must hold a sweep over {along}.* got [01]; run `harmax bench loss"):
        figures.draw_sweep([found for found in everything() if keep(found)])


def test_every_implementation_has_a_dot_and_its_memory_at_every_anchor() -> None:
    figure = figures.draw_anchors(everything())
    assert len(figure.axes) == len(ON_GPU)
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert names == [figures.label(impl) for impl in figures.SUBJECTS]
    for axes, shape in zip(figure.axes, ON_GPU, strict=True):
        dots = curves(axes)
        for height, impl in enumerate(figures.SUBJECTS):
            ratio = (1 + height / 8) / (1 + 1 / 8)
            np.testing.assert_allclose(dots[impl], [(ratio, height)])
            assert f"{figures.cost(row(impl, shape), 'memory'):,.0f}" in texts(axes)
        assert axes.get_xscale() == "log"
        assert axes.get_title() == "{} tokens, {} features,\n{} classes".format(*shape)


def test_what_was_not_measured_is_left_out_of_the_anchors() -> None:
    one = ON_GPU[1]
    rows = [r for r in everything() if r["impl"] != "liger" and (r["impl"], figures.shape_of(r)) != ("eager", one)]
    figure = figures.draw_anchors([found for found in rows if figures.shape_of(found) != ON_GPU[2]])
    assert len(figure.axes) == 2
    assert figures.label("liger") not in [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert "eager" in curves(figure.axes[0])
    assert "eager" not in curves(figure.axes[1])
    with pytest.raises(ValueError, match="must hold cross_entropy_compiled at one of the shapes 16384 x 768 x 50304"):
        figures.draw_anchors([found for found in rows if found["impl"] != "cross_entropy_compiled"])


def test_the_same_rows_give_the_same_files(tmp_path: Path) -> None:
    first, second = (figures.write_figures(everything(), tmp_path / name) for name in ("one", "two"))
    assert [path.name for path in first] == ["loss_sweep.png", "loss_anchors.png"]
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes().startswith(b"\x89PNG")
        assert one.read_bytes() == two.read_bytes()


def test_the_page_of_benchmarks_has_a_line_per_anchor_and_implementation() -> None:
    rows = [r | {"error": None} if r["impl"] == "triton_lean" else r for r in everything() if r["impl"] != "liger"]
    section = benchmarks.gpu_summary(rows)
    lines = [line for line in section.splitlines() if line.startswith(tuple(f"| {shape.tokens} x" for shape in ON_GPU))]
    assert len(lines) == len(ON_GPU) * (len(benchmarks.SHOWN_ON_GPU) - 1)
    fast = row("triton_fast", ON_GPU[0])
    costs = f"{fast['ms_p50']:.1f} | 1.62 | 2.5 | {fast['peak_mib'] + fast['gradients_mib']:.0f} | 4e-03 |"
    assert f"| 16384 x 768 x 50304 | harmonic, triton fast | {costs}" in lines
    assert all(line.endswith("|  |") for line in lines if "lean" in line), "what is not known is left open"
    assert "Abacus 9, bfloat16, torch 2.11.0, beside Cut Cross-Entropy (CCE)." in section


def test_the_page_of_figures_has_every_row() -> None:
    rows = everything()
    page = benchmarks.figures_page(rows)
    assert page.count("\n| ") == len(rows) + 1
    assert "(loss_sweep.png)" in page
    assert "(loss_anchors.png)" in page


def test_without_a_gpu_the_pages_say_nothing_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(site.MEASURED / "loss-cpu.jsonl", tmp_path)
    monkeypatch.setattr(site, "MEASURED", tmp_path)
    assert benchmarks.gpu_summary(benchmarks.gpu_rows()) == benchmarks.gpt2_table() == benchmarks.vision_table() == ""
    costs = benchmarks.costs_table()
    assert "CPU cores" in costs
    assert "H200" not in costs
    text = "a\n\n<!-- loss-cuda: made -->\n\nold\n\n<!-- /loss-cuda -->\n"
    assert site.filled(text, {"loss-cuda": ""}) == "a\n\n<!-- loss-cuda: made -->\n<!-- /loss-cuda -->\n"
    assert site.FIGURES / "README.md" not in build.pages()


def test_a_page_that_lost_a_marker_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"must have the markers of 'costs' once, got them 0 times"):
        site.filled("no markers here", {"costs": "a table"})
