"""Replace the head of an existing model by a harmonic head."""

from torch import nn

from harmax.errors import unknown
from harmax.heads.harmonic import HarmonicHead


def replace_head(
    model: nn.Module,
    name: str = "lm_head",
    *,
    exponent: float | None = None,
    softening: float = 0.0,
    scale: float | None = None,
) -> HarmonicHead:
    """Replace a Linear inside a model by a `HarmonicHead` with the same weight, and return the head.

    The parameter object stays the same. So a tied embedding stays tied, an optimizer keeps its state, and the
    state_dict keeps its keys, beside the head's `settings`. A bias becomes the head's prior. For a model of
    transformers use `harmax.hf.harmonize`, which also saves and loads it as what it is.

    Args:
        model: any module; it is changed in place.
        name: dotted name of a Linear in the model, such as "lm_head" or "classifier.2". If the same
            module has other names too, all of them are replaced.
        exponent, softening, scale: as for `HarmonicHead`.

    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3, bias=False))
    >>> replace_head(model, "2", exponent=2)
    HarmonicHead(in_features=16, out_features=3, exponent=2, softening=0)
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    linears = [path for path, module in modules.items() if isinstance(module, nn.Linear) and path]
    if name not in modules or not name:
        raise ValueError(unknown("name", name, linears))
    module = modules[name]
    if not isinstance(module, nn.Linear):
        raise TypeError(
            f"`name` must be the name of a plain nn.Linear, got {name!r}, which is a {type(module).__name__}; "
            f"the Linears of this model are {', '.join(linears) or 'none'}."
        )
    if _has_hooks(module):
        raise ValueError(f"`{name}` must have no hooks, because they would be lost, got some; remove them first.")
    head = HarmonicHead.from_linear(module, exponent, softening=softening, scale=scale)
    for path in [path for path, other in modules.items() if other is module]:
        parent, _, attribute = path.rpartition(".")
        setattr(model.get_submodule(parent), attribute, head)
    return head


def _has_hooks(module: nn.Module) -> bool:
    """Return whether hooks are registered; torch has no public way to ask."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)
