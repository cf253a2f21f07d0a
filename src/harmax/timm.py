"""Models of timm that end in a harmonic head, and keep one when their classifier is reset."""

from functools import partial
from typing import Any

from torch import nn

from harmax.errors import needs
from harmax.heads import HarmonicHead, replace_head


def create_model(
    model_name: str,
    *,
    exponent: float | None = None,
    softening: float = 0.0,
    scale: float | None = None,
    checkpoint_path: str = "",
    **options: Any,
) -> Any:
    """Build a model of timm whose classifier is a `HarmonicHead`; its bias becomes the prior.

    The model returns log-probabilities. `model.get_classifier()(features, target)` is the loss, where `features` are
    `model.forward_head(model.forward_features(x), pre_logits=True)`. `model.reset_classifier(classes)` makes a new
    harmonic head with the same exponent and softening.

    The centers are drawn as in `HarmonicHead`. Only a pretrained classifier for the same classes is kept; it must be
    trained further, because an inner product and a distance are not the same score.

    Args:
        model_name: as for `timm.create_model`.
        exponent, softening, scale: as for `HarmonicHead`.
        checkpoint_path: of a harmonic model, as timm saves it.
        options: further arguments of `timm.create_model`, such as `pretrained` and `num_classes`.

    Raises:
        ValueError: if the model does not end in one Linear.
    """
    with needs("timm"):
        import timm
        from timm.models import load_checkpoint

    model = timm.create_model(model_name, **options)
    keep = bool(options.get("pretrained")) and model.num_classes == model.pretrained_cfg.get("num_classes")
    settings = {"exponent": exponent, "softening": softening, "scale": scale}
    _make_harmonic(model, settings, keep=keep)
    model.reset_classifier = partial(_reset_classifier, model, settings)
    if checkpoint_path:
        load_checkpoint(model, checkpoint_path)
    return model


def _make_harmonic(model: Any, settings: dict[str, Any], *, keep: bool = False) -> HarmonicHead:
    """Replace the classifier of a model."""
    classifier = model.get_classifier()
    name = next((name for name, module in model.named_modules() if module is classifier and name), None)
    found = type(classifier).__name__ if getattr(model, "aux_head", None) is None else "two classifiers"
    if name is None or not isinstance(classifier, nn.Linear) or found == "two classifiers":
        kind = type(model).__name__
        raise ValueError(
            f"a model of timm must end in one Linear to get a harmonic head, got {kind} with {found}; build it with "
            "num_classes=0, which gives features, and put a HarmonicHead behind it."
        )
    head = replace_head(model, name, **settings)
    if not keep:  # timm starts some classifiers at zero
        head.reset_parameters()
    return head


def _reset_classifier(model: Any, settings: dict[str, Any], num_classes: int, *arguments: Any, **options: Any) -> None:
    """Do what the model's class does, and make the new classifier harmonic; with 0 classes there is none."""
    type(model).reset_classifier(model, num_classes, *arguments, **options)
    if num_classes:
        _make_harmonic(model, settings)
