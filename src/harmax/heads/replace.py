"""Give an existing model a harmonic head."""

from torch import nn

from harmax.errors import unknown
from harmax.heads.harmonic import HarmonicHead


def replace_head(model: nn.Module, name: str = "lm_head", *, exponent: float | None = None) -> HarmonicHead:
    """Swap a Linear inside a model for a `HarmonicHead` of the same weight, and return the head.

    The parameter object stays the same, so a tied embedding stays tied, an optimizer keeps its state and the
    state_dict keeps its keys.

    Args:
        model: any module; changed in place.
        name: dotted name of a Linear without bias in it, such as "lm_head" or "classifier.2"; where the same module
            has other names too, all of them are replaced.
        exponent: the power of the distance; None means sqrt(in_features).

    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3, bias=False))
    >>> replace_head(model, "2", exponent=2)
    HarmonicHead(in_features=16, out_features=3, exponent=2, softening=0)
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    linears = [path for path, module in modules.items() if isinstance(module, nn.Linear) and path]
    if name not in modules or not name:
        raise ValueError(unknown("name", name, linears))
    module = modules[name]
    if not isinstance(module, nn.Linear) or isinstance(module, HarmonicHead):
        raise TypeError(
            f"`name` must be that of a plain nn.Linear, got {name!r}, a {type(module).__name__}; "
            f"the Linears here are {', '.join(linears) or 'none'}."
        )
    if module.bias is not None:
        raise ValueError(
            f"`{name}` must have no bias, got one: a harmonic head has only centers; build the model with bias=False "
            f"there, or drop the bias first (model.{name}.bias = None)."
        )
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        raise ValueError(f"`{name}` must have no hooks, got some, which would be lost; remove them first.")
    head = HarmonicHead.from_linear(module, exponent)
    for path in [path for path, other in modules.items() if other is module]:
        parent, _, attribute = path.rpartition(".")
        setattr(model.get_submodule(parent), attribute, head)
    return head
