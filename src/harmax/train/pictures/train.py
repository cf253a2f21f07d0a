"""A classifier for a folder of pictures, on a pretrained network, in one piece.

harmax vision pictures --data photos --backbone efficientnet-lite0 --output run
harmax prototypes run
"""

# N pictures, D features, V classes

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from harmax.data.images.folders import ClassFolder
from harmax.data.images.picture_list import LIST, Opened, PictureList
from harmax.environment import choose_device
from harmax.files import write_json
from harmax.owner import FolderOwner
from harmax.train.pictures.backbones import Backbone, load_backbone
from harmax.train.pictures.features import FeatureStore, compute_features, read_square
from harmax.train.pictures.head import FOLDS, RATE, fit_head
from harmax.train.pictures.model import FORM, PictureClassifier, save_picture_classifier
from harmax.train.pictures.settings import FEATURE_BATCH, PicturesSpec
from harmax.train.pictures.tuning import fine_tune
from harmax.train.vision.pictures import Pictures, whole_squares

MICRO_BATCH = 32
TUNING_BATCH = 16


@dataclass(frozen=True)
class Telling:
    """Receivers of messages about a training."""

    fact: Callable[[str], object] = lambda words: None
    """Receives what was chosen and found."""
    progress: Callable[[str], object] = lambda words: None
    """Receives lines that only show that something happens."""


SILENT = Telling()


def train_on_backbone(
    spec: PicturesSpec, opened: Opened, output: Path, *, device: str | None = None, tell: Telling = SILENT
) -> dict[str, Any]:
    """Train a head on a pretrained network, write the model, and return what was measured on the test pictures.

    Args:
        spec: what to train; its `backbone` must be named.
        opened: the pictures, from `open_pictures`.
        output: the folder of the run.
        device: where to compute.
        tell: receives words.
    """
    assert spec.backbone is not None
    where = torch.device(choose_device(device))
    check_output(output, on_backbone=True)
    backbone = load_backbone(spec.backbone, weights=spec.weights, image_size=spec.image_size)
    backbone.module.to(where)
    backbone.count_features()  # refuses a network of another form before the work
    owner = FolderOwner(output)
    try:
        return _train(spec, opened.pictures, backbone, output, where, tell)
    finally:
        owner.release()


def _train(
    spec: PicturesSpec, pictures: PictureList, backbone: Backbone, output: Path, device: torch.device, tell: Telling
) -> dict[str, Any]:
    train, test = (pictures.open_side(side) for side in ("train", "test"))
    y_N, y_test = (torch.from_numpy(side.labels).to(device) for side in (train, test))
    micro, count = spec.micro_batch or MICRO_BATCH, len(train)
    store = FeatureStore(output / "features", f"{backbone.digest()}, whole squares")
    if store.caution:
        tell.fact(store.caution)
    found = []
    for name, side, listed in (("training", train, pictures.train), ("test", test, pictures.test)):
        show = _showing(tell, f"features of {name} pictures")
        squares = whole_squares(side, backbone.preparation.size)
        sums = [one.sha256 for one in listed]
        found.append(store.compute(backbone, squares, sums, micro_batch=micro, device=device, tell=show).to(device))
    x_ND, x_test = found
    batch = min(spec.batch or (count if count <= FEATURE_BATCH else FEATURE_BATCH), count)
    if spec.batch is None:
        tell.fact(
            f"batch {batch}: {'all training pictures' if batch == count else 'beyond 256 pictures, 256'} per step"
        )
    if spec.micro_batch is None:
        tell.fact(f"micro-batch {micro}: pictures that the network computes at a time")
    tell.progress("training the head")
    fitted = fit_head(
        x_ND,
        y_N,
        len(pictures.classes),
        exponent=spec.exponent,
        epochs=spec.epochs,
        batch=batch,
        lr=spec.lr,
        seed=spec.seed,
    )
    tell.fact(_how_found(spec, fitted.exponent, fitted.epochs, fitted.validated, x_ND.shape[1]))
    model = PictureClassifier(backbone.module, fitted.head, pictures.classes)
    if spec.fine_tune:
        _fine_tune(spec, model, backbone, train, float(x_ND.square().mean().sqrt()), device, tell)
        x_test = _features(backbone, test, micro, device, _showing(tell, "features of test pictures"))
    record = {
        "train_pictures": count,
        "test_pictures": len(test),
        **measure(model.head, x_test, y_test),
        "head_epochs": fitted.epochs,
        "cross_validated_loss": fitted.validated,
        "fine_tuned_epochs": spec.fine_tune,
    }
    write_json(output / LIST, pictures.as_plain())
    save_picture_classifier(model, backbone, output / "model", measured=record)
    return {**record, "exponent": fitted.exponent}


def check_output(output: Path, *, on_backbone: bool) -> None:
    """Refuse a folder that holds a run of the other kind, which would leave a mixture."""
    scratch, backbone = (output / "checkpoints").exists(), (output / "model" / FORM).exists()
    if (scratch and on_backbone) or (backbone and not on_backbone):
        own, other = ("with", "without") if on_backbone else ("without", "with")
        raise ValueError(
            f"`--output` must be a folder of a training {own} --backbone, got {str(output)!r} of one {other}; name "
            "another folder."
        )


@torch.no_grad()
def measure(head: torch.nn.Module, x_ND: Tensor, y_N: Tensor) -> dict[str, float]:
    """Return accuracy and mean negative log likelihood."""
    z_NV = head.eval()(x_ND)
    return {"top1": float((z_NV.argmax(1) == y_N).double().mean()), "val_loss": float(F.cross_entropy(z_NV, y_N))}


def _how_found(spec: PicturesSpec, exponent: float, epochs: int, validated: float | None, features: int) -> str:
    words = f"exponent {exponent:.4g}, {epochs} epochs"
    if spec.exponent is not None and spec.epochs is not None:
        return words
    if validated is None:
        return f"{words}: class means and sqrt({features}), as a class has a single training picture"
    return f"{words}: best in {FOLDS}-fold cross-validation of the training pictures (loss {validated:.3f} nat)"


def _fine_tune(
    spec: PicturesSpec,
    model: PictureClassifier,
    backbone: Backbone,
    train: ClassFolder,
    typical: float,
    device: torch.device,
    tell: Telling,
) -> None:
    batch = min(spec.batch or TUNING_BATCH, len(train))
    crops = Pictures(train, size=backbone.preparation.size, seed=spec.seed, flip=True)
    loss = fine_tune(
        model,
        backbone.preparation,
        crops,
        epochs=spec.fine_tune,
        batch=batch,
        head_rate=RATE / 4 * typical,
        seed=spec.seed,
        device=device,
        tell=tell.progress,
    )
    tell.fact(f"fine-tuned for {spec.fine_tune} epochs, batch {batch}: training loss {loss:.3f} nat at the end")


def _features(
    backbone: Backbone, side: ClassFolder, micro: int, device: torch.device, tell: Callable[[int, int], object]
) -> Tensor:
    squares, found = whole_squares(side, backbone.preparation.size), []
    for start in range(0, len(side), micro):
        tell(start, len(side))
        batch = range(start, min(start + micro, len(side)))
        found.append(compute_features(backbone, np.stack([read_square(squares, place) for place in batch]), device))
    return torch.cat(found)


def _showing(tell: Telling, what: str) -> Callable[[int, int], None]:
    def show(done: int, of: int) -> None:
        tell.progress(f"{what}: {done:,} of {of:,}")

    return show
