"""What training costs: operations per token, and how many a device could do."""

import torch

from harmax.train.language.settings import PretrainSpec

# bf16 products of dense matrices, FLOP/s, from data sheets. The first name that is part of the device's name counts.
PEAK_FLOPS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "RTX 4090": 165e12,
}


def flops_per_token(spec: PretrainSpec, parameters: int) -> float:
    """Return the floating-point operations that training needs per token: 6 N + 12 layers x features x context.

    Args:
        spec: the model's sizes.
        parameters: all of them, a tied matrix once; lookups (positions, an untied embedding) are subtracted here.

    >>> f"{flops_per_token(PretrainSpec(), 124_475_904):.3g}"
    '8.55e+08'
    """
    lookups = spec.context * spec.n_embd + (0 if spec.tied else spec.vocab * spec.n_embd)
    return 6 * (parameters - lookups) + 12 * spec.n_layer * spec.n_embd * spec.context


def peak_flops(device: torch.device, dtype: str) -> float | None:
    """Return the FLOP/s that a device could do, or None where that is not known."""
    if device.type != "cuda" or dtype != "bf16":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for known, peak in PEAK_FLOPS.items() if known in name), None)
