"""AdamW and its two groups: what decays, and what does not."""

import torch
from torch import nn

from harmax.train.spec import PretrainSpec


def parameter_groups(model: nn.Module, spec: PretrainSpec) -> list[dict[str, object]]:
    """Split the parameters of a GPT-2: decay acts on matrices; on the centers where the spec says so."""
    centers = model.get_parameter("lm_head.weight")
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in model.parameters():
        decays = parameter.ndim >= 2 and (spec.decay_centers or parameter is not centers)
        (decayed if decays else others).append(parameter)
    return [{"params": decayed, "weight_decay": spec.weight_decay}, {"params": others, "weight_decay": 0.0}]


def make_optimizer(model: nn.Module, spec: PretrainSpec, device: torch.device) -> torch.optim.AdamW:
    """Return AdamW over a model whose parameters are where they will stay."""
    groups = parameter_groups(model, spec)
    fused = device.type == "cuda"
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=spec.lr, betas=spec.betas, fused=fused)
