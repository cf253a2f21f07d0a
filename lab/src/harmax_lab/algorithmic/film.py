"""A film of the embedding: its labeled tokens over training, standard beside harmonic.

Each side shows its loss's median run, which `median_seed` finds. It is seen along the principal components of its
*last* embedding, because axes found anew for each frame would flip and turn.
"""

# K shown tokens, D features, T snapshots

import io
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harmax.analysis import explained_variance, pca, project
from harmax.files import write_atomically
from harmax_lab.algorithmic import measures, planes
from harmax_lab.algorithmic.bubbles import draw_bubbles, radius_of, spread
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.store import CellResult
from harmax_lab.tasks import Structure, Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL.Image import Image

FRAME_MS, LAST_FRAME_MS, FRAMES = 110, 4000, 52
SIDE, HEIGHT, DPI = 3.8, 4.35, 100
PANEL = (0.94 * SIDE * 72, 0.72 * HEIGHT * 72)  # points
INK = "#444444"
PAGE = ".html"
"""The suffix of an explorer page, which can stand in place of a film."""
SUFFIXES = (".gif", ".png", PAGE, ".mp4")
TITLES = {"linear": "standard loss (softmax cross-entropy)", "harmonic": "harmonic loss"}
HEADLINES = {
    "modular_addition": "Learning to add modulo {size}: the numbers 0 to {last} inside the model",
    "lattice": "Learning parallelograms: the points of a grid inside the model",
    "equivalence": "Learning congruence: the numbers 0 to {last} inside the model",
    "genealogy": "Learning a family tree: its {size} people inside the model",
    "permutation": "Learning to compose permutations: all {size} inside the model",
}


def median_seed(found: Mapping[int, CellResult]) -> int:
    """Return, of runs by seed, the one that passes the test at the median time, the earlier one of two.

    A run passes from the first of 20 epochs in a row above 0.9 on. One that never does, or diverges, counts as last.
    """
    return measures.middle_seed({seed: measures.grokking(result)["test_epoch"] for seed, result in found.items()})


def check_output(path: Path, flag: str = "--output") -> None:
    """Raise ValueError if no film or page can be written there; better before a training than after it."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"`{flag}` must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, got {str(path)!r}.")
    if path.is_dir():
        raise ValueError(f"`{flag}` must be a file, got the folder {str(path)!r}; add a name to it.")
    if path.suffix.lower() == ".mp4" and shutil.which("ffmpeg") is None:
        raise ValueError(
            f"`{flag}` {path.name} needs the program ffmpeg, which is not here; install it or write a .gif."
        )


def draw_frames(task: Task, results: Mapping[tuple[str, str], CellResult], note: str = "") -> "Iterator[Image]":
    """Return one frame per snapshot, with one panel per model.

    Args:
        task: what the models learn.
        results: runs, keyed as `MODEL_STYLES` is.
        note: a few words about the runs, for the lower edge.
    """
    lost = [MODEL_STYLES[arm].label for arm, result in results.items() if measures.last_embedding(result) is None]
    if lost:
        raise ValueError(f"a film must be of runs that stayed finite, but the {lost[0]} diverged; take another seed.")
    epochs = [result.arrays["snapshot_epoch"].tolist() for result in results.values()]
    if any(one != epochs[0] for one in epochs):
        raise ValueError("a film must be of runs with the same snapshots, got different ones; run them again together.")
    return _frames(task, results, epochs[0], note)


def frames_of(epochs: Sequence[int]) -> list[int]:
    """Return which snapshots a film shows: all, or the first and evenly many later ones where there are many.

    >>> frames_of([0, 1, 2, 5]), len(frames_of(range(200)))
    ([0, 1, 2, 3], 52)
    """
    if len(epochs) <= FRAMES:
        return list(range(len(epochs)))
    return [0, *range(len(epochs) - FRAMES + 1, len(epochs))]


def _frames(
    task: Task, results: Mapping[tuple[str, str], CellResult], epochs: list[int], note: str
) -> "Iterator[Image]":
    from matplotlib.figure import Figure

    panels = [_Panel(task, arm, result) for arm, result in results.items()]
    size = {"size": len(task.shown), "last": len(task.shown) - 1}
    for index in frames_of(epochs):
        figure = Figure(figsize=(SIDE * len(panels), HEIGHT))
        figure.suptitle(HEADLINES[task.name].format(**size), y=0.975, fontsize=13 if len(panels) > 1 else 9)
        words = f"epoch {epochs[index]:,}" + f"   ({note})" * bool(note)
        figure.text(0.5, 0.02, words, ha="center", fontsize=9.5, color=INK)
        for column, panel in enumerate(panels):
            middle = (column + 0.5) / len(panels)
            figure.text(middle, 0.875, panel.title, ha="center", fontsize=11, color=panel.color, fontweight="bold")
            figure.text(middle, 0.822, panel.words(index), ha="center", fontsize=9.5, color=INK)
            axes = figure.add_axes((middle - 0.47 / len(panels), 0.07, 0.94 / len(panels), 0.72))
            panel.draw(axes, index)
        yield _image(figure)


class _Panel:
    """One run, frame by frame."""

    def __init__(self, task: Task, arm: tuple[str, str], result: CellResult) -> None:
        self.structure, self.result, self.labels = task.structure, result, [one.strip("()") for one in task.labels]
        self.title, self.color = TITLES.get(arm[1], MODEL_STYLES[arm].label), MODEL_STYLES[arm].color
        end = result.arrays["embedding"][-1].astype(np.float64)
        self.fitted, self.look = pca(end), planes.plane_of(task.structure, end)[1]
        self.radius = radius_of(self.labels, PANEL)
        self.moved = np.zeros((len(end), 2))

    def words(self, index: int) -> str:
        """Say how good the model is at a snapshot, and how much of its embedding the picture shows."""
        epoch, embedding = int(self.result.arrays["snapshot_epoch"][index]), self.result.arrays["embedding"][index]
        share = share_in_words(self.structure, embedding.astype(np.float64))
        # After 5 finished epochs the last of them is epoch 4.
        return f"test accuracy {self.result.curves['test_accuracy'][epoch - 1]:.2f}, {share}" if epoch else share

    def draw(self, axes: "Axes", index: int) -> None:
        """Draw the tokens; the view follows their size."""
        tokens = project(self.result.arrays["embedding"][index], fitted=self.fitted)
        tokens = tokens - (tokens.min(0) + tokens.max(0)) / 2
        room = np.array(PANEL) / 2 - 1.6 * self.radius
        tokens = tokens * (room / np.maximum(np.abs(tokens).max(0), 1e-12)).min()
        dots = spread(tokens, self.radius, before=self.moved)
        # Dots that were moved apart may need more room than their places.
        beyond = (np.abs(dots).max(0) / room).max()
        if beyond > 1:
            tokens = tokens / beyond
            dots = np.clip(spread(tokens, self.radius, before=dots / beyond - tokens), -room, room)
        self.moved = dots - tokens
        axes.axis("off")
        axes.set(xlim=(-PANEL[0] / 2, PANEL[0] / 2), ylim=(-PANEL[1] / 2, PANEL[1] / 2))
        planes.draw_backdrop(axes, tokens, self.look)
        draw_bubbles(axes, tokens, dots, self.labels, self.look.colors, self.radius)


def share_in_words(structure: Structure, embedding_KD: np.ndarray) -> str:
    """Say how much of an embedding's variance is on one circle or, for other structures, in the plane that is shown."""
    if structure.kind == "circle":
        return (
            f"{int(100 * (1 - measures.fit(structure, embedding_KD, None).residual))} % of the variance on one circle"
        )
    return f"{int(100 * explained_variance(embedding_KD))} % of the variance in this plane"


def write_film(path: Path, frames: "Sequence[Image]") -> None:
    """Write frames as an animated .gif or an .mp4, or the last of them as a .png."""
    suffix = path.suffix.lower()
    if suffix == ".mp4":
        write_atomically(path, to_mp4(frames))
    elif suffix == ".gif":
        write_atomically(path, to_gif(frames))
    else:
        buffer = io.BytesIO()
        frames[-1].save(buffer, format="PNG", optimize=True)
        write_atomically(path, buffer.getvalue())


def to_gif(frames: "Sequence[Image]") -> bytes:
    """Return frames as an animated GIF that repeats, with a rest on the last frame."""
    from PIL import Image  # comes with matplotlib

    # One palette for all frames: found anew for each, one token would change its color.
    width, height = frames[0].size
    samples = frames[:: max(1, len(frames) // 6)]
    sheet = Image.new("RGB", (width, height * len(samples)))
    for index, frame in enumerate(samples):
        sheet.paste(frame, (0, index * height))
    palette = sheet.quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    # The average of white and almost white is not white, but a page's background is.
    entries = np.array(palette.getpalette()).reshape(-1, 3)
    entries[entries.min(1) > 240] = 255
    palette.putpalette(entries.ravel().tolist())
    first, *others = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    durations = [FRAME_MS] * len(others) + [LAST_FRAME_MS]
    look = {"duration": durations, "loop": 0, "optimize": True, "disposal": 1}
    buffer = io.BytesIO()
    first.save(buffer, format="GIF", save_all=True, append_images=others, **look)
    return buffer.getvalue()


def to_mp4(frames: "Sequence[Image]") -> bytes:
    """Return frames as a film in H.264, which the program ffmpeg makes; it rests on the last frame."""
    (width, height), rest = frames[0].size, LAST_FRAME_MS // FRAME_MS
    even = f"{width // 2 * 2}:{height // 2 * 2}"  # which the format needs
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "film.mp4"
        source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{1000 / FRAME_MS:.3f}"]
        target = ["-vf", f"crop={even}", "-pix_fmt", "yuv420p", "-movflags", "+faststart", str(output)]
        data = b"".join(frame.tobytes() for frame in [*frames, *[frames[-1]] * rest])
        command = ["ffmpeg", "-loglevel", "error", *source, "-i", "-", *target]
        done = subprocess.run(command, input=data, capture_output=True)
        if done.returncode:
            raise ValueError(f"ffmpeg could not write the film: {done.stderr.decode(errors='replace').strip()[:300]}")
        return output.read_bytes()


def _image(figure: "Figure") -> "Image":
    from PIL import Image

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return Image.open(buffer).convert("RGB")
