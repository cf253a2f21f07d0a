"""`harmax vision`: train an image classifier, or resume one."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tyro

from harmax.cli.training import TrainingFlags, supervise, time_left, verb_with_presets
from harmax.train.pictures.settings import PicturesSpec
from harmax.train.vision import VISION_PRESETS, VisionSpec
from harmax.train.vision.presets import DESCRIPTIONS

PICTURES = "Your own folder of pictures (--data): everything else is chosen from them. --backbone for a pretrained net."

if TYPE_CHECKING:
    Preset = VisionSpec | PicturesSpec
else:
    Preset = tyro.extras.subcommand_type_from_defaults(
        {"pictures": PicturesSpec(), **VISION_PRESETS}, {"pictures": PICTURES, **DESCRIPTIONS}, prefix_names=False
    )


@verb_with_presets
@dataclass(frozen=True, kw_only=True)
class Vision(TrainingFlags):
    """Train an image classifier with a harmonic or linear head. After a stop, the same command resumes the run.

    harmax vision pictures --data photos --backbone efficientnet-lite0 --output run
    """

    spec: Preset
    """A preset. Every field of it can be set: `harmax vision PRESET --help` lists them."""

    def __call__(self) -> int:
        """Train, and print where the model is."""
        if isinstance(self.spec, PicturesSpec):
            from harmax.cli.pictures import train_pictures

            return train_pictures(self, self.spec)
        return train_spec(self, self.spec)


def train_spec(flags: TrainingFlags, spec: VisionSpec, data: Any = None) -> int:
    """Train a ResNet and print where the model is.

    Args:
        flags: what was asked for.
        spec: what to train.
        data: makes the images from the processes of the run; None: those that `spec` names.
    """
    from harmax.train.vision.train import VisionRecipe

    load = f"from harmax.train.vision.model import load_classifier; load_classifier({str(flags.output / 'model')!r})"
    return supervise(
        flags,
        spec,
        lambda world: VisionRecipe(spec, world, data=None if data is None else data(world)),
        words=image_words,
        loading=f"load it with: {load}",
    )


def image_words(record: dict[str, Any], steps: int) -> str:
    """Write one line of metrics for a reader.

    >>> record = {"step": 97, "epoch": 1.0, "loss": 1.5, "accuracy": 0.45, "top1": 0.5, "val_loss": 1.25, "lr": 0.1}
    >>> image_words({**record, "images_per_s": 25000.0, "memory_gib": 3.0, "seconds_left": 75.0}, 970)
    'step 97/970  epoch 1.00  loss 1.5000  train 45.0 %  val 1.2500  top-1 50.00 %  lr 1.00e-01  25,000 images/s  3.00 GiB  0:01:15 left'
    """  # noqa: E501  (one line is what it is)
    parts = [f"step {record['step']}/{steps}", f"epoch {record['epoch']:.2f}", f"loss {record['loss']:.4f}"]
    parts.append(f"train {100 * record['accuracy']:.1f} %")
    if "top1" in record:
        parts += [f"val {record['val_loss']:.4f}", f"top-1 {100 * record['top1']:.2f} %"]
    if "top5" in record:
        parts.append(f"top-5 {100 * record['top5']:.2f} %")
    parts += [f"lr {record['lr']:.2e}", f"{record['images_per_s']:,.0f} images/s", f"{record['memory_gib']:.2f} GiB"]
    return "  ".join([*parts, time_left(record["seconds_left"])])
