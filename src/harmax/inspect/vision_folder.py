"""Run folders of `harmax vision` as a source of image classifiers."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from harmax.data.images.picture_list import LIST, PictureList, read_picture_list
from harmax.errors import DamagedError, needs
from harmax.heads import CenterHead
from harmax.inspect.sources import Classifier, Source

if TYPE_CHECKING:
    from harmax.inspect.explorer.parts import ExplorerOptions, ExplorerParts

PREPARATION, CONFIG, FORM = "preparation.json", "config.json", "classifier.json"


@dataclass(frozen=True)
class VisionFolder(Source):
    """A run folder of `harmax vision` and the folder of its model."""

    run: Path
    model: Path

    @property
    def kind(self) -> str:
        """What the folder is, for error messages."""
        return "a folder of `harmax vision`"

    def open_classifier(
        self, *, dataset: str | None, variant: str | None, device: str, backbone: str | None = None
    ) -> Classifier:
        """Return the classifier. Its images are those of `pictures.json`, or of the data set in the last checkpoint."""
        if variant is not None:
            raise ValueError(f"`--variant` must be left out for {self.kind}, got {variant!r}; it holds one classifier.")
        pictures = read_picture_list(self.run / LIST) if dataset is None and (self.run / LIST).is_file() else None
        found = dataset or ("folder" if pictures is not None else self._trained_on())
        if (self.model / FORM).is_file():
            return self._on_backbone(found, pictures, device, backbone)
        if backbone is not None:
            raise ValueError(f"`--backbone` must be left out for {str(self.run)!r}, which was trained without one.")
        return self._resnet(found, pictures, device)

    def _trained_on(self) -> str:
        from harmax.train.checkpoint import find_checkpoints

        checkpoints = find_checkpoints(self.run / "checkpoints")
        if not checkpoints:
            raise ValueError(
                f"`--dataset` must name the images of {str(self.model)!r}, got none; the folder has no checkpoint that "
                "names them."
            )
        return str(checkpoints[-1].read_state()["spec"]["dataset"])

    def _on_backbone(self, dataset: str, pictures: PictureList | None, device: str, backbone: str | None) -> Classifier:
        from harmax.train.pictures.model import load_picture_classifier

        model, preparation = load_picture_classifier(self.model, backbone=backbone)
        model.to(device)
        return Classifier(
            dataset,
            model.head,
            model,
            lambda x: preparation.prepare(x.to(device)),
            model.classes,
            preparation.size,
            pictures,
        )

    def _resnet(self, dataset: str, pictures: PictureList | None, device: str) -> Classifier:
        with needs("run"):
            from safetensors import SafetensorError

        from harmax.train.vision.model import load_classifier

        try:
            model, preparation = load_classifier(self.model)
        except (OSError, SafetensorError) as error:
            raise DamagedError(
                f"{self.model} must hold a whole classifier, but cannot be read ({error}); train or copy it again."
            ) from None
        head = model.classifier[1]
        if not isinstance(head, CenterHead):
            raise ValueError(
                f"FOLDER must hold a classifier with a harmonic head, got {str(self.model)!r} with a "
                f"{type(head).__name__}, which has no prototypes; train one with `harmax vision --head harmonic`."
            )
        nn.Module.to(model, device)
        labels = {int(number): str(name) for number, name in (model.config.id2label or {}).items()}
        names = tuple(labels[number] for number in sorted(labels))  # the file sorts them as texts: 0, 1, 10
        return Classifier(
            dataset, head, model, lambda x: preparation.prepare(x.to(device)), names, preparation.size, pictures
        )

    def explorer_parts(self, options: "ExplorerOptions") -> "ExplorerParts":
        """Return the classifier and its images."""
        from harmax.inspect.explorer.image_parts import image_parts

        return image_parts(self.model.parent if self.model.name == "model" else self.model, options)


def open_vision_folder(folder: Path) -> VisionFolder | None:
    """Return the source for a run folder of `harmax vision`, or for the model/ inside it; None for other folders."""
    for run, model in ((folder.parent, folder), (folder, folder / "model")):
        whole = (model / CONFIG).is_file() or (model / FORM).is_file()
        if whole and (model / PREPARATION).is_file():
            return VisionFolder(run, model)
    return None
