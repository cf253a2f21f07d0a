r"""An ordinary model of transformers that decodes greedily as a harmonic one, for servers that know linear heads only.

The nearest center is the largest of the numbers c w_j . x - |w_j|^2 / 2, which a Linear with a bias b_j computes. Few
models have such a bias. But where a LayerNorm stands before the head, the bias fits into its weight. The output of the
norm is x = g * n + h with the learned g and h, and the numbers n sum up to 0. So x . (1 / g) is the same number for all
x, and a multiple of 1 / g in a row of the weight is a bias of this row:

    v_j = c w_j + a_j / g        a_j = (b_j - t c w_j . g) / K        K = sum(h / g) + t D

The norm gets the bias h + t g, with t = 1 or -1, so that K is never near 0.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from harmax.errors import needs
from harmax.hf.config import PREFIX, HarmonicConfig
from harmax.hf.kinds import kind_of, plain_class
from harmax.hf.model import HarmonicModel
from harmax.hf.probe import try_model

with needs("hf"):
    from transformers import PreTrainedModel

TOLERANCE = 1e-3
"""Largest error of a folded bias, in units of the spread of what the Linear computes."""


@torch.no_grad()
def to_linear(model: PreTrainedModel) -> PreTrainedModel:
    """Return an ordinary causal language model whose most probable token is always that of a harmonic one.

    It is a copy, of a class of transformers, and its configuration names nothing of harmax. So any server reads it. Its
    probabilities are *not* those of the harmonic model: decode greedily. It needs a head with a bias (Phi, GPT-J,
    CodeGen) or a LayerNorm with weight and bias before the head (GPT-2, OPT, BLOOM, GPT-NeoX, StableLM). Serve it in
    float32, because half precision rounds its logits, and tokens that are nearly equal may change places.

    Args:
        model: a harmonic causal language model without a prior, its adapters merged.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> from harmax.hf import harmonize
    >>> gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    >>> harmonic, tokens = harmonize(gpt2).eval(), torch.arange(8)[None]
    >>> linear = to_linear(harmonic)
    >>> type(linear).__name__, bool((linear(tokens).logits.argmax(-1) == harmonic(tokens).logits.argmax(-1)).all())
    ('GPT2LMHeadModel', True)
    """
    if not isinstance(model, HarmonicModel) or kind_of(plain_class(type(model))) != "causal":
        raise TypeError(
            f"`model` must be a harmonic causal language model, got {type(model).__name__}; for another one use "
            "to_argmax_linear() of its head."
        )
    changed: Any = model
    path, plain = changed.harmonic_head_path, plain_class(type(changed))
    linear = copy.deepcopy(changed.harmonic_head).float().to_argmax_linear()
    made = plain._from_config(plain_config(changed.config), dtype=model.dtype).to(model.device)  # type: ignore[attr-defined]
    state = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(f"{path}.")}
    for name, tensor in made.state_dict().items():
        if name in state:
            state[name] = state[name][: len(tensor)] if tensor.dim() else state[name]  # without padding rows
    head = made.get_submodule(path)
    if head.bias is None:
        name, norm = last_norm(changed)
        state[f"{name}.bias"] = fold_bias(linear, norm)
    else:
        state[f"{path}.bias"] = linear.bias.detach()
    state[f"{path}.weight"] = linear.weight.detach()
    made.load_state_dict(state)
    made.generation_config = copy.deepcopy(model.generation_config)
    return made.train(model.training)


def plain_config(config: HarmonicConfig) -> Any:
    """Return the configuration of transformers that a harmonic one extends, for a model with a head of its own."""
    kind: Any = plain_class(type(config))
    own = {"model_type", "architectures", *type(config).as_harmonized}
    stored = {key: value for key, value in config.to_dict().items() if not key.startswith(PREFIX) and key not in own}
    return kind.from_dict({**stored, "tie_word_embeddings": False})


def last_norm(model: Any) -> tuple[str, nn.LayerNorm]:
    """Return name and module of the LayerNorm before the head, in which a bias can be folded; refuse another one."""
    norm = try_model(model, model.harmonic_head_path).norm
    if isinstance(norm, nn.LayerNorm) and norm.weight is not None and norm.bias is not None:
        return next(name for name, module in model.named_modules() if module is norm), norm
    raise ValueError(
        "`model` must have a bias at its head, or a LayerNorm with weight and bias before it, to become linear, got "
        f"{plain_class(type(model)).__name__} with {type(norm).__name__ if norm else 'no norm'} before its head; serve "
        "it with transformers and harmax, or by a server that adds the bias of head.to_argmax_linear()."
    )


def fold_bias(linear: nn.Linear, norm: nn.LayerNorm) -> Tensor:
    """Move the bias of a Linear into its weight, and return the bias that the norm before it then needs.

    >>> linear, norm, x = nn.Linear(8, 3), nn.LayerNorm(8), torch.randn(5, 8)
    >>> before = linear(norm(x)).argmax(1)
    >>> _ = norm.bias.data.copy_(fold_bias(linear, norm))
    >>> bool((nn.functional.linear(norm(x), linear.weight).argmax(1) == before).all())
    True
    """
    g_D, h_D, v_VD, b_V = (v.detach().double() for v in (norm.weight, norm.bias, linear.weight, linear.bias))
    step = 1.0 if (h_D / g_D).sum() >= 0 else -1.0
    constant = (h_D / g_D).sum() + step * len(g_D)
    a_V = (b_V - step * v_VD @ g_D) / constant
    folded_VD, bias_D = (v_VD + a_V[:, None] / g_D).float(), (h_D + step * g_D).float()
    normal_ND = torch.randn(64, len(g_D), generator=torch.Generator().manual_seed(0)).to(g_D.device, torch.float64)
    normal_ND = nn.functional.layer_norm(normal_ND, g_D.shape)
    wanted = (normal_ND * g_D + h_D) @ v_VD.T + b_V
    found = (normal_ND.float() * g_D.float() + bias_D) @ folded_VD.T
    error = (found - wanted).std(1, correction=0).max() / wanted.std(
        1, correction=0
    ).min()  # a constant does not matter
    if not error <= TOLERANCE:
        raise ValueError(
            "the norm before the head must have finite weights other than 0, for a bias to be folded into the head, "
            f"got sizes from {g_D.abs().min():.3g} to {g_D.abs().max():.3g}, with which logits would be off by "
            f"{float(error):.2g} of their spread; use a server that adds the bias of head.to_argmax_linear()."
        )
    linear.weight.data, linear.bias.data = folded_VD, torch.zeros_like(linear.bias)
    return bias_D
