"""The loss as one custom operator with its autograd rules. An engine computes the (B, V) matrix, block by block.

For a scalar reduction the forward pass computes the gradients as well, while a block of the matrix is in memory. Then
forward and backward are one pass with three large matrix products. With reduction="none" the upstream gradient is not
known yet, so backward computes the distances again: a fourth product.

Shape suffixes: B rows, V classes, D features.
"""

from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from harmax.kernels import chunked, sharded
from harmax.kernels.eager import counted
from harmax.kernels.operators import is_traced, shapes_of, tracks_gradient, with_rules, with_true_products
from harmax.kernels.problem import Block, Engine, LossOutput, Problem, Result, Scale, Wanted


def _triton(problem: Problem, wanted: Wanted, scale: Scale, block: Block) -> Result:
    from harmax.kernels.triton.engine import compute  # only here: Triton may not be installed

    return compute(problem, wanted, scale, block)


ENGINES: dict[str, Engine] = {"chunked": chunked.compute, "triton": _triton}
"""By name, because an operator takes tensors, numbers and strings only."""

SHARDED = "sharded "
"""An engine of this name, followed by that of a process group, has classes that the ranks of the group divide."""


def _engine(name: str) -> Engine:
    if name.startswith(SHARDED):
        return partial(sharded.compute, group=name.removeprefix(SHARDED))
    return ENGINES[name]


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of losses: float32 for half-precision inputs."""
    return torch.promote_types(dtype, torch.float32)


def _total(problem: Problem) -> Tensor:
    """The number that the sum of the rows' losses is divided by."""
    x_BD = problem.x_BD
    if problem.reduction != "mean" or problem.target.is_floating_point():
        return x_BD.new_full((), 1 if problem.reduction != "mean" else len(x_BD), dtype=_wide(x_BD.dtype))
    return counted(problem).sum()


@torch.library.custom_op("harmax::fused_loss", mutates_args=())
@with_true_products
def _loss_op(
    x_BD: Tensor,
    w_VD: Tensor,
    target: Tensor,
    exponent: Tensor,
    weight_V: Tensor | None,
    softening: float,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
    engine: str,
    rows: int,
    columns: int,
    want_x: bool,
    want_w: bool,
    want_exponent: bool,
    prior_V: Tensor | None = None,
    want_prior: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    problem = Problem(
        x_BD, w_VD, target, exponent, softening, weight_V, ignore_index, label_smoothing, reduction, prior_V
    )
    wanted = Wanted(want_x, want_w, want_exponent, want_prior)
    total = cache(lambda: _total(problem))

    def scale() -> Tensor:
        # If no row counts, the loss is 0 / 0 and the gradient 0, as in torch.
        return torch.where(total() > 0, 1 / total(), 0.0).expand(len(x_BD))

    result = _engine(engine)(problem, wanted, scale, Block(rows, columns))
    loss = result.loss_B if reduction == "none" else result.loss_B.sum() / total()
    return (loss, *result[1:])


@shapes_of(_loss_op)
def _(given: Any) -> tuple[Tensor, ...]:
    row_B = given.x_BD.new_empty(given.x_BD.shape[0], dtype=_wide(given.x_BD.dtype))
    loss = torch.empty_like(row_B) if given.reduction == "none" else row_B.new_empty(())
    return loss, row_B, torch.empty_like(row_B, dtype=torch.bool), *_empty_gradients(given)


@torch.library.custom_op("harmax::fused_loss_backward", mutates_args=())
@with_true_products
def _gradient_op(
    scale_B: Tensor,
    x_BD: Tensor,
    w_VD: Tensor,
    target: Tensor,
    exponent: Tensor,
    weight_V: Tensor | None,
    softening: float,
    ignore_index: int,
    label_smoothing: float,
    engine: str,
    rows: int,
    columns: int,
    want_x: bool,
    want_w: bool,
    want_exponent: bool,
    prior_V: Tensor | None = None,
    want_prior: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    problem = Problem(x_BD, w_VD, target, exponent, softening, weight_V, ignore_index, label_smoothing, "none", prior_V)
    wanted = Wanted(want_x, want_w, want_exponent, want_prior)
    result = _engine(engine)(problem, wanted, lambda: scale_B, Block(rows, columns))
    return result.dx_BD, result.dw_VD, result.dexponent, result.dprior_V


@shapes_of(_gradient_op)
def _(given: Any) -> tuple[Tensor, ...]:
    return _empty_gradients(given)


def _empty_gradients(given: Any) -> tuple[Tensor, ...]:
    x_BD, w_VD = given.x_BD, given.w_VD
    scalar = x_BD.new_empty((), dtype=_wide(x_BD.dtype))
    return (
        x_BD.new_empty(x_BD.shape if given.want_x else 0),
        w_VD.new_empty(w_VD.shape if given.want_w else 0),
        scalar,
        scalar.new_empty(w_VD.shape[0] if given.want_prior else 0),
    )


@torch.library.custom_op("harmax::scaled_gradient", mutates_args=())
def _scale_op(gradient: Tensor, upstream: Tensor) -> Tensor:
    return gradient * upstream


@shapes_of(_scale_op)
def _(given: Any) -> Tensor:
    return torch.empty_like(given.gradient)


def _refuse_second_derivative(ctx: Any, *grads: Tensor) -> Any:
    raise RuntimeError(
        "A second derivative of harmonic_loss must be taken through plain torch operations, got an implementation "
        "whose gradient is final; pass impl='eager'."
    )


def _scaled(gradient: Tensor, upstream: Tensor, engine: str) -> Tensor:
    """The stored gradient times the upstream scalar, in place if the stored gradient is not needed again."""
    if torch.is_grad_enabled():
        return _scale(gradient, upstream)
    gradient = gradient.detach()  # as an output of the operator it would require a gradient itself
    traced = is_traced(gradient) or is_traced(upstream)  # a compiler fuses this with the next operation
    if traced or torch._C._autograd._get_current_graph_task_keep_graph():
        return gradient * upstream
    if upstream.device.type == "cpu" and upstream.item() == 1:
        return gradient
    if engine == "triton":
        from harmax.kernels.triton.scale import scale_gradient

        return scale_gradient(gradient, upstream)
    return gradient.mul_(upstream)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    # Zeros for the unused outputs would take as much memory as a second gradient. Only vmap needs them.
    ctx.set_materialize_grads(torch._C._are_functorch_transforms_active())
    x_BD, w_VD, target, exponent, weight_V, *settings, prior_V, want_prior = inputs
    *ctx.settings, ctx.reduction, engine, rows, columns = settings[:7]
    ctx.engine, ctx.wanted = (engine, rows, columns), (*settings[7:], want_prior)
    if ctx.reduction == "none":
        ctx.save_for_backward(x_BD, w_VD, target, exponent, weight_V, prior_V)
    else:
        ctx.save_for_backward(*output[3:])


def _backward(ctx: Any, upstream: Tensor | None, *statistics: Tensor) -> tuple[Tensor | None, ...]:
    if upstream is None:
        return (None,) * 17
    if ctx.reduction == "none":
        # Torch may leave out arguments that have their defaults: those from the prior on.
        wanted = [*(ctx.needs_input_grad[position] for position in (0, 1, 3)), any(ctx.needs_input_grad[15:])]
        *tensors, prior_V = ctx.saved_tensors
        settings = (*ctx.settings, *ctx.engine, *wanted[:3], prior_V, wanted[3])
        gradients = _gradient(upstream.contiguous(), *tensors, *settings)
    else:
        wanted = ctx.wanted
        saved = zip(ctx.saved_tensors, wanted, strict=True)
        gradients = tuple(_scaled(gradient, upstream, ctx.engine[0]) if want else gradient for gradient, want in saved)
    kept = [gradient if want else None for gradient, want in zip(gradients, wanted, strict=True)]
    dx, dw, dexponent, dprior = kept
    return dx, dw, None, dexponent, *[None] * 11, dprior, None


_loss = with_rules(_loss_op, _backward, _save)
_gradient = with_rules(_gradient_op, _refuse_second_derivative)
_scale = with_rules(_scale_op, _refuse_second_derivative)


def loss(problem: Problem, engine: str, block: Block) -> LossOutput:
    """Loss and statistics of a problem, by an engine of `ENGINES`, with one block of the (B, V) matrix at a time."""
    x_BD, w_VD, target, exponent, softening, weight_V, ignore_index, label_smoothing, reduction, prior_V = problem
    for name, tensor in (("target", target), ("weight", weight_V)):
        if tensor is not None and tensor.requires_grad:
            raise ValueError(
                f"`{name}` must not require a gradient with impl={engine!r}, got one that does; "
                "pass impl='eager' or detach it."
            )
    if not isinstance(exponent, Tensor):
        exponent = x_BD.new_full((), exponent, dtype=_wide(x_BD.dtype))
    if reduction != "none" and torch.float16 in (x_BD.dtype, w_VD.dtype):
        # Gradients of a mean underflow in float16 without the factor of a GradScaler. So backward computes them.
        each = loss(problem._replace(reduction="none", exponent=exponent), engine, block)
        return each._replace(loss=each.loss.sum() / _total(problem))
    # With reduction="none" backward computes the gradients, because only then the upstream gradient is known.
    now = torch.is_grad_enabled() and reduction != "none"
    wanted = [now and tracks_gradient(tensor) for tensor in (x_BD, w_VD, exponent)]
    want_prior = now and prior_V is not None and tracks_gradient(prior_V)
    value, logsumexp_B, hit_B, *_ = _loss(
        x_BD,
        w_VD,
        target,
        exponent,
        weight_V,
        softening,
        ignore_index,
        label_smoothing,
        reduction,
        engine,
        *block,
        *wanted,
        prior_V,
        want_prior,
    )
    return LossOutput(value, logsumexp_B.detach(), hit_B)
