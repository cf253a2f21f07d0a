"""`harmax vision`: train an image classifier, or go on with one."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from harmax.cli.training import supervise
from harmax.cli.usage import UsageError
from harmax.train.vision import VISION_PRESETS, VisionSpec

if TYPE_CHECKING:
    from harmax.train.vision.train import VisionTraining
    from harmax.train.world import World

    Preset = VisionSpec
else:
    Preset = tyro.extras.subcommand_type_from_defaults(VISION_PRESETS, prefix_names=False)


@tyro.conf.configure(
    tyro.conf.OmitArgPrefixes,
    tyro.conf.OmitSubcommandPrefixes,
    tyro.conf.CascadeSubcommandArgs,  # --output may stand after the preset
)
@dataclass(frozen=True)
class Vision:
    """Train a ResNet with a harmonic or linear head; the same command goes on after a stop."""

    spec: Preset
    """A preset; every field of it can be given."""
    output: Path
    """The run's folder: checkpoints, metrics.jsonl, and model/ for transformers at the end."""
    device: str | None = None
    """Where to compute: cpu, cuda, cuda:1; a GPU where there is one if left out."""
    log: tuple[str, ...] = ()
    """Where metrics also go, if installed: tensorboard, wandb."""
    json: bool = False
    """Print the last line of metrics as JSON."""

    def __call__(self) -> int:
        """Train, and say where the model is."""
        load = f"from harmax.train.vision.model import load_classifier; load_classifier({str(self.output / 'model')!r})"
        return supervise(self, self._make, words=image_words, loading=f"load it with: {load}")

    def _make(self, world: "World") -> "VisionTraining":
        from harmax.train.vision.train import VisionTraining

        try:
            return VisionTraining(self.spec, self.output, world)
        except FileNotFoundError as error:  # of a data set, whose message says which files are wanted
            raise UsageError(str(error)) from error


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
    minutes, seconds = divmod(round(record["seconds_left"]), 60)
    parts += [f"lr {record['lr']:.2e}", f"{record['images_per_s']:,.0f} images/s", f"{record['memory_gib']:.2f} GiB"]
    return "  ".join([*parts, f"{minutes // 60}:{minutes % 60:02}:{seconds:02} left"])
