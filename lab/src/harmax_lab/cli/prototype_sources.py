"""Where `harmax prototypes` finds a classifier with centers, and the images that it was trained and tested on."""

# N images, B of a batch, K chosen ones, H rows, W columns

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from harmax.data.images import IMAGES, Images, load_images
from harmax.environment import choose_device
from harmax.errors import DamagedError, unknown
from harmax.files import read_json
from harmax.heads import HarmonicHead
from harmax_lab.kit.store import Run
from harmax_lab.vision import mnist
from harmax_lab.vision.one_layer import HARMONIC, PROTOCOLS, OneLayerCell, exponent_of

CONFIG = "config.json"
GENERATED, FOLDER = "generated", "folder"
BATCH = 512


@dataclass(frozen=True)
class Side:
    """Training or test images, or some of them."""

    read: Callable[[np.ndarray], np.ndarray]
    """Returns images by their numbers, (K, H, W) or (K, H, W, 3), uint8."""
    labels: np.ndarray
    """(N,), of the images below."""
    numbers: np.ndarray
    """(N,), which images of the data set these are."""
    classes: tuple[str, ...]
    """Names that the labels stand for."""

    def batches(self, prepare: Callable[[Tensor], Tensor], tell: Callable[[int, int], None]) -> Iterator[Tensor]:
        """Yield all images as a model takes them, and tell how many of how many were."""
        for start in range(0, len(self.numbers), BATCH):
            tell(start, len(self.numbers))
            yield prepare(torch.from_numpy(self.read(self.numbers[start : start + BATCH])))

    def pictures(self, places: np.ndarray) -> np.ndarray:
        """Return images by their places here, any shape (...), as pictures (..., H, W) or (..., 3, H, W) in 0..1."""
        pixels = self.read(self.numbers[places.reshape(-1)]).astype(np.float32) / 255
        if pixels.ndim == 4:
            pixels = pixels.transpose(0, 3, 1, 2)
        return pixels.reshape(*places.shape, *pixels.shape[1:])


@dataclass(frozen=True)
class Subject:
    """A classifier, and what its images are."""

    dataset: str
    head: HarmonicHead
    model: nn.Module | None
    """What computes the features; None: the head sees the pixels."""
    prepare: Callable[[Tensor], Tensor]
    """From uint8 images to what the model, or the head, takes."""
    classes: tuple[str, ...]
    train: Side
    test: Side


@dataclass(frozen=True)
class Wishes:
    """What the command line says about the classifier and its images."""

    dataset: str | None = None
    data: Path | None = None
    partial: bool = False
    protocol: str | None = None
    limit: int | None = None
    device: str | None = None


def open_subject(folder: Path, wishes: Wishes) -> Subject:
    """Open a folder of `harmax vision` (the run, or its model/), or a run folder of `harmax run mnist`."""
    if (folder / CONFIG).is_file():
        config = read_json(folder / CONFIG)
        if isinstance(config, dict) and "experiment" in config:
            return _from_run(folder, wishes)
        return _from_model(folder, folder.parent, wishes)
    if (folder / "model" / CONFIG).is_file():
        return _from_model(folder / "model", folder, wishes)
    raise ValueError(
        f"FOLDER must be what `harmax vision --output` named, or a run folder of `harmax run mnist`, got "
        f"{str(folder)!r} without a {CONFIG}; let the training come to its end, or name another."
    )


def _from_run(folder: Path, wishes: Wishes) -> Subject:
    try:
        run = Run.open(folder)
    except DamagedError as error:
        raise DamagedError(f"{folder} must be a whole run folder, but {error}.") from None
    if run.experiment != mnist.EXPERIMENT.name:
        raise ValueError(
            f"FOLDER must be a run of `{mnist.EXPERIMENT.name}`, got one of `{run.experiment}`; name another."
        )
    spec = mnist.EXPERIMENT.load_spec(run.config["spec"])
    cells = [OneLayerCell(one, rule, HARMONIC, spec.seeds[0]) for one in spec.datasets for rule in spec.protocols]
    finished = [cell for cell in cells if cell.name in set(run.done)]
    if not finished:
        raise ValueError(f"{folder} must have a finished harmonic cell of seed {spec.seeds[0]}, got none; finish it.")
    dataset = _chosen("--dataset", wishes.dataset, [cell.dataset for cell in finished])
    # The authors' exponent is the one that reaches the paper's accuracy.
    own = sorted((cell for cell in finished if cell.dataset == dataset), key=lambda cell: cell.protocol != "authors")
    protocol = _chosen("--protocol", wishes.protocol, [cell.protocol for cell in own])
    cell = next(cell for cell in own if cell.protocol == protocol)
    weight = torch.from_numpy(run.read(cell.name).arrays["weight"]).flatten(1)
    exponent, softening = exponent_of(protocol, weight.shape[1]), PROTOCOLS[protocol].softening
    head = HarmonicHead(weight.shape[1], len(weight), exponent=exponent, softening=softening)
    head.weight.data.copy_(weight)
    device = choose_device(wishes.device)
    train, test = _read_sides(dataset, wishes)
    return Subject(dataset, head.to(device), None, lambda pixels: pixels.float() / 255, train.classes, train, test)


def _from_model(folder: Path, run: Path, wishes: Wishes) -> Subject:
    from harmax.train.checkpoint_folder import find_checkpoints
    from harmax.train.vision.data import check_classes
    from harmax.train.vision.model import load_classifier

    if wishes.protocol is not None:
        raise ValueError("`--protocol` must go with a run of `mnist`, got a ResNet's folder; leave it out.")
    if not (folder / "preparation.json").is_file():
        raise ValueError(
            f"FOLDER must be of `harmax vision`, got {str(folder)!r} without preparation.json; name its own."
        )
    checkpoints = find_checkpoints(run / "checkpoints")
    dataset = wishes.dataset or (checkpoints[-1].read_state()["spec"]["dataset"] if checkpoints else None)
    if dataset is None:
        raise ValueError(f"`--dataset` must name the images of {str(folder)!r}, got none and there is no checkpoint.")
    model, preparation = load_classifier(folder)
    head = model.classifier[1]
    if not isinstance(head, HarmonicHead):
        raise ValueError(
            f"FOLDER must hold a classifier with a harmonic head, got {str(folder)!r} with a {type(head).__name__}, "
            "which has no prototypes; train one with `harmax vision --head harmonic`."
        )
    train, test = _read_sides(dataset, wishes, size=preparation.size)
    check_classes(train.classes, test.classes, dataset, wishes.data)
    labels = {int(number): str(name) for number, name in (model.config.id2label or {}).items()}
    names = tuple(labels[number] for number in sorted(labels))  # a file has them in the order of letters: 0, 1, 10
    if names != train.classes:
        raise ValueError(
            f"`--dataset` must have the classes of the classifier ({', '.join(names[:3])}, ...: {len(names)}), got "
            f"{dataset} with {', '.join(train.classes[:3])}, ...: {len(train.classes)}; name the set that it was "
            "trained on."
        )
    device = choose_device(wishes.device)
    nn.Module.to(model, device)
    return Subject(dataset, head, model, lambda x: preparation.prepare(x.to(device)), names, train, test)


def _chosen(flag: str, wanted: str | None, there: list[str]) -> str:
    if wanted is not None and wanted not in there:
        raise ValueError(unknown(flag, wanted, list(dict.fromkeys(there))))
    return wanted or there[0]


def _read_sides(dataset: str, wishes: Wishes, *, size: int = 0) -> tuple[Side, Side]:
    if wishes.limit is not None and wishes.limit < 1:
        raise ValueError(f"`--limit` must be at least 1, got {wishes.limit}; leave it out for all images.")
    if dataset == FOLDER:
        return _open_folder(wishes, size)
    if dataset == GENERATED:
        from harmax.train.vision.data import generate_images

        train, test = generate_images(512), generate_images(256, start=512)
    else:
        if dataset not in IMAGES:
            raise ValueError(unknown("--dataset", dataset, [*IMAGES, FOLDER, GENERATED]))
        train, test = (
            load_images(dataset, split, wishes.data, complete=not wishes.partial) for split in ("train", "test")
        )
    return _resident(train, wishes.limit), _resident(test, wishes.limit)


def _resident(images: Images, limit: int | None) -> Side:
    numbers = _evenly(len(images.labels), limit)
    return Side(lambda chosen: images.pixels[chosen], images.labels[numbers], numbers, images.classes)


def _open_folder(wishes: Wishes, size: int) -> tuple[Side, Side]:
    from harmax.data.images import class_folder
    from harmax.train.vision.data import find_side
    from harmax.train.vision.pictures import Pictures

    if wishes.data is None:
        raise ValueError("`--data` must name the folder that has train/ and val/, got none; it is not kept in a run.")
    sides = []
    for name in ("train", "test"):
        pictures = Pictures(class_folder(find_side(wishes.data, name)), size=size)

        def read(chosen: np.ndarray, pictures: Pictures = pictures) -> np.ndarray:
            squares = []
            for number in chosen:
                sample = pictures[int(number), 0]
                if isinstance(sample, str):
                    raise DamagedError(sample)
                squares.append(sample[0])
            return np.stack(squares)

        numbers = _evenly(len(pictures), wishes.limit)
        sides.append(Side(read, pictures.folder.labels[numbers], numbers, pictures.classes))
    return sides[0], sides[1]


def _evenly(count: int, limit: int | None) -> np.ndarray:
    """Return the numbers of all images, or of as many as the limit allows, spread over the set."""
    return np.unique(np.linspace(0, count - 1, min(count, limit or count)).round().astype(np.int64))
