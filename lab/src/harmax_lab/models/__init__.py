"""The paper's small models. `MODELS` maps a name to a class built as ``MODELS[name](vocabulary, inputs, head=...)``."""

from torch import nn

from harmax_lab.models.mlp import MLP
from harmax_lab.models.transformer import Transformer

MODELS: dict[str, type[nn.Module]] = {
    "mlp": MLP,
    "transformer": Transformer,
}

__all__ = ["MLP", "MODELS", "Transformer"]
