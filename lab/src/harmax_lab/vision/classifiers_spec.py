"""What the experiment `classifiers` is told: its settings, its cells, and how the tuned ones are chosen."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from harmax.figures import HEAD_STYLES, HeadStyle
from harmax.train.vision import VisionSpec
from harmax_lab.kit.experiment import Cell, Spec

HARMONIC, LINEAR = HEADS = ("harmonic", "linear")
TUNING, FINAL = "tuning", "final"
TUNING_SEEDS = 1000
"""What is added to a seed where it tunes, so that no run that chose is among those that count."""
CIFAR10, CIFAR100, TINY = PHOTOS = ("cifar10", "cifar100", "tiny_imagenet32")
TITLES = {
    CIFAR10: "CIFAR-10",
    CIFAR100: "CIFAR-100, 50 images a class",
    TINY: "Tiny ImageNet at 32 x 32, 100 images a class",
    "digits": "digits, 8 x 8",
    "generated": "generated patterns",
}
SHORT = {CIFAR10: "CIFAR-10", CIFAR100: "CIFAR-100 (part)", TINY: "Tiny ImageNet (part)"}
"""For panels too narrow for a title."""
STYLES: dict[str, HeadStyle] = {HARMONIC: HEAD_STYLES["harmonic"], LINEAR: HEAD_STYLES["cross_entropy"]}


@dataclass(frozen=True, kw_only=True)
class ClassifierSpec(Spec):
    """Settings of ResNets with either head; tuples with one entry a data set follow the order of `datasets`."""

    datasets: tuple[str, ...] = PHOTOS
    epochs: tuple[int, ...] = (64, 80, 25)
    """Of the runs that count."""
    tuning_epochs: tuple[int, ...] = (8, 20, 8)
    """Of the runs that choose learning rate, exponent and scale."""
    tuning_seeds: tuple[int, ...] = (1, 2, 2)
    """Seeds of them: the first so many. One would choose by 500 images of CIFAR-100's part, 2000 of Tiny ImageNet's."""
    repeats: tuple[int, ...] = (4, 6, 6)
    """Seeds of the runs that count: the first so many."""
    lrs: tuple[float, ...] = (0.1, 0.2, 0.4, 0.8, 1.6)
    """Largest learning rates, the same for both heads."""
    exponents: tuple[float, ...] = (8.0, 22.63, 64.0)
    """Of the harmonic head: sqrt(D), which is the paper's rule with D = 512 features, and about a third and thrice."""
    scales: tuple[float, ...] = (0.25, 1.0, 4.0)
    """Of the logits of cross-entropy: as many as exponents, which scale logits too."""
    held_out: float = 0.1
    """Share of the training images that tuning does not learn from and chooses by."""

    model: str = "resnet18"
    center_start: str = "means"
    """How the harmonic centers start, as in `VisionSpec`."""
    batch: int = 512
    warmup: float = 0.2
    """Share of the epochs in which the learning rate rises; then it falls in a straight line to 0."""
    weight_decay: float = 5e-4
    cutout: int = 8
    """Pixels of a side of the square that is blanked in every training photograph."""
    dtype: str = "bf16"
    compile: bool = True

    snapshots: int = 6
    """Epochs after which neural collapse is measured: the first, the last, and others evenly between."""
    collapse_images: int = 10_000
    """Training images that it is measured on, at most."""
    neighbors: int = 8
    """Training images nearest to a center that are kept as pictures."""
    shown_classes: int = 10
    """Centers whose pictures are kept, at most."""

    def __post_init__(self) -> None:
        for name in ("epochs", "tuning_epochs", "tuning_seeds", "repeats"):
            if len(getattr(self, name)) != len(self.datasets):
                raise ValueError(
                    f"`{name}` must have {len(self.datasets)} entries, one a data set, got {getattr(self, name)}; "
                    "follow the order of `datasets`."
                )
        if max(self.seeds, default=0) >= TUNING_SEEDS:
            raise ValueError(f"`seeds` must be below {TUNING_SEEDS}, where those of tuning begin, got {self.seeds}.")
        if min(self.tuning_seeds, default=1) < 1:
            raise ValueError(f"`tuning_seeds` must be 1 or more each, got {self.tuning_seeds}; something must choose.")
        if not 0 < self.held_out < 1:
            raise ValueError(f"`held_out` must lie between 0 and 1, got {self.held_out}; 0.1 is usual.")

    def of(self, dataset: str, name: str) -> Any:
        """Return a data set's entry of a setting that has one for each.

        >>> ClassifierSpec().of("cifar100", "epochs")
        80
        """
        return getattr(self, name)[self.datasets.index(dataset)]

    def snapshot_epochs(self, dataset: str) -> tuple[int, ...]:
        """Return the epochs after which neural collapse is measured.

        >>> ClassifierSpec().snapshot_epochs("cifar10")
        (1, 14, 26, 39, 51, 64)
        """
        last, steps = self.of(dataset, "epochs"), max(self.snapshots - 1, 1)
        return tuple(sorted({round(1 + (last - 1) * step / steps) for step in range(steps + 1)}))


@dataclass(frozen=True)
class ClassifierCell(Cell):
    """One ResNet on one data set: one that tunes at its own setting, or one that counts, at the chosen."""

    dataset: str
    head: str
    stage: str
    exponent: float | None
    """None for the linear head, and where it is what tuning chose."""
    scale: float | None
    """Of the linear head's logits; None for the harmonic one, and where it is what tuning chose."""
    lr: float | None
    """None where it is what tuning chose."""
    seed: int


class Setting(NamedTuple):
    """What tuning chooses: a learning rate, and a harmonic head's exponent or the scale of a linear one's logits."""

    lr: float
    exponent: float | None = None
    scale: float | None = None


class Held(NamedTuple):
    """How a tuning run, or some of them in the mean, did on the images that were held out."""

    accuracy: float
    nll: float


def tuning_cells(spec: ClassifierSpec, dataset: str, head: str) -> list[ClassifierCell]:
    """List the grid of one head, each setting with the tuning seeds of the data set."""
    return [
        ClassifierCell(dataset, head, TUNING, setting.exponent, setting.scale, setting.lr, seed)
        for setting in grid_of(spec, head)
        for seed in spec.seeds[: spec.of(dataset, "tuning_seeds")]
    ]


def grid_of(spec: ClassifierSpec, head: str) -> list[Setting]:
    """List the settings that a head is tuned over, exponent by exponent or scale by scale.

    >>> len(grid_of(ClassifierSpec(), "harmonic")), len(grid_of(ClassifierSpec(), "linear"))
    (15, 15)
    """
    return [Setting(lr, *variant) for variant in variants_of(spec, head) for lr in spec.lrs]


def ends_of(spec: ClassifierSpec, setting: Setting) -> list[str]:
    """Return which numbers of a setting lie at an end of their grid, where a better one may lie beyond.

    >>> ends_of(ClassifierSpec(), Setting(0.1, exponent=22.63)), ends_of(ClassifierSpec(), Setting(0.4, scale=4.0))
    (['lr'], ['scale'])
    """
    grids = {"lr": spec.lrs, "exponent": spec.exponents, "scale": spec.scales}
    return [name for name, grid in grids.items() if getattr(setting, name) in (min(grid), max(grid))]


def variants_of(spec: ClassifierSpec, head: str) -> list[tuple[float | None, float | None]]:
    """List a head's exponents and scales, of which it has one kind.

    >>> variants_of(ClassifierSpec(), "linear")
    [(None, 0.25), (None, 1.0), (None, 4.0)]
    """
    if head == HARMONIC:
        return [(exponent, None) for exponent in spec.exponents]
    return [(None, scale) for scale in spec.scales]


def final_cells(spec: ClassifierSpec, dataset: str) -> list[ClassifierCell]:
    """List the runs that count, both heads of a seed together."""
    seeds = spec.seeds[: spec.of(dataset, "repeats")]
    return [ClassifierCell(dataset, head, FINAL, None, None, None, seed) for seed in seeds for head in HEADS]


def cells(spec: ClassifierSpec) -> list[ClassifierCell]:
    """List every run, of each data set those first that the others depend on."""
    return [
        cell
        for dataset in spec.datasets
        for cell in [
            *(cell for head in HEADS for cell in tuning_cells(spec, dataset, head)),
            *final_cells(spec, dataset),
        ]
    ]


def choose(held: Mapping[ClassifierCell, Held], grid: Iterable[ClassifierCell]) -> Setting:
    """Return the setting of a grid that is the most accurate in the mean over seeds; of equal ones, the most likely.

    >>> grid = tuning_cells(ClassifierSpec(lrs=(0.1, 0.4), scales=(1.0,)), "cifar10", "linear")  # one seed
    >>> choose(dict(zip(grid, [Held(0.9, 0.3), Held(0.8, 0.2)])), grid)
    Setting(lr=0.1, exponent=None, scale=1.0)
    """
    runs: dict[Setting, list[Held]] = {}
    for cell in grid:
        runs.setdefault(setting_of(cell), []).append(held[cell])
    means = {setting: mean_held(found) for setting, found in runs.items()}
    return max(means, key=lambda setting: (means[setting].accuracy, -means[setting].nll))


def setting_of(cell: ClassifierCell) -> Setting:
    """Return the setting of a cell that tunes."""
    assert cell.lr is not None
    return Setting(cell.lr, cell.exponent, cell.scale)


def mean_held(runs: Sequence[Held]) -> Held:
    """Return the mean over the tuning seeds of a setting; a run that diverged makes its likelihood the worst there is.

    >>> mean_held([Held(0.5, 1.0), Held(0.75, 2.0)])
    Held(accuracy=0.625, nll=1.5)
    """
    return Held(fmean(run.accuracy for run in runs), fmean(run.nll for run in runs))


def vision_spec(spec: ClassifierSpec, cell: ClassifierCell, setting: Setting) -> VisionSpec:
    """Return what the trainer of ResNets is told for a cell."""
    epochs = spec.of(cell.dataset, "tuning_epochs" if cell.stage == TUNING else "epochs")
    photos = cell.dataset in PHOTOS
    harmonic: dict[str, Any] = {"exponent": setting.exponent, "center_start": spec.center_start}
    linear: dict[str, Any] = {"logit_scale": setting.scale}
    trainer: dict[str, Any] = {"model": spec.model, "dtype": spec.dtype}
    return VisionSpec(
        head="harmonic" if cell.head == HARMONIC else "linear",
        **(harmonic if cell.head == HARMONIC else linear),
        **trainer,
        small_stem=True,
        zero_residual=False,
        dataset=cell.dataset,
        flip=photos,  # a mirrored digit is none
        padding=4 if photos else 1,
        cutout=spec.cutout if photos else 0,
        epochs=epochs,
        batch=spec.batch,
        micro_batch=spec.batch,
        lr=setting.lr,
        schedule="triangle",
        warmup=spec.warmup * epochs,
        nesterov=True,
        weight_decay=spec.weight_decay,
        decay_norms=False,
        compile=spec.compile,
        seed=cell.seed + (TUNING_SEEDS if cell.stage == TUNING else 0),
    )
