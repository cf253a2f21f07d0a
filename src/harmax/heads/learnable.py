"""Heads that learn their exponent."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from harmax.heads.centers import CenterHead
from harmax.heads.harmonic import HarmonicHead


class LearnedExponent(CenterHead):
    """A head whose exponent is a parameter, nu = log n, so that it stays positive."""

    def _keep_exponent(self, exponent: float | Tensor) -> None:
        self._start = float(exponent)
        # float32 or float64, because half precision would round the exponent by up to one percent.
        dtype = torch.promote_types(self.weight.dtype, torch.float32)
        # One dimension, because FSDP shards along the first one and refuses a parameter without.
        self.log_exponent = nn.Parameter(torch.empty(1, device=self.weight.device, dtype=dtype))
        nn.init.constant_(self.log_exponent, math.log(self._start))

    def reset_extras(self) -> None:
        """Reset the exponent to the value that the head was built with."""
        super().reset_extras()
        nn.init.constant_(self.log_exponent, math.log(self._start))

    @property
    def exponent(self) -> Tensor:  # type: ignore[override]  # computed from the parameter, not assigned
        """The current exponent, 0-d."""
        return self.log_exponent[0].exp()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        key = prefix + "log_exponent"
        if key in state_dict and state_dict[key].dim() == 0:  # as older heads saved it
            state_dict[key] = state_dict[key].reshape(1)
        super()._load_from_state_dict(state_dict, prefix, *arguments)


class LearnableHarmonicHead(LearnedExponent, HarmonicHead):
    r"""A harmonic head that learns its exponent with the centers.

    .. math:: z_j = b_j - \tfrac{n}{2} \log(\|c\,x - w_j\|^2 + a), \qquad n = e^{\nu}

    The parameter is nu = log n (`log_exponent` in the state_dict), so the exponent stays positive.

    >>> sorted(LearnableHarmonicHead(16, 3).state_dict())
    ['log_exponent', 'settings', 'weight']
    """
