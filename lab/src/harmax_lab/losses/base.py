"""What a loss is here: a head that predicts, and the loss that trains it.

A loss is a head, an `nn.Linear` whose `forward` returns the logits that predict. Most are trained by
`F.cross_entropy(head(x), y)`; every class in `harmax.heads.HEADS` is. A `LossHead` uses more in training than in
prediction: a margin at the true class, other rows of the batch, the number of the step. Everything is a pure function
of tensors, without branches on their values, so that hundreds of runs can be stacked (vmap) and an epoch recorded
(CUDA graphs).

pytorch-metric-learning has some of these losses. Its classes have weights of their own, which cannot be tied, and look
up rows and pairs by index, so that shapes depend on the labels: neither vmap nor a recorded graph can run them. This
is the only reason to write them again; tests/losses compares values and gradients with that library.
"""

# B rows, V classes, D features

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from harmax.heads.family import LinearHead
from harmax.kernels.operators import without_autocast


class RivalHead(LinearHead):
    """A head without the options of the harmonic family, which refuses a bias where its publication has none.

    The weight starts like that of `nn.Linear`, whatever the publication says, and other parameters start at constants:
    with one seed all losses start from the same network.

    Args:
        in_features: D.
        out_features: V, the number of classes.
        bias: whether to add one to the inner products.
        options: device and dtype.
    """

    takes_bias: ClassVar[bool] = False
    settings: ClassVar[tuple[str, ...]] = ()
    """Attributes that distinguish two heads of a kind; `repr` shows them."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False, **options: Any) -> None:
        if in_features < 1 or out_features < 1:
            raise ValueError(
                f"`in_features` and `out_features` must be at least 1, got {in_features} and {out_features}; "
                "give the width of the input and the number of classes."
            )
        if bias and not self.takes_bias:
            raise ValueError(f"`bias` must be False for {type(self).__name__}, which has none, got True; leave it out.")
        super().__init__(in_features, out_features, bias=bias, **options)

    def extra_repr(self) -> str:
        """Sizes and settings."""
        return ", ".join([super().extra_repr(), *(f"{name}={getattr(self, name)}" for name in self.settings)])


class LossHead(RivalHead):
    """A head that is trained by more than the cross-entropy of the logits it predicts with.

    .. math:: \\ell = \\text{cross-entropy}(\\text{training logits}) + \\text{extra loss}
    """

    reads_out: ClassVar[bool] = False
    """Whether the weight only reads classes off features that it does not train; such a weight cannot be tied."""

    def training_logits(self, features: Tensor, target: Tensor, step: Tensor | None = None) -> Tensor:
        """Logits whose cross-entropy is minimized, (B, V).

        Args:
            features: (B, D).
            target: class indices, (B,).
            step: updates so far, 0-d; None: long after the start.
        """
        return self(features)

    def extra_loss(self, features: Tensor, target: Tensor, present: Tensor) -> Tensor | None:
        """Term that is added to the cross-entropy, 0-d; None: nothing.

        Args:
            features: (B, D).
            target: class indices, (B,).
            present: 1 or True for rows that count, 0 for padding, (B,).
        """
        return None

    def loss(
        self,
        features: Tensor,
        target: Tensor,
        *,
        present: Tensor | None,
        classes: Tensor | None,
        step: Tensor | None,
        exact: bool,
    ) -> Tensor:
        """Loss that is minimized, 0-d; the arguments are those of `training_loss`."""
        z_BV = real_classes(self.training_logits(features, target, step), classes)
        loss = mean_cross_entropy(z_BV, target, present, exact=exact)
        extra = self.extra_loss(features, target, torch.ones_like(target) if present is None else present)
        return loss if extra is None else loss + extra


def training_loss(
    head: nn.Module,
    features: Tensor,
    target: Tensor,
    *,
    present: Tensor | None = None,
    classes: Tensor | None = None,
    step: Tensor | None = None,
    exact: bool = False,
) -> Tensor:
    """Return the loss that a head is trained with, 0-d: the mean over rows, or over pairs of rows.

    Args:
        head: any of `LOSSES`, or another module from features to logits.
        features: what the head sees, (B, D).
        target: class indices, (B,), int64.
        present: 1 or True for rows that count, 0 for padding, (B,); None: all count.
        classes: number of real classes, 0-d; the rest of V is padding. None: all are real.
        step: updates so far, 0-d, for losses that change over the training; None: long after the start.
        exact: whether the cross-entropy is `exact_cross_entropy`.

    >>> from harmax_lab.losses import LOSSES
    >>> head = LOSSES["cosface"](2, 2, scale=10, margin=0.5)
    >>> _ = head.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> features, target = torch.tensor([[3.0, 0.0]]), torch.tensor([0])
    >>> round(training_loss(head, features, target).item(), 4)  # log(1 + exp(0 - 10 (1 - 0.5)))
    0.0067
    >>> head(features).tolist()
    [[10.0, 0.0]]
    """
    if not isinstance(head, LossHead):
        return mean_cross_entropy(real_classes(head(features), classes), target, present, exact=exact)
    return head.loss(features, target, present=present, classes=classes, step=step, exact=exact)


def real_classes(logits: Tensor, classes: Tensor | None) -> Tensor:
    """Set the logits (..., V) of padded classes to -inf, so that none of them ever wins."""
    if classes is None:
        return logits
    inside_V = torch.arange(logits.shape[-1], device=logits.device) < classes
    return torch.where(inside_V, logits, -torch.inf)


def exact_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    r"""Cross-entropy of each row, (B,), with a gradient that is right however small the loss is.

    .. math:: -\log p_t = \log(1 + \sum_{j \ne t} e^{z_j - z_t})

    The usual gradient at the true class is p_t - 1. In float32 that is a multiple of 6e-8, and 0 once the loss is
    below 3e-8: the true class stops to pull while the others still push.

    >>> logits, target = torch.tensor([[20.0, 0.0]], requires_grad=True), torch.tensor([0])
    >>> torch.autograd.grad(F.cross_entropy(logits, target), logits)[0].tolist()[0][0]
    0.0
    >>> torch.autograd.grad(exact_cross_entropy(logits, target).sum(), logits)[0].tolist()[0][0]
    -2.06115369216775e-09
    """
    own_BV = is_target(target, logits.shape[-1])
    true_B1 = torch.where(own_BV, logits, 0.0).sum(-1, keepdim=True)
    return F.softplus(torch.where(own_BV, -torch.inf, logits - true_B1).logsumexp(-1))


def mean_cross_entropy(logits: Tensor, target: Tensor, present: Tensor | None = None, *, exact: bool = False) -> Tensor:
    """Mean cross-entropy over the rows that count, 0-d; 0 where there are none."""
    if present is None and not exact:
        return F.cross_entropy(logits, target)
    loss_B = exact_cross_entropy(logits, target) if exact else F.cross_entropy(logits, target, reduction="none")
    if present is None:
        return loss_B.mean()
    # A padded row must not count even where its loss is infinite.
    return torch.where(present > 0, loss_B, 0.0).sum() / present.sum().clamp(min=1)


class WithLoss(nn.Module):
    """A model with its training loss: inputs and targets in, logits and loss out.

    Args:
        model: at most one of its modules may be a `LossHead`; the loss sees the features that enter this head. Without
            one the loss is the cross-entropy of the model's logits.
        exact: whether to train with `exact_cross_entropy`.

    >>> from harmax_lab.losses import LOSSES
    >>> model = WithLoss(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), LOSSES["arcface"](3, 5)))
    >>> logits, loss = model(torch.randn(8, 4), target=torch.randint(5, (8,)))
    >>> logits.shape, loss.shape
    (torch.Size([8, 5]), torch.Size([]))
    """

    def __init__(self, model: nn.Module, *, exact: bool = False) -> None:
        super().__init__()
        names = [name for name, module in model.named_modules() if isinstance(module, LossHead)]
        if len(names) > 1:
            raise ValueError(f"`model` must have at most one head with a loss of its own, got {names}; keep one.")
        self.model, self.exact = model, exact
        self.head_name = names[0] if names else None

    def forward(
        self,
        *inputs: Any,
        target: Tensor,
        present: Tensor | None = None,
        classes: Tensor | None = None,
        step: Tensor | None = None,
        testing: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return the logits that predict, (B, V), and the loss, 0-d.

        Args:
            inputs: what the model takes.
            target, present, classes, step: as for `training_loss`.
            testing: return the cross-entropy of the logits that predict, without margins, pairs or centers.
        """
        if self.head_name is None or testing:
            z_BV = real_classes(self.model(*inputs), classes)
            return z_BV, mean_cross_entropy(z_BV, target, present, exact=self.exact and not testing)
        head, seen = self.model.get_submodule(self.head_name), list[Tensor]()
        hook = head.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        try:
            z_BV = real_classes(self.model(*inputs), classes)
        finally:
            hook.remove()
        if len(seen) != 1:
            raise ValueError(f"`model` must call its head once, got {len(seen)} calls; train one head on one input.")
        options: dict[str, Any] = {"present": present, "classes": classes, "step": step, "exact": self.exact}
        loss = training_loss(head, seen[0], target, **options)
        return z_BV, loss


def unit(vectors: Tensor) -> Tensor:
    """Divide vectors (..., D) by their length; a zero vector stays, with the gradient of a vector of length 1."""
    # The largest entry first, so that no square leaves the range. The result does not depend on it, nor the gradient.
    largest = vectors.detach().abs().amax(-1, keepdim=True)
    scaled = vectors / torch.where(largest == 0, 1.0, largest)
    s = scaled.square().sum(-1, keepdim=True)
    return scaled * torch.where(s == 0, 1.0, s).rsqrt()


def products(x: Tensor, w_VD: Tensor) -> Tensor:
    """Inner products of vectors (..., D) with the rows of a matrix, (..., V), whatever autocast says."""
    with without_autocast(x.device):
        return F.linear(x, w_VD)


def is_target(target: Tensor, classes: int) -> Tensor:
    """Return which class is the target's, (B, V) bool."""
    return target[..., None] == torch.arange(classes, device=target.device)


def rows_of(w_VD: Tensor, target: Tensor) -> Tensor:
    """Return the row of each target's class, (B, D)."""
    # A product, whose gradient is summed in the same order every time; an index's is not, on a GPU.
    return products(is_target(target, len(w_VD)).to(w_VD.dtype), w_VD.T)


def positive(name: str, value: float, *, least: float | None = None) -> float:
    """Return a setting as a float, or raise unless it is finite and above 0, or at least `least`."""
    if not isinstance(value, int | float):
        raise TypeError(f"`{name}` must be a number, got {value!r}; pass a float.")
    enough = value > 0 if least is None else value >= least
    if not (enough and math.isfinite(value)):
        bound = "above 0" if least is None else f"at least {least:g}"
        raise ValueError(f"`{name}` must be finite and {bound}, got {value}; leave it out for the published value.")
    return float(value)
