"""A classifier of pictures on a pretrained network: how it is saved, loaded and asked.

model/classifier.json      name of the network, classes, exponent, what was measured
model/preparation.json     how pictures are prepared
model/model.safetensors    the weights: backbone.* and head.*
pictures.json              beside model/: which pictures it was trained and tested on
"""

# B pictures, C channels, H rows, W columns, V classes

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harmax.errors import DamagedError, needs
from harmax.files import naming, read_json, write_atomically, write_json
from harmax.heads import HarmonicHead
from harmax.train.pictures.backbones import Backbone, is_file, load_backbone
from harmax.train.vision.preparation import PREPARATION, Preparation, read_preparation

FORM, WEIGHTS = "classifier.json", "model.safetensors"


class PictureClassifier(nn.Module):
    """A network with a harmonic head. `forward` turns prepared pictures (B, 3, H, W) into log-probabilities (B, V).

    Args:
        backbone: the network without its classifier.
        head: on its features.
        classes: their V names.
    """

    def __init__(self, backbone: nn.Module, head: HarmonicHead, classes: tuple[str, ...]) -> None:
        super().__init__()
        self.backbone, self.head, self.classes = backbone, head, classes

    def forward(self, images: Tensor) -> Tensor:
        """Return log-probabilities, (B, V)."""
        logits: Tensor = self.head(self.backbone(images).float())
        return logits


def save_picture_classifier(
    model: PictureClassifier, backbone: Backbone, folder: Path, *, measured: dict[str, Any]
) -> None:
    """Write a classifier.

    Args:
        model: the classifier.
        backbone: what its network was made from.
        folder: the folder of the model.
        measured: what was measured, as plain values.
    """
    with needs("run"):
        from safetensors.torch import save

    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with naming(folder / WEIGHTS):
        write_atomically(folder / WEIGHTS, save(state))
    write_json(folder / PREPARATION, backbone.preparation._asdict())
    # Last: a folder with it is whole.
    write_json(
        folder / FORM,
        {"backbone": backbone.name, "classes": list(model.classes), "exponent": float(model.head.exponent), **measured},
    )


def load_picture_classifier(
    folder: Path | str, *, backbone: str | None = None
) -> tuple[PictureClassifier, Preparation]:
    """Load a classifier that `harmax vision pictures --backbone` trained, ready to predict.

    model, preparation = load_picture_classifier("run/model")
    log_probabilities = model(preparation.prepare(pixels))

    Args:
        folder: the folder of the model.
        backbone: the network's FILE.py:FUNCTION, if it is a Python file. A model folder alone never runs one.
    """
    with needs("run"):
        from safetensors import SafetensorError
        from safetensors.torch import load_file

    path = Path(folder)
    if not (path / FORM).is_file():
        raise ValueError(f"`folder` must hold a trained classifier ({FORM}), got {str(folder)!r}; give OUTPUT/model.")
    form, preparation = read_json(path / FORM), read_preparation(path)
    name = str(form.get("backbone")) if isinstance(form, dict) else ""
    if is_file(name) and backbone is None:
        raise ValueError(
            f"the network of {path} is a Python file, which is run when it is loaded; if you trust it, name it: "
            f"--backbone {name} (in Python: backbone={name!r})."
        )
    try:
        state = load_file(path / WEIGHTS)
        network = load_backbone(backbone or name, image_size=preparation.size, trained=False)
        head = HarmonicHead.from_state_dict(state, "head.")
        model = PictureClassifier(network.module, head, tuple(map(str, form["classes"])))
        model.load_state_dict(state)
    except (SafetensorError, KeyError, TypeError, RuntimeError, FileNotFoundError) as error:
        raise DamagedError(f"{path} must hold a whole classifier, got {error}; train it again.") from error
    return model.eval(), preparation


@torch.no_grad()
def predict(model: PictureClassifier, preparation: Preparation, pixels: Tensor) -> Tensor:
    """Return the probabilities of squares (B, H, W, 3), uint8, as (B, V)."""
    return model(preparation.prepare(pixels)).exp()
