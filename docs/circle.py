"""Make the film of the README: numbers becoming a circle, standard loss beside harmonic loss.

    python docs/circle.py                          two minutes on one CPU core; writes docs/images/circle.gif and .json
    python docs/circle.py --output film.gif        somewhere else

The models learn to add modulo 31: the paper's MLP with either head under the matched protocol (both heads tied and
without bias, no test row in the training set), the authors' 20 seeds, 3000 epochs. Each side shows its head's median
run: of the 20 seeds in the order in which their test accuracy passes 0.9 (for 20 epochs in a row) the tenth; a run
that never does counts as last. Frames are snapshots of the 16-dimensional embedding, seen along the two principal
components of the last one. The .json holds the counts of all seeds, which the film's caption in the README says.
"""

# S seeds, K snapshots, V tokens, D width

import argparse
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harmax.analysis import circle_fit, grokking_epochs, pca, project
from harmax.figures import house_style
from harmax.files import write_atomically
from harmax_lab import Ensemble, Plan, fit
from harmax_lab.algorithmic import anchors
from harmax_lab.algorithmic.measures import CLEAN, middle_seed
from harmax_lab.algorithmic.planes import hue_color
from harmax_lab.algorithmic.protocols import settings
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.tasks import Task, find_task, make_split

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from PIL.Image import Image

TITLES = {"linear": "standard loss (softmax cross-entropy)", "harmonic": "harmonic loss"}
EPOCHS, FRAMES, FIRST = 3000, 52, 20
FRAME_MS, LAST_FRAME_MS = 110, 4000
WIDTH, HEIGHT, DPI = 7.6, 4.35, 100
REACH = 1.17  # of a panel, in units of the farthest token: room for its dot


class Film(NamedTuple):
    """One run to show."""

    seed: int
    epochs: np.ndarray
    """Epochs finished at each snapshot, (K,)."""
    embedding: np.ndarray
    """(K, V, D)."""
    accuracy: np.ndarray
    """Test accuracy after each epoch."""
    counts: dict[str, Any]
    """What became of all seeds, for the caption."""


def main(
    output: str | Path = Path(__file__).parent / "images/circle.gif",
    *,
    seeds: Sequence[int] = anchors.SEEDS,
    epochs: int = EPOCHS,
    frames: int = FRAMES,
) -> dict[str, float]:
    """Train, choose, draw and write the film; return the share of variance on one circle of the two runs shown."""
    task = find_task("modular_addition")
    films = {head: median_run(task, head, seeds, epochs, frames) for head in TITLES}
    drawn = draw(films, task)
    write_atomically(Path(output), to_gif(drawn))
    rows = [{"head": head, **film.counts} for head, film in films.items()]
    summary = {"verdicts": [], "tables": [{"title": "Runs behind the film", "rows": rows}]}
    write_atomically(Path(output).with_suffix(".json"), f"{json.dumps(summary, indent=2)}\n".encode())
    shares = {head: on_circle(film.embedding[-1]) for head, film in films.items()}
    for head, film in films.items():
        print(f"{head}: seed {film.seed}, {shares[head]:.2%} of the variance on one circle", flush=True)
    print(output)
    return shares


def median_run(task: Task, head: str, seeds: Sequence[int], epochs: int, frames: int) -> Film:
    """Train one head with every seed and return the run that passes the test at the median time."""
    how = settings("matched", "mlp", head, epochs=epochs)
    plan = Plan(
        epochs=epochs,
        batch_size=how.batch_size,
        learning_rate=how.learning_rate,
        weight_decay=how.weight_decay,
        # The numbers move fast at first: as many frames for epochs 20 to 200 as for 200 to 2000.
        snapshots=np.unique([0, *np.rint(np.geomspace(min(FIRST, epochs), epochs, frames - 1)).astype(int)]).tolist(),
    )
    ensemble = Ensemble(lambda: how.build(task, "mlp", head), seeds, device="cpu")
    history = fit(ensemble, [make_split(task, seed) for seed in seeds], plan)
    passed = grokking_epochs(history.test_accuracy)
    chosen = middle_seed(dict(zip(seeds, passed.tolist(), strict=True)))
    place = list(seeds).index(chosen)
    clean = sum(on_circle(run_KVD[-1]) >= 1 - CLEAN for run_KVD in history.snapshots)
    never, median = int(np.isinf(passed).sum()), np.median(passed) + 1  # a film counts finished epochs
    print(f"{head}: {clean} of {len(seeds)} runs end on a clean circle", flush=True)
    print(f"{head}: test passed at epoch {median:.0f} (median), never in {never} runs", flush=True)
    counts = {"runs": len(seeds), "clean circles": clean, "never": never, "median epoch": float(median)}
    return Film(chosen, history.snapshot_epochs, history.snapshots[place], history.test_accuracy[place], counts)


def on_circle(points_VD: np.ndarray) -> float:
    """Return the share of all variance that the best single frequency explains."""
    numbers = np.arange(len(points_VD))
    return 1 - circle_fit(points_VD, numbers, len(numbers), components=None).residual


def draw(films: dict[str, Film], task: Task) -> "list[Image]":
    """Draw every snapshot of both runs."""
    from matplotlib.figure import Figure
    from PIL import Image

    fitted = {head: pca(film.embedding[-1]) for head, film in films.items()}
    pictures = []
    with house_style():
        for index, epoch in enumerate(films["harmonic"].epochs.tolist()):
            figure = Figure(figsize=(WIDTH, HEIGHT))
            last = task.vocabulary - 1
            figure.suptitle(
                f"Learning to add modulo {task.vocabulary}: the numbers 0 to {last} inside the model", y=0.975
            )
            figure.text(0.5, 0.02, f"epoch {epoch:,}", ha="center", fontsize=11, color="#444444")
            for column, (head, film) in enumerate(films.items()):
                axes = figure.add_axes((0.02 + 0.49 * column, 0.06, 0.47, 0.72))
                draw_numbers(axes, project(film.embedding[index], fitted=fitted[head]), film.embedding[-1])
                middle = 0.255 + 0.49 * column
                color = MODEL_STYLES["mlp", head].color
                figure.text(middle, 0.875, TITLES[head], ha="center", fontsize=11, color=color, fontweight="bold")
                figure.text(middle, 0.822, words(film, index), ha="center", fontsize=9.5, color="#444444")
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", dpi=DPI)
            pictures.append(Image.open(buffer).convert("RGB"))
    return pictures


def words(film: Film, index: int) -> str:
    """Say how good the model is at this snapshot, and how much of its embedding is one circle."""
    epoch = int(film.epochs[index])
    share = f"{int(100 * on_circle(film.embedding[index]))} % of the variance on one circle"
    return share if epoch == 0 else f"test accuracy {film.accuracy[epoch - 1]:.2f}, {share}"


def draw_numbers(axes: "Axes", xy_V2: np.ndarray, last_VD: np.ndarray) -> None:
    """Draw every number as a labeled dot; colors and lines follow the order on the last embedding's circle."""
    count = len(xy_V2)
    numbers = np.arange(count)
    place = numbers * circle_fit(last_VD, numbers, count).frequency % count
    trip = np.argsort(place)
    xy_V2 = xy_V2 - xy_V2.mean(0)
    reach = REACH * np.linalg.norm(xy_V2, axis=1).max()
    axes.axis("off")
    width, height = 0.47 * WIDTH, 0.72 * HEIGHT
    axes.set(xlim=(-reach * width / height, reach * width / height), ylim=(-reach, reach))
    around = np.append(trip, trip[0])
    axes.plot(xy_V2[around, 0], xy_V2[around, 1], color="#d0d0d0", linewidth=0.8, zorder=1)
    colors = [hue_color(one / count) for one in place.tolist()]
    for number, (x, y) in enumerate(xy_V2.tolist()):
        above = 2 + number  # a dot in front hides the label behind it, not only its dot
        axes.scatter(x, y, s=190, c=colors[number], edgecolors="white", linewidths=0.8, zorder=above)
        style: dict[str, Any] = {"fontsize": 7.5, "color": "white", "fontweight": "bold"}
        axes.text(x, y, str(number), ha="center", va="center_baseline", zorder=above, **style)


def to_gif(pictures: "list[Image]") -> bytes:
    """Return the frames as an animated GIF that repeats, with a rest on the last one."""
    from PIL import Image

    # One palette for all frames: found anew for each, one number would change its color.
    width, height = pictures[0].size
    samples = pictures[:: max(1, len(pictures) // 6)]
    sheet = Image.new("RGB", (width, height * len(samples)))
    for index, picture in enumerate(samples):
        sheet.paste(picture, (0, index * height))
    palette = sheet.quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    # The average of white and almost white is not white, but a page's background is.
    entries = np.array(palette.getpalette()).reshape(-1, 3)
    entries[entries.min(1) > 240] = 255
    palette.putpalette(entries.ravel().tolist())
    first, *others = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    durations = [FRAME_MS] * len(others) + [LAST_FRAME_MS]
    buffer = io.BytesIO()
    first.save(
        buffer, format="GIF", save_all=True, append_images=others, duration=durations, loop=0, optimize=True, disposal=1
    )
    return buffer.getvalue()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default=Path(__file__).parent / "images/circle.gif", type=Path, help="a .gif")
    main(parser.parse_args().output)
