"""`harmax prototypes`: the centers of an image classifier, as a page, as figures and as plain arrays."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from harmax.cli.image_flags import ImageFlags
from harmax.cli.live_line import LiveLine
from harmax.cli.usage import UsageError, check_folder, checking_usage, print_json
from harmax.errors import needs, unknown
from harmax.figures import house_style, to_png
from harmax.files import write_atomically, write_json
from harmax.inspect import classifiers
from harmax.inspect.prototype_figures import MOST
from harmax.inspect.prototype_page import prototype_page

ARRAYS, SUMMARY, PAGE = "prototypes.safetensors", "prototypes.json", "prototypes.html"
FEW = 12  # classes to draw if there are more than a figure holds


@dataclass(frozen=True)
class Prototypes(ImageFlags):
    """Show the centers of a harmonic image classifier, the reasons for its decisions, and what abstaining gains.

    harmax prototypes runs/cifar10 --output figures

    harmax prototypes runs/pictures

    harmax prototypes runs/mnist/2a19cf160169 --dataset mnist --variant authors
    """

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """The output of `harmax vision`, or the model/ inside it. With harmax-lab also a run of `harmax run mnist`."""
    output: Path = Path("prototypes")
    """The folder to write: prototypes.html, a page for a browser; centers.png (one-layer classifiers), nearest.png,
    decisions.png, abstention.png, prototypes.safetensors and prototypes.json."""
    neighbors: int = 5
    """Number of training images to show for each center."""
    decisions: int = 8
    """Number of test images to show. Half of them are the surest mistakes."""
    classes: tuple[str, ...] = ()
    """Names of the classes whose neighbors are shown; all if left out, or 12 if there are more than 24."""
    json: bool = False
    """Print the content of prototypes.json."""

    def __call__(self) -> int:
        """Measure, draw, write the files and print what was found."""
        with needs("run"):
            from safetensors.numpy import save
        with checking_usage():
            check_folder(self.output, "--output")
            self._check()
            with house_style():  # a missing matplotlib is better noticed before the work
                pass
            subject = self._open()
            rows = self._rows(subject.classes)
        with LiveLine("reading") as line:
            found = classifiers.inspect_classifier(subject, neighbors=self.neighbors, tell=line)
        with house_style():
            figures = classifiers.draw_classifier(subject, found, rows, decisions=self.decisions)
        html = prototype_page(
            subject, found, rows.tolist(), title=f"{self.folder.resolve().name}: why each picture gets its class"
        )
        summary = {"folder": str(self.folder), **classifiers.summarize_classifier(subject, found)}
        for name, figure in figures.items():
            write_atomically(self.output / f"{name}.png", to_png(figure))
        write_atomically(self.output / ARRAYS, save(classifiers.classifier_arrays(subject, found)))
        write_json(self.output / SUMMARY, summary)
        write_atomically(self.output / PAGE, html.encode())
        files = [PAGE, *(f"{name}.png" for name in figures), ARRAYS, SUMMARY]
        if self.json:
            print_json({**summary, "files": [str(self.output / name) for name in files]})
        else:
            show(summary)
            for name in files:
                print(self.output / name)
        return 0

    def _check(self) -> None:
        if self.neighbors < 1:
            raise ValueError(f"`--neighbors` must be at least 1, got {self.neighbors}; try 5.")
        if not 1 <= self.decisions <= MOST:
            raise ValueError(f"`--decisions` must be 1 to {MOST}, got {self.decisions}; try 8.")

    def _open(self) -> classifiers.ClassifierWithImages:
        try:
            return self.open_classifier(self.folder)
        except FileNotFoundError as error:  # of a data set; the message lists the files that are needed
            raise UsageError(str(error)) from error

    def _rows(self, names: tuple[str, ...]) -> np.ndarray:
        for name in self.classes:
            if name not in names:
                raise ValueError(unknown("--classes", name, names))
        if len(self.classes) > MOST:
            raise ValueError(f"`--classes` must be at most {MOST}, got {len(self.classes)}; name fewer.")
        if self.classes:
            return np.array([names.index(name) for name in self.classes])
        few = len(names) if len(names) <= MOST else FEW
        return np.unique(np.linspace(0, len(names) - 1, few).round().astype(int))


def show(summary: Mapping[str, Any]) -> None:
    """Print what was found, one line per fact."""
    print(
        f"{summary['dataset']}, {len(summary['classes'])} classes, exponent {summary['exponent']:.4g}: "
        f"{summary['test_accuracy']:.2%} of {summary['test_images']:,} test images are right"
    )
    if summary["runner_up_is_true"] is not None:
        print(f"{summary['runner_up_is_true']:.1%} of the mistakes have the true class as the second nearest")
    own, neighbors = summary["neighbors_of_own_class"], summary["neighbors"]
    print(f"{own:.1%} of the {neighbors} training images nearest to a center are of its class")
    for name, shares in summary["accuracy_at_coverage"].items():
        words = ", ".join(f"{value:.2%} at {float(share):.0%}" for share, value in shares.items())
        print(f"accuracy if only a share is answered, {classifiers.SCORES[name]}: {words}")
