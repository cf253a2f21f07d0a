"""The CIFAR-10 speedrun with either head: the search for the best settings, then many runs of each arm.

    harmax search speedrun --script airbench94_muon.py                        the search; meant for a GPU
    harmax search speedrun --script airbench94_muon.py --finals --seeds 200   the runs that count

The script is public (KellerJordan/cifar10-airbench) and is no part of harmax. `harness.py` says what is replaced in it.
Both families have the same number of runs, and every run has the script's 8 epochs. A tenth of the training images is
held out, and the runs are compared by their accuracy on it with the script's test-time augmentation. Only the final
runs use the test images. They have a third arm, `public`: the script as it is.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from harmax.data.images import load_images
from harmax_lab.search.finals import FINAL
from harmax_lab.search.plan import DIVERGED, Even, OneOf, Outcome, Range, Rounds, Search, Space, Trial
from harmax_lab.vision.classifiers_training import some, split
from harmax_lab.vision.harness import Harness, write_images

EPOCHS = 8
"""Of the script, which has them in its text."""
HELD_OUT = 0.1
HARMONIC, PUBLIC = "harmonic", "public"

_SHARED: dict[str, Range | Even | OneOf] = {
    "head_lr": Range(0.01, 30.0),
    "head_decay": Range(1e-5, 1.0),
    "label_smoothing": Even(0.0, 0.5),
}
FAMILIES: dict[str, Space] = {
    "cross_entropy": {"logit_scale": Range(0.05, 20.0), **_SHARED},
    HARMONIC: {
        "exponent": Range(1.0, 64.0),
        "scale": Range(0.02, 10.0),
        "softening": Range(1e-3, 1000.0),
        **_SHARED,
    },
}
_PUBLIC = {"head_lr": 0.67, "head_decay": 0.00597, "label_smoothing": 0.2}
KNOWN = {
    "cross_entropy": ({"logit_scale": 1.0, **_PUBLIC},),
    HARMONIC: ({"exponent": 4.0, "scale": 1.0, "softening": 1e-3, **_PUBLIC},),
}
"""The script's own settings, and a pilot's."""
NATURAL = {"softening": (1e-3,), "head_decay": (1e-5,), "label_smoothing": (0.0,)}
"""Ends that are as good as 0."""
ROUNDS = {
    "full": Rounds(
        spread=48, longer=12, near=28, full=24, steps=(EPOCHS, EPOCHS, EPOCHS), seeds=(0, 1, 1, 2), repeats=4
    ),
    "smoke": Rounds(spread=2, longer=1, near=1, full=2, steps=(EPOCHS, EPOCHS, EPOCHS), seeds=(0, 1, 1, 2), repeats=2),
}
"""All runs are equally long. "longer" repeats the best ones with another seed; "full" has four seeds per setting."""
SMOKE_IMAGES = (2400, 240)


def plan(size: str, table: Path, device: str, script: Path | None = None) -> Search:
    """Return the search, with the images that it needs written beside its table, for a script."""
    if script is None:
        raise ValueError(
            "`script` must name the public file airbench94_muon.py, got none; get it from "
            "github.com/KellerJordan/cifar10-airbench and give --script FILE."
        )
    train = Trainer(script.absolute(), table.absolute().parent / f"{table.stem}-images", size, device)
    train.images(final=False)
    return Search(
        families=FAMILIES,
        controls=(PUBLIC,),
        rounds=ROUNDS[size],
        train=train,
        final_steps=EPOCHS,
        measures=("accuracy", "accuracy_without", "seconds"),
        unit="epochs",
        natural=NATURAL,
        known=KNOWN,
    )


@dataclass(frozen=True)
class Trainer:
    """Trains the runs of the search and the final ones. Its loss is the share of wrong answers."""

    script: Path
    folder: Path
    size: str
    device: str

    def __call__(self, trial: Trial) -> Outcome:
        """Run the script with the settings of a trial."""
        harness, model = ready(self.script, self.device, trial.family == HARMONIC)
        found = harness.run(model, self.images(final=trial.round == FINAL), trial.seed, trial.settings)
        notes: dict[str, Any] = {**found._asdict(), "seconds": round(found.seconds, 4)}
        return (1 - found.accuracy if found.diverged_at is None else DIVERGED), notes

    def images(self, *, final: bool) -> Path:
        """Return the folder of the images that a run may see, which is written the first time."""
        folder = self.folder / ("final" if final else "search")
        if all((folder / f"{name}.pt").is_file() for name in ("train", "test")):
            return folder
        if self.size == "smoke":
            from harmax.train.vision.data import generate_images

            count, others = SMOKE_IMAGES
            train = generate_images(count, classes=10, side=32)
            test = generate_images(others, start=count, classes=10, side=32)
        else:
            train = load_images("cifar10", "train")
            test = load_images("cifar10", "test") if final else train
        if not final:
            rest, held = split(train.labels, HELD_OUT, seed=0)
            train, test = some(train, rest), some(train, held)
        return write_images(folder, train, test)


@lru_cache(maxsize=2)
def ready(script: Path, device: str, harmonic: bool) -> tuple[Harness, Any]:
    """Return the script and its network with one of the heads, compiled once."""
    harness = _loaded(script, device)
    return harness, harness.build(harmonic=harmonic)


@lru_cache(maxsize=1)
def _loaded(script: Path, device: str) -> Harness:
    return Harness(script, device)
