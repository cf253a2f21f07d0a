"""An image classifier as a part of a page, and its test images as a point cloud."""

# N test images, V classes

from pathlib import Path

import numpy as np

from harmax.inspect.classifiers import ClassifierWithImages
from harmax.inspect.explorer.classifiers import shown_pictures
from harmax.inspect.explorer.document import unpack
from harmax.inspect.explorer.parts import Cloud, ExplorerOptions, ExplorerParts
from harmax.inspect.image_sides import FOLDER
from harmax.inspect.prototypes import head_features


def image_parts(folder: Path, options: ExplorerOptions) -> ExplorerParts:
    """Open the classifier of a folder and its images, and return what a page shows of them."""
    subject = options.open_classifier(folder)
    dataset = subject.classifier.dataset
    shown = shown_pictures(
        subject,
        name=f"{folder.resolve().name if dataset == FOLDER else dataset}, {len(subject.classes)} classes",
        source=str(folder),
        neighbors=options.neighbors,
        examples=options.examples,
    )
    clouds = (_cloud(subject, unpack(shown.winner), folder.name),) if options.clouds else ()
    return ExplorerParts(classifiers=(shown,), clouds=clouds)


def _cloud(subject: ClassifierWithImages, winner_N: np.ndarray, name: str) -> Cloud:
    """Return the features of test images, and the centers."""
    one, test = subject.classifier, subject.test
    batches = test.batches(one.prepare, lambda done, of: None)
    if one.model is None:
        features = np.concatenate([batch.flatten(1).cpu().numpy() for batch in batches])
    else:
        features = head_features(batches, one.head, model=one.model)
    centers = one.head.centers.detach().float().cpu().numpy()
    none = [""] * len(centers)
    return Cloud(
        f"{name} test features",
        np.concatenate([features, centers]),
        {
            "what": ["test image"] * len(features) + ["center"] * len(centers),
            "class": [subject.classes[label] for label in test.labels] + list(subject.classes),
            "predicted": [subject.classes[label] for label in winner_N] + none,
            "image": [str(number) for number in test.numbers] + none,
        },
    )
