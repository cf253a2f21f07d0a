"""The settings of a run that trains an image classifier, and which of them decide its numbers."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from harmax.errors import unknown
from harmax.train import checks

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

# Fields that may differ when a run is resumed: where, how fast and how often. The data are compared by checksums.
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

# What checkpoints mean that were written before the field existed.
MEANT_BEFORE = {"scale": 1.0, "center_lr": 1.0, "center_decay": None}

# Fields that --change-schedule may alter when resuming.
ALTERABLE = ("lr", "schedule", "milestones", "warmup", "weight_decay", "center_lr", "center_decay")


@dataclass(frozen=True, kw_only=True)
class VisionSpec:
    """A ResNet, its head, its images and its schedule.

    A step sees `batch` images, whatever the number of processes. Each process computes `micro_batch` images at a time,
    as often as needed. BatchNorm uses the statistics of a micro-batch, so `micro_batch` changes the result and the
    number of processes does not. Evaluation uses the running statistics of the first process.
    """

    head: Literal["harmonic", "linear"] = "harmonic"
    """Output layer. harmonic: distances to class centers. linear: inner products and a bias (transformers' ResNet)."""
    exponent: float | None = None
    """Exponent of the harmonic head. Default: the square root of the number of features."""
    softening: float = 0.0
    """Number added to the squared distance in the harmonic head."""
    scale: float | None = None
    """Factor on the features of the harmonic head. Default: the one that matches their length to that of the centers
    before the first step, see HarmonicHead.find_scale. 1: features as they are."""
    logit_scale: float = 1.0
    """Factor on the logits of the linear head: a control, since an exponent scales logits too."""
    center_std: float | None = None
    """Standard deviation of the initial centers. Default: they start as `center_start` says."""
    center_start: Literal["linear", "means"] = "linear"
    """How centers start. linear: as weights of a linear head. means: at the mean of their class's first features."""
    model: Literal["resnet50", "resnet18", "tiny"] = "resnet50"
    """Backbone."""
    small_stem: bool = False
    """Begin with a 3 x 3 convolution at full size, which suits images of 32 x 32, instead of 7 x 7 and pooling."""
    zero_residual: bool = False
    """Start every block as its shortcut: the scale of its last BatchNorm is 0 instead of 1."""

    dataset: str = FOLDER
    """Data set by name (cifar10, digits, ...), `folder` for pictures in class folders, or `generated`."""
    data: Path | None = None
    """For `folder`: the folder that has train/ and val/ with one sub-folder per class. For other data sets: the folder
    that holds them. Default: HARMAX_DATA."""
    partial: bool = False
    """Accept an incomplete copy of a data set."""
    image_size: int = 224
    """Side length to which pictures in class folders are cropped, in pixels. Other data sets have their own."""
    flip: bool = True
    """Mirror half of the training images."""
    padding: int = 4
    """Width of the reflected border from which random crops are taken, in pixels. Not for `folder`. 0: no crops."""
    cutout: int = 0
    """Side length of the square that is blanked in every training image, in pixels. 0: none."""
    auto_augment: Literal["none", "imagenet", "cifar10", "svhn"] = "none"
    """AutoAugment policy, drawn anew for each image."""

    epochs: int = 90
    """Number of passes over the training images. Images that do not fill a batch differ from pass to pass."""
    batch: int = 256
    """Images per step, over all processes."""
    micro_batch: int = 256
    """Images that one process computes at a time, and from which BatchNorm takes its statistics."""
    lr: float = 0.1
    """Peak learning rate."""
    schedule: Literal["steps", "cosine", "triangle"] = "steps"
    """After the warm-up. steps: x 0.1 at each of `milestones`. cosine: half a cosine to 0. triangle: a line to 0."""
    milestones: tuple[int, ...] = (10, 30, 60, 80)
    """Epochs after which the learning rate is multiplied by 0.1. Only for schedule `steps`."""
    warmup: float = 0.0
    """Length of the linear warm-up, in epochs."""
    momentum: float = 0.9
    """Momentum of SGD. 0: none."""
    nesterov: bool = False
    """Use Nesterov momentum."""
    weight_decay: float = 1e-4
    """Weight decay, on all parameters that the next two fields do not exclude."""
    decay_norms: bool = True
    """Let weight decay also act on biases and BatchNorm parameters."""
    decay_centers: bool = True
    """Let weight decay also act on the head's matrix."""
    center_lr: float = 1.0
    """Factor on the learning rate of the head: of its matrix and of its bias, if it has one."""
    center_decay: float | None = None
    """Weight decay of the head's matrix. Default: `weight_decay`."""
    label_smoothing: float = 0.0
    """Share of the target that is spread evenly over all classes."""

    dtype: Literal["bf16", "float32"] = "bf16"
    """Number format of convolutions. Weights and optimizer state are always float32."""
    compile: bool = True
    """Compile the model with torch.compile."""
    record: bool = True
    """Record the compiled step as a CUDA graph, which saves launch time. Only for one process on a GPU."""
    channels_last: bool = True
    """Store images with channels last, which GPUs with tensor cores prefer."""
    workers: int = 8
    """Processes that decode pictures of class folders, per training process. 0: decode in the training process."""
    seed: int = 0
    """Seed of the initial weights, the order of the images and their augmentation."""
    engine: Literal["single", "ddp"] = "single"
    """single: one process. ddp, under torchrun: every process holds the whole model."""

    log_every: int = 50
    """Steps between lines of metrics.jsonl."""
    evaluate_every: int = 1
    """Epochs between evaluations. 0: only at the end."""
    checkpoint_every: int = 1000
    """Steps between checkpoints."""
    keep: int = 2
    """Number of checkpoints to keep."""

    def __post_init__(self) -> None:
        choices: dict[str, Any] = {"head": HEADS, "model": ARCHITECTURES, "schedule": SCHEDULES}
        choices |= {"center_start": STARTS, "auto_augment": POLICIES}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(unknown(name, getattr(self, name), known))
        least = {"image_size": 8, "padding": 0, "epochs": 1, "batch": 1, "micro_batch": 1, "workers": 0, "seed": 0}
        checks.check_least(
            self, {**least, "cutout": 0, "log_every": 1, "evaluate_every": 0, "checkpoint_every": 1, "keep": 1}
        )
        checks.check_not_negative(self, "weight_decay", "momentum", "warmup")
        checks.check_positive(self, "center_lr")
        if self.center_decay is not None:
            checks.check_not_negative(self, "center_decay")
            if not self.decay_centers:
                raise ValueError(
                    f"`center_decay` must be left out where `decay_centers` is off, got {self.center_decay}; give one "
                    "of them."
                )
        if not 0 < self.lr < math.inf:
            raise ValueError(f"`lr` must be a positive, finite number, got {self.lr}; 0.1 is usual for 256 images.")
        if self.warmup >= self.epochs:
            raise ValueError(f"`warmup` must be shorter than `epochs` ({self.epochs}), got {self.warmup}; shorten it.")
        if self.nesterov and not self.momentum:
            raise ValueError("`nesterov` must go with `momentum` above 0, got 0; leave it out.")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"`label_smoothing` must lie in 0..1, got {self.label_smoothing}; 0 turns it off.")
        self._check_head()

    def _check_head(self) -> None:
        if self.center_std is not None and not 0 < self.center_std < math.inf:
            raise ValueError(f"`center_std` must be a positive number, got {self.center_std}; leave it out.")
        own = (self.exponent, self.softening, self.scale, self.center_std, self.center_start)
        if self.head == "linear" and own != (None, 0, None, None, "linear"):
            raise ValueError(
                "`exponent`, `softening`, `scale`, `center_std` and `center_start` must go with the harmonic head, got "
                "the linear one; leave them out."
            )
        if self.center_std is not None and self.center_start != "linear":
            raise ValueError(
                f"`center_std` must be left out with `center_start` {self.center_start}, got both; give one of them."
            )
        checks.check_head(self, self.features)

    @property
    def features(self) -> int:
        """Number of features that enter the head: D."""
        return int(ARCHITECTURES[self.model]["hidden_sizes"][-1])

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the numbers of step after step, as plain values."""
        fields = {name: value for name, value in asdict(self).items() if name not in FREE}
        return {**fields, "milestones": list(self.milestones), "scale": checks.known_scale(self.head, self.scale)}

    def micro_batches(self, world: int) -> int:
        """Return how many micro-batches each of `world` processes computes per step."""
        return checks.count_micro_batches("batch", self.batch, self.micro_batch, world)
