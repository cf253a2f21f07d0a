"""The named image data sets."""

from collections.abc import Iterable
from typing import Any

from harmax.data.images.cifar import CIFAR10, CIFAR100, Cifar, has_cifar, read_cifar
from harmax.data.images.digits import CLASSES as DIGITS
from harmax.data.images.digits import TRAINING, read_digits
from harmax.data.images.folders import has_archives, read_archives
from harmax.data.images.idx import KINDS, PREFIXES, has_idx, read_idx
from harmax.data.images.source import ImageSource, RemoteFile

CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
# Size and SHA-256 of each file: training images and labels, then test images and labels.
DIGIT_FILES = (
    (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
)
CLOTHES_FILES = (
    (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
    (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
    (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
    (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
)
TINY = {"train": "train20000.tar.xz", "test": "val10000.tar.xz"}
SAMPLE = {"train": "imagenet_sample64.tar.xz"}


def _idx_source(
    title: str, classes: tuple[str, ...], files: Iterable[tuple[int, str]], *, mirrors: tuple[str, ...], **own: Any
) -> ImageSource:
    """Describe a data set that is published as MNIST was."""
    names = (f"{prefix}-{kind}.gz" for prefix in PREFIXES.values() for kind in KINDS)
    return ImageSource(
        title=title,
        read=read_idx(classes),
        counts={"train": 60_000, "test": 10_000},
        is_there=has_idx,
        files=tuple(RemoteFile(name, *file) for name, file in zip(names, files, strict=True)),
        mirrors=mirrors,
        **own,
    )


def _cifar_source(title: str, layout: Cifar, size: int, sha256: str) -> ImageSource:
    return ImageSource(
        title=title,
        read=read_cifar(layout),
        counts={"train": 50_000, "test": 10_000},
        is_there=has_cifar(layout),
        files=(RemoteFile(layout.archive, size, sha256),),
        mirrors=("https://www.cs.toronto.edu/~kriz/",),
    )


IMAGES: dict[str, ImageSource] = {
    "digits": ImageSource(
        title="digits of 8 x 8, inside scikit-learn",
        read=read_digits,
        counts={"train": TRAINING, "test": 1797 - TRAINING},
        is_there=lambda folder: True,
        embedded=True,
    ),
    "mnist": _idx_source(
        "MNIST",
        DIGITS,
        DIGIT_FILES,
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
    ),
    "fashion_mnist": _idx_source(
        "Fashion-MNIST",
        CLOTHES,
        CLOTHES_FILES,
        mirrors=("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",),
        elsewhere=("/usr/share/datasets/fashion-mnist",),  # the folder of Debian's package
        note="Debian's package dataset-fashion-mnist has the same images.",
    ),
    "cifar10": _cifar_source(
        "CIFAR-10", CIFAR10, 170_052_171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
    ),
    "cifar100": _cifar_source(
        "CIFAR-100, fine labels",
        CIFAR100,
        168_513_733,
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    ),
    "tiny_imagenet32": ImageSource(
        title="Tiny ImageNet at 32 x 32: 100 training images per class, and the whole validation set",
        read=read_archives(TINY),
        counts={"train": 20_000, "test": 10_000},
        is_there=has_archives(TINY),
        note="it comes with harmax's data folder as train20000.tar.xz and val10000.tar.xz.",
    ),
    "imagenet_sample64": ImageSource(
        title="one ImageNet image per class, at 64 x 64",
        read=read_archives(SAMPLE),
        counts={"train": 1_000},
        is_there=has_archives(SAMPLE),
        note="it comes with harmax's data folder as imagenet_sample64.tar.xz.",
    ),
}
