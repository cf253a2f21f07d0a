"""A ResNet with a harmonic or a linear head, its loss, and how it is written and loaded.

After ``import harmax.train.vision.model`` transformers' Auto classes load the model that a run wrote. A linear head on
the usual stem is transformers' own ResNet and does not need harmax.
"""

# B images, C channels, H rows, W columns, D features, V classes

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harmax.errors import needs, unknown
from harmax.files import write_json
from harmax.functional import check_softening, harmonic_logits, harmonic_loss, resolve_exponent
from harmax.heads import HarmonicHead
from harmax.heads.scale import check_scale
from harmax.kernels.eager import log_probabilities, logits, softened_distance
from harmax.train.quiet import no_progress_bars
from harmax.train.vision.preparation import PREPARATION, Preparation, read_preparation
from harmax.train.vision.settings import ARCHITECTURES, HEADS, VisionSpec

with needs("hf"):
    from transformers import (
        AutoConfig,
        AutoModelForImageClassification,
        ResNetConfig,
        ResNetForImageClassification,
    )
    from transformers.models.resnet.modeling_resnet import ResNetBasicLayer, ResNetBottleNeckLayer, ResNetConvLayer

IGNORED = -100


class HarmaxResNetConfig(ResNetConfig):
    """ResNet's configuration with the head and the stem.

    >>> HarmaxResNetConfig(exponent=30.0).exponent
    30.0
    """

    model_type = "harmax_resnet"

    head: str = "harmonic"
    exponent: float | int | None = None
    softening: float | int = 0.0
    scale: float | int | None = None
    small_stem: bool = False

    def __post_init__(self, **settings: Any) -> None:
        if self.head not in HEADS:
            raise ValueError(unknown("head", self.head, HEADS))
        check_softening(self.softening)
        check_scale(self.scale)
        super().__post_init__(**settings)
        resolve_exponent(self.exponent, self.features)

    @property
    def features(self) -> int:
        """Number of features that enter the head: D."""
        assert self.hidden_sizes is not None
        return self.hidden_sizes[-1]


class HarmaxResNetForImageClassification(ResNetForImageClassification):
    """Transformers' ResNet with a choice of head and stem; outputs and names of weights are the same."""

    config: HarmaxResNetConfig
    config_class = HarmaxResNetConfig
    _keys_to_ignore_on_load_missing: Any = (r"\.settings$",)  # models that were saved before heads had settings

    def __init__(self, config: HarmaxResNetConfig) -> None:
        super().__init__(config)
        if config.small_stem:
            stem: Any = self.resnet.embedder
            stem.embedder = ResNetConvLayer(
                config.num_channels, config.embedding_size, kernel_size=3, stride=1, activation=config.hidden_act
            )
            stem.embedder.apply(self._init_weights)
            stem.pooler = nn.Identity()
        if config.head == "harmonic":
            linear: Any = self.classifier[1]
            settings: Any = {"exponent": config.exponent, "softening": config.softening, "scale": config.scale}
            self.classifier[1] = HarmonicHead(config.features, linear.out_features, **settings)


AutoConfig.register(HarmaxResNetConfig.model_type, HarmaxResNetConfig, exist_ok=True)
AutoModelForImageClassification.register(HarmaxResNetConfig, HarmaxResNetForImageClassification, exist_ok=True)


def build_model(spec: VisionSpec, classes: Sequence[str]) -> ResNetForImageClassification:
    """Build the model with the weights of its seed; both heads start from the same backbone and matrix."""
    names = {index: str(name) for index, name in enumerate(classes)}
    labels = dict(id2label=names, label2id={name: index for index, name in names.items()})
    sizes: dict[str, Any] = {**ARCHITECTURES[spec.model], **labels}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        if spec.head == "linear" and not spec.small_stem:
            return _started(ResNetForImageClassification(ResNetConfig(**sizes)), spec)
        stem: dict[str, Any] = dict(small_stem=spec.small_stem)
        linear = HarmaxResNetForImageClassification(HarmaxResNetConfig(head="linear", **stem, **sizes))
        if spec.head == "linear":
            return _started(linear, spec)
        settings: dict[str, Any] = dict(exponent=spec.exponent, softening=spec.softening, scale=spec.scale)
        model = HarmaxResNetForImageClassification(HarmaxResNetConfig(**settings, **stem, **sizes))
        model.resnet.load_state_dict(linear.resnet.state_dict())
        head: Any = model.classifier[1]
        head.weight.data.copy_(linear.classifier[1].weight)
        if spec.center_std is not None:
            head.reset_parameters(std=spec.center_std)
    return _started(model, spec)


def _started(model: ResNetForImageClassification, spec: VisionSpec) -> ResNetForImageClassification:
    """Set how blocks start; transformers leaves BatchNorm at ones."""
    for block in model.modules():
        if isinstance(block, (ResNetBasicLayer, ResNetBottleNeckLayer)):
            last = block.layer[-1].get_parameter("normalization.weight")
            nn.init.constant_(last, 0.0 if spec.zero_residual else 1.0)
    return model.train()


def features(model: ResNetForImageClassification, images: Tensor) -> Tensor:
    """Return the input of the head, (B, D), for prepared images (B, C, H, W)."""
    pooled: Tensor = model.resnet(images).pooler_output
    return pooled.flatten(1)


class HeadLoss(nn.Module):
    """A head with its loss: from features (B, D) and targets (B,) to sums over the images.

    In training: the summed loss with label smoothing, and the number of right answers. In evaluation: the summed
    negative log likelihood, and the numbers of right answers (top 1, top 5). Targets of -100 are ignored.

    Args:
        head: the model's head.
        label_smoothing: share of the target that is spread evenly over all classes.
        logit_scale: factor on the logits of a linear head.
        impl: how the harmonic loss is computed, as in `harmonic_loss`.
    """

    sharpness: Tensor
    """The exponent of a harmonic head or the scale of a linear one. A tensor: one compiled graph serves all values."""
    scale: Tensor
    """The factor on the features of a harmonic head, a tensor likewise; see `follow_scale`."""
    softening: Tensor
    """The softening of a harmonic head, likewise."""
    smoothing: Tensor
    """The label smoothing, likewise."""

    def __init__(
        self, head: nn.Module, *, label_smoothing: float = 0.0, logit_scale: float = 1.0, impl: str = "auto"
    ) -> None:
        super().__init__()
        self.head, self.label_smoothing, self.impl = head, label_smoothing, impl
        sharpness = float(head.exponent) if isinstance(head, HarmonicHead) else logit_scale
        self.register_buffer("sharpness", torch.tensor(sharpness), persistent=False)
        self.register_buffer("scale", torch.ones(()), persistent=False)
        softening = head.softening if isinstance(head, HarmonicHead) else 0.0
        self.register_buffer("softening", torch.tensor(float(softening)), persistent=False)
        self.register_buffer("smoothing", torch.tensor(float(label_smoothing)), persistent=False)
        # The graphs without either are the usual ones. `eager` is the implementation that is compiled.
        self._softens, self._smooths = (number != 0 and impl == "eager" for number in (softening, label_smoothing))
        self.follow_scale()

    def follow_scale(self) -> None:
        """Take over the scale that the head has found or loaded."""
        if isinstance(self.head, HarmonicHead):
            self.scale.fill_(self.head.scale or 1.0)

    def forward(self, x_BD: Tensor, targets_B: Tensor) -> tuple[Tensor, Tensor]:
        """Sum loss, float32, and hits, (1,) or (2,)."""
        if not self.training:
            z_BV = self.logits(x_BD)
            loss = F.cross_entropy(z_BV, targets_B, reduction="sum", ignore_index=IGNORED)
            right = z_BV.topk(min(5, z_BV.shape[1]), dim=1).indices == targets_B[:, None]
            return loss, torch.stack([right[:, 0].sum(), right.sum()])
        if isinstance(self.head, HarmonicHead) and not (self._softens or self._smooths):
            loss, _, hit_B = harmonic_loss(
                x_BD * self.scale,
                self.head.weight,
                targets_B,
                exponent=self._exponent(self.head),
                softening=self.head.softening,
                reduction="sum",
                label_smoothing=self.label_smoothing,
                impl=self.impl,
                return_stats=True,
            )
        elif isinstance(self.head, HarmonicHead):
            log_p_BV, top_B = log_probabilities(self._softened(self.head, x_BD), self.sharpness)
            loss, hit_B = _smoothed_loss(log_p_BV, targets_B, self.smoothing), top_B == targets_B
        else:
            z_BV = self.logits(x_BD)
            if self._smooths:
                loss = _smoothed_loss(z_BV.log_softmax(1), targets_B, self.smoothing)
            else:
                loss = F.cross_entropy(z_BV, targets_B, reduction="sum", label_smoothing=self.label_smoothing)
            hit_B = z_BV.detach().argmax(1) == targets_B
        return loss, hit_B.sum()[None]

    def logits(self, x_BD: Tensor) -> Tensor:
        """Return the logits of features, (B, V), float32."""
        head = self.head
        if isinstance(head, HarmonicHead):
            if self._softens:
                return logits(self._softened(head, x_BD), self.sharpness)
            settings: Any = {"exponent": self._exponent(head), "softening": head.softening}
            return harmonic_logits(x_BD * self.scale, head.weight, **settings)
        z_BV: Tensor = head(x_BD)
        return self.sharpness * z_BV.float()

    def _softened(self, head: HarmonicHead, x_BD: Tensor) -> Tensor:
        """Squared distances plus the softening, which is a tensor where a number would be part of a compiled graph."""
        return softened_distance((x_BD * self.scale).float(), head.weight.float(), self.softening)

    def _exponent(self, head: HarmonicHead) -> float | Tensor:
        # A number would be part of a compiled graph; with a tensor one graph serves every exponent.
        return self.sharpness if self.impl == "eager" else head.exponent


def _smoothed_loss(log_p_BV: Tensor, targets_B: Tensor, smoothing: Tensor) -> Tensor:
    """Sum the cross-entropy with label smoothing, whose share is a tensor here."""
    kept_B1 = (targets_B != IGNORED)[:, None]
    even = -log_p_BV.masked_fill(~kept_B1, 0.0).sum() / log_p_BV.shape[1]
    return (1 - smoothing) * F.nll_loss(log_p_BV, targets_B, reduction="sum", ignore_index=IGNORED) + smoothing * even


class ClassificationLoss(nn.Module):
    """A model with its loss: from images (B, C, H, W) and targets (B,) to the sums of `HeadLoss`.

    Args:
        model: from `build_model`.
        settings: arguments of `HeadLoss`.
    """

    def __init__(self, model: ResNetForImageClassification, **settings: Any) -> None:
        super().__init__()
        self.model = model
        self.head_loss = HeadLoss(model.classifier[1], **settings)

    def forward(self, images: Tensor, targets_B: Tensor) -> tuple[Tensor, Tensor]:
        """Sum loss, float32, and hits, (1,) or (2,)."""
        found: tuple[Tensor, Tensor] = self.head_loss(features(self.model, images), targets_B)
        return found

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile backbone and head apart: the backbone's graph then serves every head, seed and set of classes."""
        self.model.resnet.compile(*args, **kwargs)
        self.head_loss.compile(*args, **kwargs)


def save_model(
    model: ResNetForImageClassification,
    weights: Mapping[str, Tensor],
    preparation: Preparation,
    folder: Path,
    *,
    logit_scale: float = 1.0,
) -> None:
    """Write trained weights as a folder that transformers loads, and how its images are prepared.

    A linear head's scale goes into its weight and bias, so that the model alone has the trained probabilities.
    """
    own = ("classifier.1.weight", "classifier.1.bias") if logit_scale != 1 else ()
    scaled = {name: logit_scale * weights[name] for name in own}
    with no_progress_bars():
        model.save_pretrained(folder, state_dict={**weights, **scaled})
    write_json(folder / PREPARATION, preparation._asdict())


def load_classifier(folder: Path | str) -> tuple[ResNetForImageClassification, Preparation]:
    """Load a trained classifier: the model, ready to predict, and how its images are prepared.

    model, preparation = load_classifier("runs/cifar10/model")
    logits = model(preparation.prepare(pixels)).logits
    """
    path = Path(folder)
    if not (path / "config.json").is_file():
        raise ValueError(
            f"`folder` must hold a trained classifier (config.json), got {str(folder)!r}; give OUTPUT/model."
        )
    preparation = read_preparation(path)
    with no_progress_bars():
        return AutoModelForImageClassification.from_pretrained(path).eval(), preparation
