"""Folders that `harmax prototypes`, `geometry` and `explore` can read, beside model folders of transformers.

The library reads run folders of `harmax vision`. An installed package can add its own kinds of folders. It registers a
function in the entry-point group `harmax.sources`, under any name:

    [project.entry-points."harmax.sources"]
    lab = "harmax_lab.sources:open_source"

The function takes a path. It returns a `Source` if it can read the folder, and None if the folder is of another kind.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from harmax.heads import CenterHead
from harmax.plugins import plugins

if TYPE_CHECKING:
    from harmax.data.images.picture_list import PictureList
    from harmax.inspect.explorer.parts import ExplorerOptions, ExplorerParts
    from harmax.inspect.geometry import MeasuredModel


@dataclass(frozen=True)
class Classifier:
    """An image classifier with a harmonic head."""

    dataset: str
    """What it was trained on: a key of `IMAGES`, "folder" or "generated"."""
    head: CenterHead
    model: nn.Module | None
    """Computes the features. None: the input of the head is the pixels."""
    prepare: Callable[[Tensor], Tensor]
    """Turns uint8 images into the input of the model, or of the head if there is no model."""
    classes: tuple[str, ...] | None = None
    """The names of its classes. None: those of the data set."""
    size: int = 0
    """Height and width of its images, if pictures must be resized."""
    pictures: "PictureList | None" = None
    """The pictures that it was trained and tested on, if the folder lists them."""


class Source:
    """A folder that a package can read. A subclass overrides the methods for what its folders hold."""

    @property
    def kind(self) -> str:
        """What the folder is, for error messages."""
        return "a folder"

    def open_classifier(
        self, *, dataset: str | None, variant: str | None, device: str, backbone: str | None = None
    ) -> Classifier:
        """Return a classifier of the folder.

        Args:
            dataset: the one that was trained on this data set; None: the folder's own, or its first.
            variant: one of several that were trained on it; None: the preferred one.
            device: where to put it.
            backbone: the Python file with its network, which the user allows to run.
        """
        raise ValueError(f"FOLDER must hold an image classifier with a harmonic head, got {self.kind}; name another.")

    def measured_models(self) -> "list[MeasuredModel]":
        """Return the language models of the folder, whose measured arrays it stores."""
        raise ValueError(f"MODEL must hold a causal language model, got {self.kind}; name another.")

    def explorer_parts(self, options: "ExplorerOptions") -> "ExplorerParts":
        """Return what a page of `harmax explore` shows of the folder."""
        raise ValueError(f"SOURCE must hold something that `harmax explore` can show, got {self.kind}; name another.")


def find_source(folder: Path) -> Source | None:
    """Return the source that can read a folder: the library's own, or one of an installed package."""
    from harmax.inspect.vision_folder import open_vision_folder

    for open_source in (open_vision_folder, *plugins("sources").values()):
        source: Source | None = open_source(folder)
        if source is not None:
            return source
    return None
