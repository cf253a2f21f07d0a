"""The search for a recipe of classifiers: a ResNet-18 with either head, on CIFAR-10, CIFAR-100 or Tiny ImageNet.

    harmax search vision --smoke                        does it work: a tiny ResNet on generated patterns
    harmax search vision --data cifar100 --minutes 8    one data set, as long as there is time; meant for a GPU
    harmax search vision --data cifar100 --finals       after the search: the best of each family on the test images

Every family has the same number of runs and of epochs. A part of the training images is held out, and the runs are
compared by their error on it; each seed draws its own part. Only the final runs use the test images. They learn from
all training images. Lengths are in epochs. On the two small data sets settings are judged after as many epochs as final
runs have, because short runs prefer settings that learn fast and overfit later.

Everything but the searched settings is as in `harmax run classifiers`.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harmax.data.images import Images
from harmax.errors import unknown
from harmax.train.vision import VisionSpec
from harmax.train.vision.settings import GENERATED
from harmax_lab.search.finals import FINAL
from harmax_lab.search.plan import DIVERGED, Even, OneOf, Outcome, Range, Rounds, Search, Space, Trial
from harmax_lab.vision.classifiers_training import Diverged, read_side, some, split, tested, train_network
from harmax_lab.vision.classifiers_tuning import CIFAR10, CIFAR100, PHOTOS, TINY, ClassifierSpec

if TYPE_CHECKING:
    from harmax.train.vision.data import ResidentData

_SHARED: dict[str, Range | Even | OneOf] = {
    "lr": Range(0.02, 5.0),
    "center_lr": Range(0.01, 100.0),
    "weight_decay": Range(5e-5, 2e-2),
    "center_decay": Range(1e-6, 3e-2),
    "label_smoothing": Even(0.0, 0.4),
}
_HARMONIC: dict[str, Range | Even | OneOf] = {
    "center_start": OneOf(("means", "linear")),
    "center_std": Range(0.01, 3.0),
    "softening": Range(1e-3, 300.0),
    **_SHARED,
}
FAMILIES: dict[str, tuple[Mapping[str, Any], Space]] = {
    "cross_entropy": ({"head": "linear"}, {"logit_scale": Range(0.02, 20.0), **_SHARED}),
    "harmonic": ({"head": "harmonic", "scale": 1.0}, {"exponent": Range(1.0, 256.0), **_HARMONIC}),
    "harmonic_root": ({"head": "harmonic", "scale": 1.0}, _HARMONIC),
}
"""What each family has fixed, and what is searched. `harmonic_root` has the paper's exponent, the square root of the
number of features.

Features are taken as they are (scale 1) and centers start with a standard deviation of `center_std`, or on the class
means. So the ratio of their lengths is searched, while a rate of the centers means the same at every ratio.
"""
NATURAL = {"softening": (1e-3,), "center_decay": (1e-6,), "label_smoothing": (0.0,)}
"""Ends that are as good as 0."""
_USED = {"center_lr": 1.0, "weight_decay": 5e-4, "center_decay": 5e-4, "label_smoothing": 0.0}
_MEANS = {"center_start": "means", "center_std": 1.0, "softening": 1e-3, **_USED}
KNOWN: dict[str, tuple[Mapping[str, Any], ...]] = {
    "cross_entropy": ({"logit_scale": 1.0, **_USED, "lr": 0.2}, {"logit_scale": 0.25, **_USED, "lr": 0.8}),
    "harmonic": ({"exponent": 8.0, **_MEANS, "lr": 0.8}, {"exponent": 8.0, **_MEANS, "lr": 1.6}),
    "harmonic_root": ({**_MEANS, "lr": 0.4}, {**_MEANS, "lr": 0.8}),
}
"""What `harmax run classifiers` chose before, two of each family; held-out images had chosen them too."""


@dataclass(frozen=True)
class Size:
    """A data set, the network, and how long its runs are."""

    rounds: Rounds
    dataset: str
    _: KW_ONLY
    epochs: int
    """Of the final runs."""
    held_out: float
    """Share of the training images on which the runs of the search are compared."""
    model: Any = "resnet18"
    batch: int = 512
    dtype: Any = "bf16"
    compile: bool = True


# The four numbers of runs are those of the rounds "spread", "longer", "near" and "full".
SIZES: dict[str, Size] = {
    "cifar10": Size(Rounds(24, 8, 12, 4, steps=(4, 10, 20), repeats=2), CIFAR10, epochs=64, held_out=0.1),
    # A tenth of CIFAR-100 has 500 images, too few to tell two good settings apart.
    "cifar100": Size(Rounds(48, 14, 18, 8, steps=(20, 80, 80), repeats=2), CIFAR100, epochs=80, held_out=0.2),
    "tiny_imagenet": Size(Rounds(36, 10, 14, 6, steps=(8, 25, 25), repeats=2), TINY, epochs=25, held_out=0.1),
    "smoke": Size(
        Rounds(2, 1, 1, 2, steps=(1, 1, 2), repeats=2),
        GENERATED,
        epochs=2,
        held_out=0.25,
        model="tiny",
        batch=64,
        dtype="float32",
        compile=False,
    ),
}


def plan(size: str, table: Path, device: str, data: str | None = None) -> Search:
    """Return the search on a data set, or the small one of size "smoke"; its table is not needed."""
    known = [name for name in SIZES if name != "smoke"]
    if size != "smoke" and data not in known:
        raise ValueError(
            f"`data` must be one of {', '.join(known)}, got none; add --data."
            if data is None
            else unknown("data", data, known)
        )
    chosen = SIZES["smoke" if size == "smoke" else str(data)]
    return Search(
        families={name: space for name, (_, space) in FAMILIES.items()},
        rounds=chosen.rounds,
        train=Trainer(chosen, device),
        final_steps=chosen.epochs,
        measures=("accuracy", "nll"),
        unit="epochs",
        natural=NATURAL,
        known=KNOWN,
    )


@dataclass(frozen=True)
class Trainer:
    """Trains the runs of a search. Its loss is the share of wrong answers."""

    size: Size
    device: str

    def __call__(self, trial: Trial) -> Outcome:
        """Train one network, and test it on what was held out, or a final one on the test images."""
        spec = vision_spec(self.size, trial)
        data = opened(self.size, self.device, None if trial.round == FINAL else trial.seed)
        try:
            trained = train_network(spec, data, self.device, (spec.epochs,), tested)
        except Diverged as error:
            return DIVERGED, {"accuracy": None, "nll": None, "diverged_at": error.args[0]}
        accuracy, nll = trained.last["test_accuracy"], trained.last["test_loss"]
        seen = {"train_accuracy": round(float(trained.curves["train_accuracy"][-1]), 5)}
        end = {"accuracy": accuracy, "nll": nll, "diverged_at": None, **seen}
        return 1 - accuracy, {**end, "seconds": round(trained.cost["seconds"], 2)}


def vision_spec(size: Size, trial: Trial) -> VisionSpec:
    """Return the trainer's settings for a run."""
    usual, photos = ClassifierSpec(), size.dataset in PHOTOS
    searched = dict(trial.settings)
    if searched.get("center_start") == "means":
        del searched["center_std"]  # the means have a length of their own
    return VisionSpec(
        **FAMILIES[trial.family][0],
        **searched,
        **{name: getattr(size, name) for name in ("dataset", "model", "dtype", "compile", "batch")},
        micro_batch=size.batch,
        small_stem=True,
        zero_residual=False,
        flip=photos,
        padding=4 if photos else 1,
        cutout=usual.cutout if photos else 0,
        epochs=trial.steps,
        schedule="triangle",
        warmup=usual.warmup * trial.steps,
        nesterov=True,
        decay_norms=False,
        seed=trial.seed,
    )


@lru_cache(maxsize=4)
def opened(size: Size, device: str, seed: int | None) -> "ResidentData":
    """Return the images on the device: all of them, or what a seed learns from and holds out of the training side."""
    import torch

    from harmax.train.vision.data import ResidentData
    from harmax.train.world import World

    train = _side(size.dataset, "train")
    if seed is None:
        test = _side(size.dataset, "test")
    else:
        rest, held = split(train.labels, size.held_out, seed=seed)
        train, test = some(train, rest), some(train, held)
    any_run = Trial("cross_entropy", 0, FINAL, size.epochs, 0, {})  # each run brings its own settings
    return ResidentData(vision_spec(size, any_run), train, test, World(0, 1, torch.device(device)))


@lru_cache(maxsize=2)
def _side(dataset: str, side: str) -> Images:
    if dataset == GENERATED:
        from harmax.train.vision.data import generate_images

        return generate_images(512) if side == "train" else generate_images(256, start=512)
    return read_side(dataset, side)
