"""`harmax prototypes`: an image classifier read by its centers, as figures and as plain arrays."""

# N test images, V classes, K neighbors, R rows of a figure

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import tyro

from harmax.analysis.outliers import Abstention, abstention_curve
from harmax.cli.live_line import LiveLine
from harmax.cli.usage import UsageError, check_folder, checking_usage, print_json
from harmax.errors import needs, unknown
from harmax.figures import house_style, to_png
from harmax.files import write_atomically, write_json
from harmax.heads.prototypes import NearestImages, PrototypeView, center_pictures, nearest_images, prototype_view
from harmax_lab.cli.prototype_sources import Subject, Wishes, open_subject
from harmax_lab.vision import prototype_figures as drawings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARRAYS, SUMMARY = "prototypes.safetensors", "prototypes.json"
SCORES = {"ratio": "by the ratio of two distances", "distance": "by the nearest distance"}
FEW = 12  # classes to draw, of more than a figure holds
COVERAGES = (1.0, 0.95, 0.9, 0.8, 0.5)


@dataclass(frozen=True)
class Prototypes:
    """Show a harmonic image classifier's centers, why it decided as it did, and what abstaining buys.

    harmax prototypes runs/cifar10 --output figures

    harmax prototypes runs/mnist/2a19cf160169 --dataset mnist --protocol authors
    """

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """What `harmax vision --output` named, or its model/; or a run folder of `harmax run mnist`."""
    output: Path = Path("prototypes")
    """The folder to write: centers.png (one layer), nearest.png, decisions.png, abstention.png, prototypes.safetensors
    and prototypes.json."""
    dataset: str | None = None
    """The images; what the run was trained on if left out."""
    data: Path | None = None
    """The data folder; for class folders the one that has train/ and val/. HARMAX_DATA if left out."""
    partial: bool = False
    """Whether a part of a set with a name will do."""
    protocol: str | None = None
    """Of a run of `mnist`: paper, authors or matched; authors if left out and there."""
    neighbors: int = 5
    """Training images to show for each center."""
    decisions: int = 8
    """Test images to show, half of them the surest mistakes."""
    classes: tuple[str, ...] = ()
    """Names of the classes to show neighbors of; all, or some of very many, if left out."""
    limit: int | None = None
    """Look at this many images of each side at most, spread over it."""
    device: str | None = None
    """Where to compute: cpu, cuda, cuda:1; a GPU where there is one if left out."""
    json: bool = False
    """Print what prototypes.json holds."""

    def __call__(self) -> int:
        """Measure, draw, write, and say what was found."""
        with needs("run"):
            from safetensors.numpy import save
        with checking_usage():
            check_folder(self.output)
            self._check()
            with house_style():  # is matplotlib there? Better noticed before the work than after it
                pass
            subject = self._open()
            rows = self._rows(subject.classes)
        found = measure(subject, self.neighbors)
        figures = draw(subject, found, rows, self.decisions)
        summary = {"folder": str(self.folder), **summarize(subject, found)}
        for name, figure in figures.items():
            write_atomically(self.output / f"{name}.png", to_png(figure))
        write_atomically(self.output / ARRAYS, save(to_arrays(subject, found)))
        write_json(self.output / SUMMARY, summary)
        files = [*(f"{name}.png" for name in figures), ARRAYS, SUMMARY]
        if self.json:
            print_json({**summary, "files": [str(self.output / name) for name in files]})
        else:
            show(summary)
            for name in files:
                print(self.output / name)
        return 0

    def _check(self) -> None:
        if self.neighbors < 1:
            raise ValueError(f"`--neighbors` must be at least 1, got {self.neighbors}; 5 are a good number.")
        if not 1 <= self.decisions <= drawings.MOST:
            raise ValueError(f"`--decisions` must be 1 to {drawings.MOST}, got {self.decisions}; 8 are a good number.")

    def _open(self) -> Subject:
        wishes = Wishes(self.dataset, self.data, self.partial, self.protocol, self.limit, self.device)
        try:
            return open_subject(self.folder, wishes)
        except FileNotFoundError as error:  # of a data set, whose message says which files are wanted
            raise UsageError(str(error)) from error

    def _rows(self, names: tuple[str, ...]) -> np.ndarray:
        for name in self.classes:
            if name not in names:
                raise ValueError(unknown("--classes", name, names))
        if len(self.classes) > drawings.MOST:
            raise ValueError(f"`--classes` must be at most {drawings.MOST}, got {len(self.classes)}; name fewer.")
        if self.classes:
            return np.array([names.index(name) for name in self.classes])
        few = len(names) if len(names) <= drawings.MOST else FEW
        return np.unique(np.linspace(0, len(names) - 1, few).round().astype(int))


class Found(NamedTuple):
    """What was measured."""

    view: PrototypeView
    """Of the test images."""
    near: NearestImages
    """Places among the subject's training images."""
    curves: Mapping[str, Abstention]
    """A score each; higher is surer."""


def measure(subject: Subject, neighbors: int) -> Found:
    """Compare every training and every test image with every center."""
    with LiveLine("reading") as line:

        def telling(what: str) -> Callable[[int, int], None]:
            return lambda done, of: line(f"{what} images: {done:,} of {of:,}")

        train = subject.train.batches(subject.prepare, telling("training"))
        near = nearest_images(train, subject.head, model=subject.model, count=neighbors)
        test = subject.test.batches(subject.prepare, telling("test"))
        view = prototype_view(test, subject.head, model=subject.model)
    correct = view.winner == subject.test.labels
    curves = {
        "ratio": abstention_curve(correct, -view.ratio),
        "distance": abstention_curve(correct, -view.winner_distance),
    }
    return Found(view, near, curves)


def summarize(subject: Subject, found: Found) -> dict[str, Any]:
    """Return what was found as plain values."""
    view, labels = found.view, subject.test.labels
    own = subject.train.labels[found.near.images] == np.arange(len(subject.classes))[:, None]
    return {
        "dataset": subject.dataset,
        "one_layer": subject.model is None,
        "exponent": float(subject.head.exponent),
        "classes": list(subject.classes),
        "train_images": len(subject.train.labels),
        "test_images": len(labels),
        "test_accuracy": float((view.winner == labels).mean()),
        "runner_up_is_true": _share(view.runner_up == labels, view.winner != labels),
        "neighbors": own.shape[1],
        "neighbors_of_own_class": float(own.mean()),
        "accuracy_at_coverage": {
            name: {f"{share:g}": float(curve.accuracy[np.searchsorted(curve.coverage, share)]) for share in COVERAGES}
            for name, curve in found.curves.items()
        },
    }


def _share(hits: np.ndarray, among: np.ndarray) -> float | None:
    return float(hits[among].mean()) if among.any() else None


def to_arrays(subject: Subject, found: Found) -> dict[str, np.ndarray]:
    """Return everything as arrays: images by their number in the data set, classes by theirs."""
    view, near = found.view, found.near
    arrays = {
        "centers": subject.head.centers.detach().float().cpu().numpy(),
        "nearest/image": subject.train.numbers[near.images],
        "nearest/distance": near.distances,
        "nearest/label": subject.train.labels[near.images],
        "test/image": subject.test.numbers,
        "test/label": subject.test.labels,
        **{f"test/{name}": column for name, column in view._asdict().items()},
        "test/ratio": view.ratio,
    }
    for name, curve in found.curves.items():
        arrays |= {f"abstention/{name}/{what}": column for what, column in curve._asdict().items()}
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def draw(subject: Subject, found: Found, rows_R: np.ndarray, decisions: int) -> "dict[str, Figure]":
    """Draw centers (one layer), the training images nearest to some of them, decisions, and abstention."""
    near, names, figures = found.near, subject.classes, {}
    with house_style():
        centers = None
        if subject.model is None:
            height, width = subject.train.pictures(np.zeros(1, int)).shape[-2:]
            centers = center_pictures(subject.head, (height, width))
            figures["centers"] = drawings.draw_centers(centers, names)
        figures["nearest"] = drawings.draw_nearest(
            subject.train.pictures(near.images[rows_R]),
            near.distances[rows_R],
            subject.train.labels[near.images[rows_R]],
            names,
            classes=rows_R.tolist(),
            centers=None if centers is None else centers[rows_R],
        )
        figures["decisions"] = _draw_decisions(subject, found, centers, decisions)
        curves = {SCORES[name]: curve[1:] for name, curve in found.curves.items()}
        figures["abstention"] = drawings.draw_abstention(curves)
    return figures


def _draw_decisions(subject: Subject, found: Found, centers: np.ndarray | None, count: int) -> "Figure":
    labels = subject.test.labels
    chosen = np.array(choose_decisions(found.view, labels, count))
    columns = [found.view.winner[chosen], found.view.runner_up[chosen], labels[chosen]]
    # Of a thousand classes only those that occur are read and handed on.
    used, places = np.unique(np.stack(columns), return_inverse=True)
    winner, runner_up, true = places.reshape(3, -1)
    far = (found.view.winner_distance[chosen], found.view.runner_up_distance[chosen])
    pictures = subject.train.pictures(found.near.images[used, 0]) if centers is None else centers[used]
    names = [subject.classes[number] for number in used]
    view = PrototypeView(winner, runner_up, *far)
    return drawings.draw_decisions(subject.test.pictures(chosen), view, true, names, pictures)


def choose_decisions(view: PrototypeView, labels: np.ndarray, count: int) -> list[int]:
    """Choose test images to look at: right ones from the surest to the least sure, then the surest mistakes."""
    order = np.argsort(view.ratio, kind="stable")
    right, wrong = (order[(view.winner == labels)[order] == truth] for truth in (True, False))
    mistakes = wrong[: max(count // 2, count - len(right))]
    spread = np.linspace(0, len(right) - 1, min(count - len(mistakes), len(right))).round().astype(int)
    return [*right[np.unique(spread)].tolist(), *mistakes.tolist()]


def show(summary: Mapping[str, Any]) -> None:
    """Print what was found, a line each."""
    print(
        f"{summary['dataset']}, {len(summary['classes'])} classes, exponent {summary['exponent']:.4g}: "
        f"{summary['test_accuracy']:.2%} of {summary['test_images']:,} test images right"
    )
    if summary["runner_up_is_true"] is not None:
        print(f"of the mistakes {summary['runner_up_is_true']:.1%} have the true class second")
    own = f"{summary['neighbors_of_own_class']:.1%} are of its class"
    print(f"of the {summary['neighbors']} training images nearest to a center {own}")
    for name, shares in summary["accuracy_at_coverage"].items():
        words = ", ".join(f"{value:.2%} at {float(share):.0%}" for share, value in shares.items())
        print(f"accuracy where only some are answered, {SCORES[name]}: {words}")
