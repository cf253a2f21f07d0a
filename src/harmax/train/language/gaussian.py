"""GPT-2 whose head is the Gaussian limit of the harmonic head: a control with the same scale and another shape.

After ``import harmax.train.language.gaussian`` transformers' Auto classes load such a model; else they refuse its name.

Shape suffixes: V rows of the weight, D features; leading dimensions are free.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harmax.errors import needs

with needs("hf"):
    from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel


class GaussianTokenHead(nn.Linear):
    r"""Logits that fall with the squared distance, up to a constant per row that cancels in the probabilities.

    .. math:: z_j = c \, (x \cdot w_j - \tfrac12 \|w_j\|^2) = -\tfrac{c}{2} \|x - w_j\|^2 + \tfrac{c}{2} \|x\|^2

    Where many centers lie at nearly the same distance d, a harmonic head of exponent n has nearly these logits at
    c = n / d^2. Under autocast the product is rounded as in a Linear layer; the norms are those of the rounded weight,
    in float32.

    Args:
        weight: w, (V, D); the parameter itself, which may be shared.
        scale: c.

    >>> head = GaussianTokenHead(nn.Parameter(torch.tensor([[2.0, 0.0], [0.0, 4.0]])), scale=0.5)
    >>> head(torch.tensor([1.0, 1.0]))
    tensor([ 0., -2.], grad_fn=<MulBackward0>)
    """

    def __init__(self, weight: nn.Parameter, scale: float) -> None:
        rows, features = weight.shape
        super().__init__(features, rows, bias=False, device="meta")
        self.weight, self.scale = weight, scale

    def forward(self, input: Tensor) -> Tensor:
        """Logits, (..., V), float32 or float64."""
        kind = input.device.type
        multiplied = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.weight.dtype
        wide = torch.promote_types(multiplied, torch.float32)
        half_V = self.weight.to(multiplied).to(wide).square().sum(1) / 2
        return self.scale * (F.linear(input, self.weight).to(wide) - half_V)

    def extra_repr(self) -> str:
        """Sizes and scale."""
        return f"in_features={self.in_features}, out_features={self.out_features}, scale={self.scale:g}"


class GaussianGPT2Config(GPT2Config):
    """GPT-2's configuration with the scale of the logits.

    >>> GaussianGPT2Config(logit_scale=2.0).logit_scale
    2.0
    """

    model_type = "gaussian_gpt2"

    logit_scale: float | int = 1.0


class GaussianGPT2LMHeadModel(GPT2LMHeadModel):
    """Transformers' GPT-2 with a `GaussianTokenHead`, tied or not; its initial weights are those of GPT-2."""

    config: GaussianGPT2Config
    config_class = GaussianGPT2Config

    def __init__(self, config: GaussianGPT2Config) -> None:
        super().__init__(config)
        self.lm_head = GaussianTokenHead(self.lm_head.weight, config.logit_scale)
        self.loss_type = "ForCausalLM"  # transformers would derive it from the name of the class

    def _get_resized_lm_head(self, old_lm_head: nn.Linear, *arguments: Any, **options: Any) -> nn.Linear:
        # transformers makes a Linear, which would lose the norms; only its rows are needed.
        resized = super()._get_resized_lm_head(old_lm_head, *arguments, **options)
        if resized is old_lm_head:
            return old_lm_head
        assert isinstance(resized.weight, nn.Parameter)
        return GaussianTokenHead(resized.weight, self.config.logit_scale)


AutoConfig.register(GaussianGPT2Config.model_type, GaussianGPT2Config, exist_ok=True)
AutoModelForCausalLM.register(GaussianGPT2Config, GaussianGPT2LMHeadModel, exist_ok=True)
