"""What a run that trains an image classifier is told, and which of it decides the numbers."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from harmax.errors import unknown
from harmax.functional import check_softening, resolve_exponent
from harmax.train.spec import check_logit_scale

HEADS = ("harmonic", "linear")
STARTS = ("linear", "means")
SCHEDULES = ("steps", "cosine", "triangle")
POLICIES = ("none", "imagenet", "cifar10", "svhn")
FOLDER = "folder"
GENERATED = "generated"

# The sizes of transformers' ResNetConfig.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "resnet50": dict(embedding_size=64, hidden_sizes=[256, 512, 1024, 2048], depths=[3, 4, 6, 3]),
    "resnet18": dict(embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic"),
    "tiny": dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"),
}

# These say where, how fast and how often; a run may go on with others. The data are compared by their content.
FREE = (
    "data",
    "partial",
    "workers",
    "compile",
    "record",
    "channels_last",
    "engine",
    "log_every",
    "evaluate_every",
    "checkpoint_every",
    "keep",
)


@dataclass(frozen=True, kw_only=True)
class VisionSpec:
    """A ResNet, its head, its images and its schedule.

    A step sees `batch` images whatever the number of processes: each takes `micro_batch` at a time, and as many times
    as it needs. BatchNorm has the statistics of a micro-batch, so that number decides the result, and the number of
    processes does not; what is kept for evaluation, the running statistics, is that of the first process.
    """

    head: Literal["harmonic", "linear"] = "harmonic"
    """How the model predicts: by distances to centers, or by inner products with a bias (transformers' own ResNet)."""
    exponent: float | None = None
    """Of the harmonic head; sqrt(features) if left out."""
    softening: float = 0.0
    """Added to the squared distance."""
    logit_scale: float = 1.0
    """What the linear head's logits are multiplied by: a control, since an exponent is a scale of logits too."""
    center_std: float | None = None
    """The centers start as N(0, this^2); if left out as `center_start` says."""
    center_start: Literal["linear", "means"] = "linear"
    """The centers start as the linear head's weights do, or on the means of their classes' first features."""
    model: Literal["resnet50", "resnet18", "tiny"] = "resnet50"
    """The backbone."""
    small_stem: bool = False
    """Whether images begin with a 3 x 3 convolution at full size, as suits 32 x 32, not with 7 x 7 and pooling."""
    zero_residual: bool = False
    """Whether every block starts as its shortcut: the scale of its last BatchNorm is 0, not 1."""

    dataset: str = FOLDER
    """A set that harmax.data.images knows by name (cifar10, digits), `folder` for class folders, or `generated`."""
    data: Path | None = None
    """The folder that has train/ and val/ with a sub-folder a class; else the data folder, HARMAX_DATA if left out."""
    partial: bool = False
    """Whether a part of a set with a name will do."""
    image_size: int = 224
    """Pixels of a side that class folders are cropped to; sets with a name have their own."""
    flip: bool = True
    """Whether half of the training images are mirrored."""
    padding: int = 4
    """Pixels of reflected border that sets with a name are given, for a crop at random; 0: no crop."""
    cutout: int = 0
    """Pixels of a side of the square that is blanked at random in every training image; 0: none."""
    auto_augment: Literal["none", "imagenet", "cifar10", "svhn"] = "none"
    """A policy of AutoAugment, drawn for each image."""

    epochs: int = 90
    """Times that every image is seen; what is left over by whole batches is another part every time."""
    batch: int = 256
    """Images of a step, over all processes."""
    micro_batch: int = 256
    """Images that a process computes at once, and that BatchNorm takes its statistics from."""
    lr: float = 0.1
    """The largest learning rate."""
    schedule: Literal["steps", "cosine", "triangle"] = "steps"
    """After the warm-up: times 0.1 at each of `milestones`, half a cosine to 0, or a straight line to 0."""
    milestones: tuple[int, ...] = (10, 30, 60, 80)
    """Epochs after which the learning rate falls."""
    warmup: float = 0.0
    """Epochs of linear warm-up."""
    momentum: float = 0.9
    """Of SGD."""
    nesterov: bool = False
    """Whether momentum is Nesterov's."""
    weight_decay: float = 1e-4
    """On all parameters but those that the next two fields take out."""
    decay_norms: bool = True
    """Whether it also acts on biases and on what BatchNorm learns."""
    decay_centers: bool = True
    """Whether it also acts on the head's matrix."""
    label_smoothing: float = 0.0
    """Share of the target spread evenly over all classes."""

    dtype: Literal["bf16", "float32"] = "bf16"
    """What convolutions are computed in; weights and optimizer state are float32."""
    compile: bool = True
    """Whether to compile the model."""
    record: bool = True
    """Whether one process on a GPU records its compiled step as a CUDA graph, which spares the host's launches."""
    channels_last: bool = True
    """Whether images lie in memory pixel by pixel, which GPUs with tensor cores prefer."""
    workers: int = 8
    """Processes that decode pictures of class folders, for each that trains; 0: none."""
    seed: int = 0
    """Of the initial weights, the order of the images and their augmentation."""
    engine: Literal["single", "ddp"] = "single"
    """One process, or under torchrun every process with the whole model."""

    log_every: int = 50
    """Steps between lines of metrics.jsonl."""
    evaluate_every: int = 1
    """Epochs between evaluations; 0: only at the end."""
    checkpoint_every: int = 1000
    """Steps between checkpoints."""
    keep: int = 2
    """Checkpoints to keep."""

    def __post_init__(self) -> None:
        for name, known in (
            ("head", HEADS),
            ("model", ARCHITECTURES),
            ("schedule", SCHEDULES),
            ("center_start", STARTS),
        ):
            if getattr(self, name) not in known:
                raise ValueError(unknown(name, getattr(self, name), known))
        if self.auto_augment not in POLICIES:
            raise ValueError(unknown("policy", self.auto_augment, POLICIES))
        least = {"image_size": 8, "padding": 0, "epochs": 1, "batch": 1, "micro_batch": 1, "workers": 0, "seed": 0}
        least |= {"cutout": 0, "log_every": 1, "evaluate_every": 0, "checkpoint_every": 1, "keep": 1}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise ValueError(f"`{name}` must be at least {smallest}, got {getattr(self, name)}; give a larger one.")
        for name in ("weight_decay", "momentum", "warmup"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"`{name}` must not be negative, got {getattr(self, name)}; 0 turns it off.")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"`lr` must be a positive, finite number, got {self.lr}; 0.1 is usual for 256 images.")
        if self.warmup >= self.epochs:
            raise ValueError(f"`warmup` must be shorter than `epochs` ({self.epochs}), got {self.warmup}; shorten it.")
        if self.nesterov and not self.momentum:
            raise ValueError("`nesterov` must go with `momentum` above 0, got 0; leave it out.")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"`label_smoothing` must lie in 0..1, got {self.label_smoothing}; 0 turns it off.")
        if self.center_std is not None and not 0 < self.center_std < math.inf:
            raise ValueError(f"`center_std` must be a positive number, got {self.center_std}; leave it out.")
        check_logit_scale(self.head, self.logit_scale)
        own = (self.exponent, self.softening, self.center_std, self.center_start)
        if self.head == "linear" and own != (None, 0, None, "linear"):
            raise ValueError(
                "`exponent`, `softening`, `center_std` and `center_start` must go with the harmonic head, got the "
                "linear one; leave them out."
            )
        if self.center_std is not None and self.center_start != "linear":
            raise ValueError(f"`center_std` must be left out with `center_start` {self.center_start}, got both.")
        resolve_exponent(self.exponent, self.features)
        check_softening(self.softening)

    @property
    def features(self) -> int:
        """What enters the head: D."""
        return int(ARCHITECTURES[self.model]["hidden_sizes"][-1])

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the numbers of step after step, as plain values."""
        fields = {name: value for name, value in asdict(self).items() if name not in FREE}
        return {**fields, "milestones": list(self.milestones)}

    def turns(self, world: int) -> int:
        """How many times each of `world` processes computes before a step is taken."""
        if self.batch % (self.micro_batch * world):
            raise ValueError(
                f"`batch` ({self.batch}) must be a multiple of `micro_batch` x processes, got {self.micro_batch} x "
                f"{world}; take another `micro_batch`."
            )
        return self.batch // (self.micro_batch * world)
