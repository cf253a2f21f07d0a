"""The settings for a folder of pictures, and how those that are left out follow from the pictures."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from harmax.environment import cores
from harmax.train.checks import check_least
from harmax.train.vision.settings import FOLDER, VisionSpec

SIDES = (32, 48, 64, 96, 128, 160, 192, 224)
"""Side lengths to choose from when a network is trained from scratch."""
CPU_SIDE = 96
"""The largest of them without a GPU."""
LARGE_STEM = 64
"""From this side length on the network begins with a stride, as for ImageNet."""
STEPS = 600
"""Steps that training from scratch aims at."""
FEATURE_BATCH = 256
"""Training pictures up to which a head learns from all at once, and the batch beyond."""


@dataclass(frozen=True, kw_only=True)
class PicturesSpec:
    """A classifier for a folder of pictures. What is left out is chosen from the pictures, and printed.

    With a backbone, its features are computed once and a harmonic head learns from them. Without one, a ResNet is
    trained from scratch.
    """

    data: Path | None = None
    """The folder: class folders, or train/ and val/ with class folders, or one flat folder of files such as
    cat_001.jpg, or any folder with --labels."""
    labels: Path | None = None
    """A CSV file with the columns file (below --data) and label, and optionally split (train or val)."""
    validation: float = 0.2
    """Share of each class to test on, if neither folders nor --labels divide the pictures."""
    skip_broken: bool = False
    """Train without the pictures that cannot be read. Otherwise they are an error."""
    backbone: str | None = None
    """A pretrained network: efficientnet-lite0, timm:NAME, or FILE.py:FUNCTION, which returns a module from pictures
    (B, 3, H, W) to features (B, D). Default: none."""
    weights: Path | None = None
    """Weights for timm:NAME, a .safetensors file. Default: those that timm finds."""
    fine_tune: int = 0
    """Epochs in which the whole network is trained further, after the head. 0: only the head learns."""
    model: Literal["resnet50", "resnet18", "tiny"] = "resnet18"
    """The network to train from scratch, without a backbone."""
    exponent: float | None = None
    """Exponent of the harmonic head. Default with a backbone: the best of five in cross-validation. Default without
    one: the square root of the number of features."""
    image_size: int | None = None
    """Side length of the squares that the network sees, in pixels. Default: the backbone's own, or from the
    pictures."""
    batch: int | None = None
    """Pictures per step. Default: from the number of training pictures."""
    micro_batch: int | None = None
    """Pictures that are computed at a time. Default: the batch, or 32 with a backbone."""
    epochs: int | None = None
    """Passes over the training pictures. Default: from cross-validation, or from the number of training pictures."""
    lr: float | None = None
    """Peak learning rate. Default: 0.02 for a head, in units of the features; 0.1 per 64 pictures from scratch."""
    seed: int = 0
    """Seed of the division, the order of the pictures and the initial weights."""

    def __post_init__(self) -> None:
        check_least(self, {"fine_tune": 0, "seed": 0})
        for name, least in (("image_size", 16), ("batch", 1), ("micro_batch", 1), ("epochs", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"`{name}` must be at least {least}, got {value}; leave it out to have it chosen.")
        for name in ("exponent", "lr"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"`{name}` must be a positive number, got {value}; leave it out to have it chosen.")
        if not 0 < self.validation < 1:
            raise ValueError(f"`validation` must be a share between 0 and 1, got {self.validation}; 0.2 is usual.")
        if self.backbone is None and (self.weights is not None or self.fine_tune):
            raise ValueError("`weights` and `fine_tune` must come with `backbone`, got none; name one.")

    @property
    def folder(self) -> Path:
        """The folder of the pictures."""
        if self.data is None:
            raise ValueError("`--data` must name the folder of the pictures, got none; add --data FOLDER.")
        return self.data


class Chosen(NamedTuple):
    """Settings of training from scratch, and how they were found."""

    spec: VisionSpec
    reasons: list[str]
    """One line per setting that was chosen."""


def choose_settings(spec: PicturesSpec, *, pictures: int, side: int, pixels: float, gpu: bool) -> Chosen:
    """Choose the settings of a ResNet that is trained from scratch.

    Args:
        spec: what was asked for.
        pictures: number of training pictures.
        side: the median of the pictures' shorter sides.
        pixels: the mean number of pixels of a picture.
        gpu: whether there is one.

    >>> chosen = choose_settings(PicturesSpec(), pictures=144, side=300, pixels=1e5, gpu=False)
    >>> chosen.spec.batch, chosen.spec.epochs, chosen.spec.image_size
    (16, 67, 96)
    """
    reasons = []
    size = spec.image_size
    if size is None:
        most = SIDES[-1] if gpu else CPU_SIDE
        size = max(one for one in SIDES if one <= min(max(side, SIDES[0]), most))
        limit = "" if gpu or side <= CPU_SIDE else f", at most {CPU_SIDE} without a GPU"
        reasons.append(f"image size {size}: half of the pictures have a shorter side of {side} or less{limit}")
    batch, micro = _choose_batch(spec, pictures)
    if spec.batch is None:
        reasons.append(f"batch {batch}: about an eighth of the {pictures} training pictures, from 8 to 256")
    if spec.micro_batch is None:
        reasons.append(f"micro-batch {micro}: the batch, from which BatchNorm takes its statistics")
    steps = max(1, pictures // batch)
    epochs = spec.epochs
    if epochs is None:
        epochs = min(max(math.ceil(STEPS / steps), 10), 100)
        reasons.append(f"epochs {epochs}: {steps} steps per epoch, aiming at {STEPS} steps, from 10 to 100 epochs")
    lr = spec.lr
    if lr is None:
        lr = min(0.1 * batch / 64, 0.4)
        reasons.append(f"learning rate {lr:g}: 0.1 per 64 pictures of the batch, at most 0.4")
    chosen = VisionSpec(
        dataset=FOLDER,
        data=spec.data,
        model=spec.model,
        exponent=spec.exponent,
        center_start="means",
        image_size=size,
        small_stem=size < LARGE_STEM,
        batch=batch,
        micro_batch=micro,
        epochs=epochs,
        lr=lr,
        schedule="cosine",
        warmup=min(5.0, epochs / 10),
        weight_decay=5e-4,
        decay_norms=False,
        dtype="bf16" if gpu else "float32",
        compile=False,
        record=False,
        channels_last=gpu,
        workers=0 if pictures * pixels < 1e9 else min(8, max(1, cores() - 1)),
        seed=spec.seed,
        log_every=steps * max(1, epochs // 10),
        evaluate_every=max(1, epochs // 10),
        checkpoint_every=max(50, steps * max(1, epochs // 10)),
    )
    return Chosen(chosen, reasons)


def _choose_batch(spec: PicturesSpec, pictures: int) -> tuple[int, int]:
    batch = spec.batch
    if batch is None:
        power = 2 ** round(math.log2(max(pictures / 8, 1)))
        batch = min(max(power, 8), 256, pictures)
        if spec.micro_batch is not None:
            batch = max(spec.micro_batch, batch // spec.micro_batch * spec.micro_batch)
    if batch > pictures:
        raise ValueError(
            f"`batch` must be at most the number of training pictures ({pictures}), got {batch}; make it smaller."
        )
    return batch, spec.micro_batch or batch
