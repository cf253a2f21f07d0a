"""Flags of the verbs that open an image classifier and its images."""

from dataclasses import dataclass, fields
from pathlib import Path

from harmax.environment import choose_device
from harmax.inspect.classifiers import ClassifierWithImages, open_classifier


@dataclass(frozen=True, kw_only=True)
class ImageFlags:
    """Which classifier of a folder, and which images."""

    dataset: str | None = None
    """The images; those that the classifier was trained on if left out."""
    data: Path | None = None
    """The data folder; for class folders the one with train/ and val/. For your own pictures: where they are now, if
    they have moved. HARMAX_DATA if left out."""
    partial: bool = False
    """Accept a data set of which only a part is there."""
    variant: str | None = None
    """Which classifier, if the folder holds several; for a run of `mnist` the protocol, such as authors."""
    limit: int | None = None
    """Use at most this many training images and as many test images, spread evenly."""
    backbone: str | None = None
    """The Python file with the network, if the classifier was trained with --backbone FILE.py:FUNCTION. It is run."""
    device: str | None = None
    """Where to compute: cpu, cuda, cuda:1; if left out, a GPU if there is one."""

    def open_classifier(self, folder: Path) -> ClassifierWithImages:
        """Return the classifier of a folder and its images."""
        flags = {field.name: getattr(self, field.name) for field in fields(ImageFlags)}
        return open_classifier(folder, **{**flags, "device": choose_device(self.device)})
