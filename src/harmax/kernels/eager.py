"""The specification: the harmonic loss in plain torch operations, with the whole (B, V) matrix in memory.

Every other implementation is tested against this file. Autograd differentiates it, any number of times.

Shape suffixes: B rows, V classes, D features.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from harmax.kernels.distance import squared_distance_matrix
from harmax.kernels.operators import is_exporting
from harmax.kernels.problem import LossOptions, LossOutput, Problem


def hit_floor(dtype: torch.dtype) -> float:
    """The value that replaces a squared distance of exactly zero, in units of the smallest positive one of its row.

    It is relative to the row's own distances. So it lies below every real one, and scaling or shifting x and w together
    changes nothing. float32: 1e-19, a distance of 3e-10; float64: 1e-154.
    """
    return math.sqrt(torch.finfo(dtype).tiny)


def absolute_floor(dtype: torch.dtype) -> float:
    """The smallest squared distance used anywhere: 1 / s times any exponent stays finite."""
    return torch.finfo(dtype).tiny * 2**13


def above_floor(s_BV: Tensor) -> Tensor:
    """Squared distances, (..., V), with exact zeros raised to a floor, so that logarithm and inverse are finite."""
    with torch.no_grad():
        nearest_B1 = s_BV.masked_fill(s_BV == 0, torch.inf).amin(-1, keepdim=True)
        floor_B1 = (hit_floor(s_BV.dtype) * nearest_B1.nan_to_num(nan=torch.nan, posinf=0.0)).clamp(
            min=absolute_floor(s_BV.dtype)
        )
        lift_BV = (floor_B1 - s_BV).clamp(min=0)
    # Added, not clamped: the gradient is still that of the distance, which is zero where the distance is zero.
    return s_BV + lift_BV


def softened_distance(x_BD: Tensor, w_VD: Tensor, softening: float | Tensor) -> Tensor:
    """Squared distances, zeros raised to the floor, plus the softening, (B, V)."""
    return above_floor(squared_distance_matrix(x_BD, w_VD)) + softening


def logits(t_BV: Tensor, exponent: float | Tensor, prior_V: Tensor | None = None) -> Tensor:
    """``z = b - (n/2) log t`` from softened squared distances and the prior b, which is 0 if there is none."""
    z_BV = -0.5 * exponent * t_BV.log()
    return z_BV if prior_V is None else z_BV + prior_V


def log_probabilities(t_BV: Tensor, exponent: float | Tensor, prior_V: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """``log p``, (B, V), exact in relative terms even where p is close to 1, and the most probable class, (B,).

    With top the most probable class and u_j = (n/2) log(t_j / t_top) + b_top - b_j >= 0,
    -log p_j = u_j + log1p(sum_{k != top} exp(-u_k)).
    """
    if prior_V is None:
        top_B1 = t_BV.detach().argmin(1, keepdim=True)
    else:
        top_B1 = logits(t_BV, exponent, prior_V).detach().argmax(1, keepdim=True)
    is_top_BV = torch.arange(t_BV.shape[1], device=t_BV.device) == top_B1
    t_top_B1 = t_BV.gather(1, top_B1)
    difference_BV = t_BV.log() - t_top_B1.log()
    with torch.no_grad():
        # The log of the ratio is exact where the difference of two large logarithms is not. The difference gives the
        # gradient, which cannot overflow, and the value where the ratio is out of range.
        gain_BV = ((t_BV / t_top_B1).log() - difference_BV).nan_to_num(0.0, 0.0, 0.0)
    # The top class is a constant 0. Its gradient reaches t_top through the other classes, without cancellation.
    u_BV = 0.5 * exponent * (difference_BV + gain_BV)
    if prior_V is not None:
        u_BV = u_BV + (prior_V[top_B1] - prior_V)
    u_BV = u_BV.masked_fill(is_top_BV, 0.0)
    rest_B1 = (-u_BV).exp().masked_fill(is_top_BV, 0.0).sum(1, keepdim=True)
    return -(u_BV + _log1p(rest_B1)), top_B1.squeeze(1)


def _log1p(x: Tensor) -> Tensor:
    """``log(1 + x)``. ONNX has only the logarithm, and log(1 + 1e-12) would be 0."""
    if not (is_exporting() and torch.onnx.is_in_onnx_export()):
        return x.log1p()
    rounded = 1 + x
    return torch.where(rounded == 1, x, x * rounded.log() / (rounded - 1))  # the rounding cancels


def entropy(log_p_BV: Tensor) -> Tensor:
    """Entropy of each row of log-probabilities, (B,). A class that the prior leaves out adds nothing."""
    log_p_BV = log_p_BV.masked_fill(log_p_BV == -torch.inf, 0.0)
    return -(log_p_BV.exp() * log_p_BV).sum(-1)


def _indexed_loss(log_p_BV: Tensor, problem: Problem) -> Tensor:
    _, _, target_B, _, _, weight_V, ignore_index, smoothing, reduction, _ = problem
    loss = F.nll_loss(log_p_BV, target_B, weight_V, ignore_index=ignore_index, reduction=reduction)
    if smoothing == 0:
        return loss
    kept_B = target_B != ignore_index
    weighted_BV = log_p_BV if weight_V is None else _times(log_p_BV, weight_V, problem)
    smooth_B = -weighted_BV.sum(1).masked_fill(~kept_B, 0.0)
    if reduction == "mean":
        smooth = smooth_B.sum() / counted(problem).sum()
    else:
        smooth = smooth_B.sum() if reduction == "sum" else smooth_B
    return (1 - smoothing) * loss + smoothing / log_p_BV.shape[1] * smooth


def _times(log_p_BV: Tensor, share: Tensor, problem: Problem) -> Tensor:
    """Log-probabilities times shares of the target. A class that the prior leaves out costs nothing without a share."""
    if problem.prior_V is not None:
        log_p_BV = log_p_BV.masked_fill((share == 0) & (problem.prior_V == -torch.inf), 0.0)
    return log_p_BV * share


def counted(problem: Problem) -> Tensor:
    """The weight of each row in the mean, (B,): its class weight, or 1; 0 where the target index is ignored."""
    kept_B = problem.target != problem.ignore_index
    if problem.weight_V is None:
        return kept_B.to(torch.promote_types(problem.x_BD.dtype, torch.float32))
    return problem.weight_V[problem.target.masked_fill(~kept_B, 0)].masked_fill(~kept_B, 0.0)


def smoothed_probabilities(problem: Problem) -> Tensor:
    """Probability targets, (B, V), after label smoothing and class weights."""
    target_BV = problem.target
    if problem.label_smoothing:
        target_BV = target_BV * (1 - problem.label_smoothing) + problem.label_smoothing / target_BV.shape[1]
    return target_BV if problem.weight_V is None else target_BV * problem.weight_V


def _probability_loss(log_p_BV: Tensor, problem: Problem) -> Tensor:
    loss_B = -_times(log_p_BV, smoothed_probabilities(problem), problem).sum(1)
    if problem.reduction == "none":
        return loss_B
    return loss_B.sum() / len(loss_B) if problem.reduction == "mean" else loss_B.sum()


def harmonic_loss(problem: Problem, options: LossOptions | None = None) -> LossOutput:
    """Loss and statistics of a problem. This implementation has no options."""
    t_BV = softened_distance(problem.x_BD, problem.w_VD, problem.softening)
    log_p_BV, top_B = log_probabilities(t_BV, problem.exponent, problem.prior_V)
    indexed = not problem.target.is_floating_point()
    loss = (_indexed_loss if indexed else _probability_loss)(log_p_BV, problem)
    with torch.no_grad():
        top_B1 = top_B[:, None]
        lse_B = (logits(t_BV.gather(1, top_B1), problem.exponent) - log_p_BV.gather(1, top_B1)).squeeze(1)
        if problem.prior_V is not None:
            lse_B = lse_B + problem.prior_V[top_B]
        hit_B = top_B == (problem.target if indexed else problem.target.argmax(1))
    return LossOutput(loss, lse_B, hit_B)
