"""The named image data sets."""

from harmax.data.images.cifar import CIFAR10, CIFAR100, has_cifar, read_cifar
from harmax.data.images.digits import CLASSES as DIGITS
from harmax.data.images.digits import TRAINING, read_digits
from harmax.data.images.folders import has_archives, read_archives
from harmax.data.images.idx import has_idx, read_idx
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
TINY = {"train": "train20000.tar.xz", "test": "val10000.tar.xz"}
SAMPLE = {"train": "imagenet_sample64.tar.xz"}

IMAGES: dict[str, ImageSource] = {
    "digits": ImageSource(
        title="digits of 8 x 8, inside scikit-learn",
        read=read_digits,
        counts={"train": TRAINING, "test": 1797 - TRAINING},
        is_there=lambda folder: True,
        embedded=True,
    ),
    "mnist": ImageSource(
        title="MNIST",
        read=read_idx(DIGITS),
        counts={"train": 60_000, "test": 10_000},
        is_there=has_idx,
        files=(
            RemoteFile(
                "train-images-idx3-ubyte.gz",
                9_912_422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            RemoteFile(
                "train-labels-idx1-ubyte.gz",
                28_881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            RemoteFile(
                "t10k-images-idx3-ubyte.gz",
                1_648_877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            RemoteFile(
                "t10k-labels-idx1-ubyte.gz",
                4_542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
    ),
    "fashion_mnist": ImageSource(
        title="Fashion-MNIST",
        read=read_idx(CLOTHES),
        counts={"train": 60_000, "test": 10_000},
        is_there=has_idx,
        files=(
            RemoteFile(
                "train-images-idx3-ubyte.gz",
                26_421_880,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            ),
            RemoteFile(
                "train-labels-idx1-ubyte.gz",
                29_515,
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            ),
            RemoteFile(
                "t10k-images-idx3-ubyte.gz",
                4_422_102,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            ),
            RemoteFile(
                "t10k-labels-idx1-ubyte.gz",
                5_148,
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        ),
        mirrors=(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
        elsewhere=("/usr/share/datasets/fashion-mnist",),  # the folder of Debian's package
        note="Debian's package dataset-fashion-mnist has the same images.",
    ),
    "cifar10": ImageSource(
        title="CIFAR-10",
        read=read_cifar(CIFAR10),
        counts={"train": 50_000, "test": 10_000},
        is_there=has_cifar(CIFAR10),
        files=(
            RemoteFile(
                CIFAR10.archive, 170_052_171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
            ),
        ),
        mirrors=("https://www.cs.toronto.edu/~kriz/",),
    ),
    "cifar100": ImageSource(
        title="CIFAR-100, fine labels",
        read=read_cifar(CIFAR100),
        counts={"train": 50_000, "test": 10_000},
        is_there=has_cifar(CIFAR100),
        files=(
            RemoteFile(
                CIFAR100.archive, 168_513_733, "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"
            ),
        ),
        mirrors=("https://www.cs.toronto.edu/~kriz/",),
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
