"""The loss a chunk of rows at a time, on any device: no more than (chunk, V) of the (B, V) matrix ever exists.

For a scalar reduction the gradients are made while the chunk is still in memory, so forward and backward are one pass
of three large matrix products. With reduction="none" the upstream gradient is not known yet: backward makes the
distances again, a fourth product. torch.compile is not used (and not needed): `sweep.py` works in place.
"""

from typing import Any

import torch
from torch import Tensor

from harmax.kernels.eager import LossOutput, Problem, counted
from harmax.kernels.operators import is_traced, tracks_gradient, with_rules, with_true_products
from harmax.kernels.sweep import Sweep, Wanted

CHUNK_BYTES = {"cpu": 38 * 2**20, "cuda": 256 * 2**20}
"""Memory of the (chunk, V) matrix when the caller names no chunk: a GPU needs large chunks to be busy."""


def default_chunk_rows(classes: int, itemsize: int, device: str) -> int:
    """Rows whose (chunk, V) matrix takes CHUNK_BYTES: a multiple of 16, and at least 16."""
    return max(16, CHUNK_BYTES.get(device, CHUNK_BYTES["cuda"]) // (classes * itemsize) // 16 * 16)


def _total(problem: Problem) -> Tensor:
    """What the sum of the rows' losses is divided by."""
    x_BD = problem.x_BD
    if problem.reduction != "mean":
        return x_BD.new_ones(())
    return x_BD.new_tensor(len(x_BD)) if problem.target.is_floating_point() else counted(problem).sum()


@torch.library.custom_op("harmax::chunked_loss", mutates_args=())
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
    chunk_rows: int,
    want_x: bool,
    want_w: bool,
    want_exponent: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    problem = Problem(x_BD, w_VD, target, exponent, softening, weight_V, ignore_index, label_smoothing, reduction)
    total = _total(problem)
    # With nothing to count the loss is 0 / 0, as torch's is, and the gradient 0, as torch's is.
    scale_B = torch.where(total > 0, 1 / total, 0.0).expand(len(x_BD))
    result = Sweep(problem, Wanted(want_x, want_w, want_exponent), scale_B).run(chunk_rows)
    loss = result.loss_B if reduction == "none" else result.loss_B.sum() / total
    best = target.argmax(1) if target.is_floating_point() else target
    return loss, result.logsumexp_B, result.top_B == best, result.dx_BD, result.dw_VD, result.dexponent


@_loss_op.register_fake
def _(x_BD: Tensor, w_VD: Tensor, *args: Any) -> tuple[Tensor, ...]:
    reduction, _, want_x, want_w, _ = args[-5:]
    row_B, scalar, nothing = x_BD.new_empty(x_BD.shape[0]), x_BD.new_empty(()), x_BD.new_empty(0)
    return (
        torch.empty_like(row_B) if reduction == "none" else scalar,
        row_B,
        torch.empty_like(row_B, dtype=torch.bool),
        torch.empty_like(x_BD) if want_x else nothing,
        torch.empty_like(w_VD) if want_w else nothing.clone(),
        scalar.clone(),
    )


@torch.library.custom_op("harmax::chunked_loss_backward", mutates_args=())
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
    chunk_rows: int,
    want_x: bool,
    want_w: bool,
    want_exponent: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    problem = Problem(x_BD, w_VD, target, exponent, softening, weight_V, ignore_index, label_smoothing, "none")
    result = Sweep(problem, Wanted(want_x, want_w, want_exponent), scale_B).run(chunk_rows)
    return result.dx_BD, result.dw_VD, result.dexponent


@_gradient_op.register_fake
def _(scale_B: Tensor, x_BD: Tensor, w_VD: Tensor, *args: Any) -> tuple[Tensor, ...]:
    want_x, want_w, _ = args[-3:]
    nothing = x_BD.new_empty(0)
    return (
        torch.empty_like(x_BD) if want_x else nothing,
        torch.empty_like(w_VD) if want_w else nothing.clone(),
        x_BD.new_empty(()),
    )


@torch.library.custom_op("harmax::scaled_gradient", mutates_args=())
def _scale_op(gradient: Tensor, upstream: Tensor) -> Tensor:
    return gradient * upstream


@_scale_op.register_fake
def _(gradient: Tensor, upstream: Tensor) -> Tensor:
    return torch.empty_like(gradient)


def _refuse_second_derivative(ctx: Any, *grads: Tensor) -> Any:
    raise RuntimeError(
        "A second derivative of harmonic_loss must be taken through plain torch operations, got impl='chunked', whose "
        "gradient is final; pass impl='eager'."
    )


def _scaled(gradient: Tensor, upstream: Tensor) -> Tensor:
    """The stored gradient times the upstream scalar, in the stored memory where nobody can look at it again."""
    if torch.is_grad_enabled() or is_traced(gradient) or is_traced(upstream):
        return _scale(gradient, upstream)
    if torch._C._autograd._get_current_graph_task_keep_graph():
        return gradient * upstream
    if upstream.device.type == "cpu" and upstream.item() == 1:
        return gradient
    return gradient.mul_(upstream)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    # Zeros for the unused outputs would be a second gradient's worth of memory; older vmap cannot do without them.
    ctx.set_materialize_grads(torch._C._are_functorch_transforms_active())
    x_BD, w_VD, target, exponent, weight_V, *settings = inputs
    ctx.softening, ctx.ignore_index, ctx.label_smoothing, ctx.reduction, ctx.chunk_rows, *ctx.wanted = settings
    if ctx.reduction == "none":
        ctx.save_for_backward(x_BD, w_VD, target, exponent, weight_V)
    else:
        ctx.save_for_backward(*output[3:])


def _backward(ctx: Any, upstream: Tensor | None, *statistics: Tensor) -> tuple[Tensor | None, ...]:
    if upstream is None:
        return (None,) * 13
    if ctx.reduction == "none":
        wanted = [ctx.needs_input_grad[position] for position in (0, 1, 3)]
        settings = (ctx.softening, ctx.ignore_index, ctx.label_smoothing, ctx.chunk_rows, *wanted)
        gradients = _gradient(upstream.contiguous(), *ctx.saved_tensors, *settings)
    else:
        wanted = ctx.wanted
        gradients = tuple(_scaled(gradient, upstream) for gradient in ctx.saved_tensors)
    dx, dw, dexponent = (gradient if want else None for gradient, want in zip(gradients, wanted, strict=True))
    return dx, dw, None, dexponent, *[None] * 9


_loss = with_rules(_loss_op, _backward, _save)
_gradient = with_rules(_gradient_op, _refuse_second_derivative)
_scale = with_rules(_scale_op, _refuse_second_derivative)


def harmonic_loss(problem: Problem, chunk_rows: int | None = None) -> LossOutput:
    """Loss and statistics of a problem, `chunk_rows` rows at a time (by default as many as fit CHUNK_BYTES)."""
    x_BD, w_VD, target, exponent, softening, weight_V, ignore_index, label_smoothing, reduction = problem
    for name, tensor in (("target", target), ("weight", weight_V)):
        if tensor is not None and tensor.requires_grad:
            raise ValueError(
                f"`{name}` must not require a gradient with impl='chunked', got one that does; "
                "pass impl='eager' or detach it."
            )
    if not isinstance(exponent, Tensor):
        exponent = x_BD.new_tensor(exponent)
    # With reduction="none" backward makes the gradients, once it knows what each row's is multiplied by.
    now = torch.is_grad_enabled() and reduction != "none"
    wanted = [now and tracks_gradient(tensor) for tensor in (x_BD, w_VD, exponent)]
    loss, logsumexp_B, hit_B, *_ = _loss(
        x_BD,
        w_VD,
        target,
        exponent,
        weight_V,
        softening,
        ignore_index,
        label_smoothing,
        reduction,
        chunk_rows or default_chunk_rows(w_VD.shape[0], w_VD.element_size(), w_VD.device.type),
        *wanted,
    )
    return LossOutput(loss, logsumexp_B.detach(), hit_B)
