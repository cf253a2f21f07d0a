"""A film of the embedding: its tokens over training, standard beside harmonic, as an animated GIF."""

# K shown tokens, D features, T snapshots

import io
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from harmax.analysis import pca, project
from harmax_lab.algorithmic import planes
from harmax_lab.algorithmic.measures import last_embedding
from harmax_lab.kit import drawing
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.store import CellResult
from harmax_lab.tasks import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

FRAME_MS, LAST_FRAME_MS = 120, 2500
DPI = 100


def draw_frames(task: Task, results: Mapping[tuple[str, str], CellResult]) -> "Iterator[Image]":
    """Return one frame per snapshot, with one panel per model; results are keyed as `MODEL_STYLES` is.

    A run is always seen along the principal components of its *last* embedding: axes found anew for each frame would
    flip and turn. The view follows the tokens' size. Colors and edges are those of the last frame.
    """
    lost = [MODEL_STYLES[arm].label for arm, result in results.items() if last_embedding(result) is None]
    if lost:
        raise ValueError(f"a film must be of runs that stayed finite, but the {lost[0]} diverged; take another seed.")
    epochs = [result.arrays["snapshot_epoch"].tolist() for result in results.values()]
    if any(one != epochs[0] for one in epochs):
        raise ValueError("a film must be of runs with the same snapshots, got different ones; run them again together.")
    return _frames(task, results, epochs[0])


def _frames(task: Task, results: Mapping[tuple[str, str], CellResult], epochs: list[int]) -> "Iterator[Image]":
    ends = {arm: result.arrays["embedding"][-1].astype(np.float64) for arm, result in results.items()}
    fitted = {arm: pca(end) for arm, end in ends.items()}
    looks = {arm: planes.plane_of(task.structure, end)[1] for arm, end in ends.items()}
    palette = _palette({color for look in looks.values() for color in look.colors})
    figure = drawing.new_figure(3.9 * len(results), 4.5)
    panels = figure.subplots(1, len(results), squeeze=False)[0]
    for index, epoch in enumerate(epochs):
        figure.suptitle(f"{task.title}, {task.protocol} protocol, after {epoch} epochs")
        for axes, (arm, result) in zip(panels, results.items(), strict=True):
            axes.clear()
            tokens = project(result.arrays["embedding"][index], fitted=fitted[arm])
            planes.draw_tokens(axes, tokens, looks[arm], size=6)
            # After 5 finished epochs the last of them is epoch 4.
            train, test = (result.curves[f"{side}_accuracy"][epoch - 1] for side in ("train", "test"))
            words = f"train {train:.2f}, test {test:.2f}" if epoch else "before training"
            axes.set_title(f"{MODEL_STYLES[arm].label}\n{words}")
        yield _image(figure, palette)
        figure.set_layout_engine("none")  # laid out once, so that nothing jumps


def to_gif(frames: "list[Image]") -> bytes:
    """Return frames as an animated GIF that repeats, with a rest on the last frame."""
    buffer, durations = io.BytesIO(), [FRAME_MS] * (len(frames) - 1) + [LAST_FRAME_MS]
    frames[0].save(buffer, format="GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0)
    return buffer.getvalue()


def _palette(colors: set[str]) -> "Image":
    """Return the colors of all frames: a palette found anew for each would give one token several colors."""
    from PIL import Image  # comes with matplotlib

    solid = [tuple(int(color[i : i + 2], 16) for i in (1, 3, 5)) for color in sorted(colors)]
    # A dot's edge and a hull's inside are its color mixed with the white below.
    shades = [tuple(255 - share * (255 - one) for one in color) for share in (1.0, 0.62, 0.22) for color in solid]
    grays = [(level,) * 3 for level in range(0, 256, 15)]
    found = Image.new("P", (1, 1))
    found.putpalette([round(channel) for entry in [*grays, *shades][:256] for channel in entry])
    return found


def _image(figure: "Figure", palette: "Image") -> "Image":
    from PIL import Image

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    with Image.open(buffer) as image:
        return image.convert("RGB").quantize(palette=palette, dither=Image.Dither.NONE)
