"""Settings and cells of the experiment `classifiers`: what is tuned, on which grid, and how a setting is chosen."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from harmax.analysis import Interval
from harmax.figures import HEAD_STYLES, HeadStyle
from harmax.train.vision import VisionSpec
from harmax_lab.kit.experiment import Cell, Spec
from harmax_lab.kit.results import Results, interval
from harmax_lab.kit.rules import Choice
from harmax_lab.kit.store import CellResult
from harmax_lab.vision.trust_measures import detection_key

HARMONIC, LINEAR = HEADS = ("harmonic", "linear")
STYLES: dict[str, HeadStyle] = {HARMONIC: HEAD_STYLES["harmonic"], LINEAR: HEAD_STYLES["cross_entropy"]}
TUNING, FINAL = "tuning", "final"
TUNING_SEEDS = 1000
"""Added to the seeds of tuning runs, so that no run that chose is among those that count."""
CIFAR10, CIFAR100, TINY = PHOTOS = ("cifar10", "cifar100", "tiny_imagenet32")


@dataclass(frozen=True, kw_only=True)
class ClassifierSpec(Spec):
    """Settings of ResNets with either head; tuples with one entry per data set follow the order of `datasets`."""

    datasets: tuple[str, ...] = PHOTOS
    epochs: tuple[int, ...] = (64, 80, 25)
    """Of the runs that count."""
    tuning_epochs: tuple[int, ...] = (8, 20, 8)
    """Of the runs that choose learning rate, exponent and scale."""
    tuning_seeds: tuple[int, ...] = (1, 2, 2)
    """Number of tuning seeds. One would choose by 500 images of CIFAR-100's part, 2000 of Tiny ImageNet's."""
    repeats: tuple[int, ...] = (4, 6, 6)
    """Number of seeds of the runs that count."""
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
    """Side of the square that is blanked in every training photograph, in pixels."""
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
                    f"`{name}` must have {len(self.datasets)} entries, one per data set, got {getattr(self, name)}; "
                    "follow the order of `datasets`."
                )
        if max(self.seeds, default=0) >= TUNING_SEEDS:
            raise ValueError(f"`seeds` must be below {TUNING_SEEDS}, where those of tuning begin, got {self.seeds}.")
        if min(self.tuning_seeds, default=1) < 1:
            raise ValueError(f"`tuning_seeds` must be 1 or more each, got {self.tuning_seeds}; something must choose.")
        if not 0 < self.held_out < 1:
            raise ValueError(f"`held_out` must lie between 0 and 1, got {self.held_out}; 0.1 is usual.")

    def short_of(self, cells: Sequence["ClassifierCell"]) -> str:
        """Say in what networks and epochs fall short of the full profile's."""
        full, datasets = ClassifierSpec(), dict.fromkeys(cell.dataset for cell in cells)
        short = [f"{self.model}, not {full.model}"] * (self.model != full.model)
        for dataset in datasets:
            ran, epochs = self.of(dataset, "epochs"), full.of(dataset, "epochs")
            short += [f"{ran} of {epochs} epochs on {dataset}"] * (ran < epochs)
        return f"Less than in the full profile: {', '.join(short)}." if short else ""

    def of(self, dataset: str, name: str) -> Any:
        """Return a data set's entry of a setting that has one for each."""
        return getattr(self, name)[self.datasets.index(dataset)]

    def snapshot_epochs(self, dataset: str) -> tuple[int, ...]:
        """Return the epochs after which neural collapse is measured.

        >>> ClassifierSpec().snapshot_epochs("cifar10")
        (1, 14, 26, 39, 51, 64)
        """
        last, steps = self.of(dataset, "epochs"), max(self.snapshots - 1, 1)
        return tuple(sorted({round(1 + (last - 1) * step / steps) for step in range(steps + 1)}))


class Setting(NamedTuple):
    """What tuning chooses: a learning rate, and a harmonic head's exponent or the scale of a linear head's logits."""

    lr: float
    exponent: float | None = None
    scale: float | None = None

    def choices(self, spec: ClassifierSpec, arm: str) -> Iterator[Choice]:
        """Return each of its numbers with the grid that it was chosen from."""
        grids = {"lr": spec.lrs, "exponent": spec.exponents, "scale": spec.scales}
        for name, grid in grids.items():
            if getattr(self, name) is not None:
                yield Choice(arm, name, getattr(self, name), grid)

    @property
    def variant(self) -> str:
        """The exponent, or the scale of logits, in words."""
        return f"exponent {self.exponent:g}" if self.exponent is not None else f"logits times {self.scale:g}"


@dataclass(frozen=True)
class ClassifierCell(Cell):
    """One ResNet on one data set: one that tunes at its own setting, or one that counts, at the chosen one."""

    dataset: str
    head: str
    stage: str
    exponent: float | None
    """None for the linear head, and where tuning chooses it."""
    scale: float | None
    """Of the linear head's logits; None for the harmonic one, and where tuning chooses it."""
    lr: float | None
    """None where tuning chooses it."""
    seed: int

    @property
    def setting(self) -> Setting:
        """The setting of a cell that tunes."""
        assert self.lr is not None
        return Setting(self.lr, self.exponent, self.scale)


def grid_of(spec: ClassifierSpec, head: str) -> list[Setting]:
    """List the settings that a head is tuned over, exponent by exponent or scale by scale."""
    if head == HARMONIC:
        return [Setting(lr, exponent=exponent) for exponent in spec.exponents for lr in spec.lrs]
    return [Setting(lr, scale=scale) for scale in spec.scales for lr in spec.lrs]


def tuning_cells(spec: ClassifierSpec, dataset: str, head: str) -> list[ClassifierCell]:
    """List the grid of one head, each setting with the tuning seeds of the data set."""
    return [
        ClassifierCell(dataset, head, TUNING, setting.exponent, setting.scale, setting.lr, seed)
        for setting in grid_of(spec, head)
        for seed in spec.seeds[: spec.of(dataset, "tuning_seeds")]
    ]


def final_cells(spec: ClassifierSpec, dataset: str) -> list[ClassifierCell]:
    """List the runs that count, both heads of a seed together."""
    seeds = spec.seeds[: spec.of(dataset, "repeats")]
    return [ClassifierCell(dataset, head, FINAL, None, None, None, seed) for seed in seeds for head in HEADS]


def cells(spec: ClassifierSpec) -> list[ClassifierCell]:
    """List every run; in each data set those that tune come first."""
    found = []
    for dataset in spec.datasets:
        found += [cell for head in HEADS for cell in tuning_cells(spec, dataset, head)] + final_cells(spec, dataset)
    return found


class Held(NamedTuple):
    """How a tuning run, or some of them in the mean, did on the images that were held out."""

    accuracy: float
    nll: float

    @classmethod
    def of(cls, run: CellResult) -> "Held":
        """Return how a finished run did."""
        return cls(run.metrics["accuracy"], run.metrics["nll"])


def mean_held(held: Mapping[ClassifierCell, Held]) -> dict[Setting, Held]:
    """Return the mean over the seeds of every setting; a run that diverged makes its likelihood the worst."""
    runs: dict[Setting, list[Held]] = {}
    for cell, found in held.items():
        runs.setdefault(cell.setting, []).append(found)
    return {setting: Held(*map(fmean, zip(*found, strict=True))) for setting, found in runs.items()}


def choose(held: Mapping[ClassifierCell, Held]) -> Setting:
    """Return the setting of a grid that is the most accurate in the mean over seeds; of equal ones, the most likely."""
    means = mean_held(held)
    return max(means, key=lambda setting: (means[setting].accuracy, -means[setting].nll))


def vision_spec(spec: ClassifierSpec, cell: ClassifierCell, setting: Setting) -> VisionSpec:
    """Return the settings of the trainer for a cell."""
    tuning, photos = cell.stage == TUNING, cell.dataset in PHOTOS
    epochs = spec.of(cell.dataset, "tuning_epochs" if tuning else "epochs")
    own: dict[str, Any] = {"head": cell.head, "model": spec.model, "dtype": spec.dtype}
    if cell.head == HARMONIC:
        own |= {"exponent": setting.exponent, "center_start": spec.center_start, "scale": 1.0}
    else:
        own |= {"logit_scale": setting.scale}
    return VisionSpec(
        **own,
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
        seed=cell.seed + TUNING_SEEDS * tuning,
    )


def values(results: Results, metric: str) -> list[float]:
    """Return one metric of finished runs; those that diverged have none."""
    return results.take(lambda cell, run: run.metrics.get(metric)).present.values


def over_seeds(results: Results, metric: str) -> Interval | None:
    """Return the mean over seeds with its interval; None where nothing was measured.

    It describes training, not the test images, which are the same for all seeds.
    """
    found = values(results, metric)
    return interval(found) if found else None


def outside_sets(results: Results) -> list[str]:
    """Return the names of the outside sets that runs were measured against."""
    ending = detection_key("", "max_softmax", "auroc")
    names = {name for run in results.values() for name in run.metrics if name.endswith(ending)}
    return sorted(name.removesuffix(ending) for name in names)


def tuning_means(results: Results, dataset: str, head: str) -> dict[Setting, Held]:
    """Return the mean over tuning seeds of every setting of a head whose runs are all finished."""
    own = results.where(dataset=dataset, head=head, stage=TUNING).groups("setting").values()
    return mean_held({cell: Held.of(run) for runs in own if runs.complete for cell, run in runs.items()})
