"""ResNets with either head on photographs: accuracy, calibration, outliers, neural collapse, prototypes.

    harmax run classifiers --smoke    does it work: generated patterns, seconds
    harmax run classifiers            a tiny ResNet on digits of 8 x 8, on a CPU, under a minute: it decides nothing
    harmax run classifiers --full     ResNet-18 on CIFAR-10, parts of CIFAR-100 and Tiny ImageNet; meant for a GPU

Each data set has two stages. A grid of learning rates, the same for both heads, times exponents of the harmonic one or
scales of the other's logits (an exponent is a scale of logits too, so that cross-entropy is given one as well: 15
settings each) is run on nine tenths of the training images; the tenth that is held out chooses, by the mean accuracy
over tuning seeds: one of CIFAR-10, two of the others, whose tenths have 500 and 2000 images; each seed draws its own
tenth. Tuning runs are shorter than those that count (8 epochs of 64, 20 of 80, 8 of 25), and have other seeds. Then
several seeds are trained on all training images at what was chosen; no test image chooses a setting. Both heads of a
seed have one backbone to start from and see the same crops of the same images in the same order. SGD with Nesterov's
momentum 0.9, 512 images a step, a learning rate that rises for a fifth of the epochs and falls in a straight line to 0,
weight decay 5e-4 on all matrices (centers included), random crops with a reflected border of 4 pixels, half of the
images mirrored, a square of 8 x 8 blanked (cutout), no smoothing, blocks that start with BatchNorm's own scale of 1.
Harmonic centers start on the class means of the untrained network's features, because these have a large mean in
common: from centers near the origin all distances look alike. What test images had a part in: that start, found on a
small part of CIFAR-10 before there was a held-out side; and, after a first full run whose baseline stayed below 94 %
and whose CIFAR-100 was undecided, the number of epochs and seeds, cutout, and the ends of the grids.

Short tuning can mislead. On the two small sets the setting that is ahead after a third or a quarter of the epochs need
not be ahead at their end, and choices lie at ends of the learning rates: who is ahead there is not decided.

Intervals are Student's, over seeds: they tell how well the mean over trainings is known. All seeds are tested on the
same images; where accuracies are compared, what other images might change is in the interval too. The other measures
have intervals over seeds alone.

The stand-in for ImageNet is ResNet-18 on Tiny ImageNet at 32 x 32, without the AutoAugment of the paper's recipe. The
other reduced ImageNet of the data folder, imagenet_sample64, is not used: it has 1000 classes of one image each, so
that there is nothing to test on once it is learned. The recipe itself is `harmax vision imagenet`.

A run may be stopped at any time and goes on with the next cell. Where it goes on without what tuning had found, on
another machine, tuning may choose otherwise: claims on runs of several settings are not decided.

classifiers_training.py has the runs, classifiers_claims.py and classifiers_tables.py what is made of them,
classifiers_figures.py the pictures.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from harmax.files import read_json, write_json
from harmax.train.vision.settings import GENERATED
from harmax_lab.kit.experiment import Context, Experiment, Progress
from harmax_lab.kit.store import CellResult
from harmax_lab.vision.classifiers_claims import CLAIMS
from harmax_lab.vision.classifiers_figures import figures
from harmax_lab.vision.classifiers_spec import (
    TUNING,
    ClassifierCell,
    ClassifierSpec,
    Held,
    cells,
    choose,
    tuning_cells,
)
from harmax_lab.vision.classifiers_tables import summarize
from harmax_lab.vision.classifiers_training import Workbench


def run_cells(
    spec: ClassifierSpec, group: Sequence[ClassifierCell], context: Context
) -> Iterator[tuple[ClassifierCell, CellResult]]:
    """Train one ResNet after the other on one data set.

    What tuning found is kept in the scratch folder, which outlives interrupts as long as a cell of the data set is
    missing. Where it is gone all the same, the tuning runs that a cell needs are made again.
    """
    bench, held = Workbench(spec, group[0].dataset, context.device), HeldOut(context.scratch / "tuning.json")
    for place, cell in enumerate(group):
        tell = _part(context, place, len(group), cell.name)
        if cell.stage == TUNING:
            found, result = bench.tune(cell, tell)
            held.add(cell, found)
            yield cell, result
            continue
        grid = tuning_cells(spec, cell.dataset, cell.head)
        for other in held.missing(grid):
            held.add(other, bench.tune(other, tell)[0])
        yield cell, bench.count(cell, choose(held.of(grid), grid), tell)


class HeldOut:
    """What tuning runs reached on the images that were held out, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, list[float]] = read_json(path) if path.is_file() else {}

    def add(self, cell: ClassifierCell, held: Held) -> None:
        """Keep a run's result."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        others = read_json(self._path) if self._path.is_file() else {}  # another process may have added to it
        self._found = {**others, **self._found, cell.name: list(held)}
        write_json(self._path, self._found)

    def missing(self, grid: Sequence[ClassifierCell]) -> list[ClassifierCell]:
        """Return the runs of a grid that are not there."""
        return [cell for cell in grid if cell.name not in self._found]

    def of(self, grid: Sequence[ClassifierCell]) -> dict[ClassifierCell, Held]:
        """Return the results of a grid."""
        return {cell: Held(*self._found[cell.name]) for cell in grid}


def _part(context: Context, place: int, total: int, name: str) -> Progress:
    def tell(fraction: float, message: str = "", /) -> None:
        context((place + fraction) / total, f"{name}: {message}" if message else name)

    return tell


EXPERIMENT = Experiment(
    name="classifiers",
    title="ResNets with either head on CIFAR and Tiny ImageNet",
    figure="App., ImageNet table",
    claims=CLAIMS,
    profiles={
        "smoke": ClassifierSpec(
            seeds=(0, 1),
            datasets=(GENERATED,),
            epochs=(2,),
            tuning_epochs=(1,),
            tuning_seeds=(1,),
            repeats=(2,),
            lrs=(0.1, 0.2),
            exponents=(16.0,),
            scales=(1.0,),
            model="tiny",
            batch=64,
            dtype="float32",
            compile=False,
            snapshots=2,
            collapse_images=128,
            neighbors=4,
        ),
        "quick": ClassifierSpec(
            seeds=(0, 1),
            datasets=("digits",),
            epochs=(8,),
            tuning_epochs=(2,),
            tuning_seeds=(1,),
            repeats=(2,),
            lrs=(0.05, 0.2),
            exponents=(4.0, 16.0),
            scales=(0.5, 1.0),
            model="tiny",
            batch=64,
            dtype="float32",
            compile=False,
            snapshots=4,
        ),
        "full": ClassifierSpec(seeds=tuple(range(6))),
    },
    cells=cells,
    run_cells=run_cells,
    old_summarize=summarize,
    old_figures=figures,
    group=lambda cell: cell.dataset,
    accelerated=True,
)
