"""Problems whose classes ranks divide, and what a rank finds out about them. Every process makes the same ones.

B rows, D features, V classes.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from harmax import LossOptions, harmonic_loss
from harmax.functional import harmonic_entropy, harmonic_log_probabilities, harmonic_logits

RANKS = (2, 4)


class Case(NamedTuple):
    """A problem: sizes, and what is not at its default."""

    classes: int
    rows: int = 24
    features: int = 8
    prior: bool = False
    weight: bool = False
    dense: bool = False
    exponent: float | None = None
    learned: bool = False
    softening: float = 0.0
    label_smoothing: float = 0.0
    reduction: str = "mean"
    ignore_index: int = -100
    chunk_rows: int | None = None


EVERYTHING: dict[str, Any] = dict(prior=True, weight=True, softening=0.3, label_smoothing=0.1)

CASES = {
    "12 classes": Case(12),
    "12 classes, learned exponent": Case(12, exponent=3.0, learned=True, reduction="sum"),
    "9 classes": Case(9, **EVERYTHING),  # on four ranks the last one has none
    "9 classes, probabilities": Case(9, **EVERYTHING, dense=True),
    "9 classes, learned exponent": Case(9, prior=True, exponent=3.0, learned=True, reduction="none"),
    "251 classes": Case(251, chunk_rows=5),
    "251 classes, softening": Case(251, softening=0.1, exponent=20.0),
    "251 classes, prior": Case(251, prior=True),
    "251 classes, class weights": Case(251, weight=True),
    "251 classes, smoothing": Case(251, label_smoothing=0.2),
    "251 classes, ignored": Case(251, ignore_index=3, reduction="sum"),
    "251 classes, each row": Case(251, reduction="none", **EVERYTHING),
    "251 classes, everything": Case(251, **EVERYTHING, chunk_rows=7),
    "251 classes, probabilities": Case(251, **EVERYTHING, dense=True, reduction="none"),
    "8192 classes": Case(8192),
    "8192 classes, everything": Case(8192, **EVERYTHING, exponent=30.0, learned=True),
}
TABLES = [name for name in CASES if name.startswith(("9 ", "12 ", "8192 "))]
"""Cases whose matrices of all classes are compared too."""
LARGE = {"50257 classes": Case(50257, rows=256, features=64, chunk_rows=64)}


class Problem(NamedTuple):
    """The tensors of a case."""

    x_BD: Tensor
    w_VD: Tensor
    target: Tensor
    prior_V: Tensor | None
    weight_V: Tensor | None
    exponent: Tensor | float | None

    @property
    def learned(self) -> list[Tensor]:
        """The tensors whose gradients are compared."""
        tensors = (self.x_BD, self.w_VD, self.prior_V, self.exponent)
        return [tensor for tensor in tensors if isinstance(tensor, Tensor)]


def make(case: Case, dtype: torch.dtype = torch.float32) -> Problem:
    """Make a problem, with the same numbers in any dtype.

    Some rows are on a center or very near to one, of their own class or of another one.
    """
    random = torch.Generator().manual_seed(case.classes)
    x_BD = torch.randn(case.rows, case.features, generator=random)
    w_VD = torch.randn(case.classes, case.features, generator=random)
    target_B = torch.randint(case.classes, (case.rows,), generator=random)
    x_BD[0] = w_VD[target_B[0]]
    x_BD[1] = w_VD[target_B[1]] + 1e-4 * torch.randn(case.features, generator=random)
    x_BD[2] = w_VD[(target_B[2] + 1) % case.classes]
    x_BD[3] = w_VD[case.classes - 1] + 1e-3
    target_B[4] = case.ignore_index
    dense_BV = torch.rand(case.rows, case.classes, generator=random).softmax(1)
    prior_V = torch.randn(case.classes, generator=random)
    weight_V = torch.rand(case.classes, generator=random)
    exponent = torch.tensor(case.exponent, dtype=dtype) if case.learned else case.exponent
    problem = Problem(
        x_BD.to(dtype),
        w_VD.to(dtype),
        dense_BV.to(dtype) if case.dense else target_B,
        prior_V.to(dtype) if case.prior else None,
        weight_V.to(dtype) if case.weight else None,
        exponent,
    )
    for tensor in problem.learned:
        tensor.requires_grad_()
    return problem


def upstream(case: Case) -> Tensor:
    """The gradient of each row's loss."""
    return torch.linspace(0.5, 1.5, case.rows)


def solve(case: Case, problem: Problem, *, impl: str = "auto") -> dict[str, Tensor]:
    """Return the loss, its statistics and all gradients; of distributed tensors this rank's part."""
    x_BD, w_VD, target, prior_V, weight_V, exponent = problem
    found = harmonic_loss(
        x_BD,
        w_VD,
        target,
        prior=prior_V,
        weight=weight_V,
        exponent=exponent,
        softening=case.softening,
        label_smoothing=case.label_smoothing,
        reduction=case.reduction,
        ignore_index=-100 if case.dense else case.ignore_index,
        impl=impl,
        options=LossOptions(chunk_rows=case.chunk_rows),
        return_stats=True,
    )
    loss = found.loss if found.loss.dim() == 0 else (found.loss * upstream(case)).sum()
    gradients = torch.autograd.grad(loss, problem.learned)
    return {**found._asdict(), **{f"gradient {place}": gradient for place, gradient in enumerate(gradients)}}


def tabulate(case: Case, problem: Problem) -> dict[str, Tensor]:
    """Return the matrices of all classes, the entropy, and gradients that go through log-probabilities and entropy."""
    kernel: Any = {"exponent": problem.exponent, "softening": case.softening, "prior": problem.prior_V}
    log_p_BV = harmonic_log_probabilities(problem.x_BD, problem.w_VD, **kernel)
    entropy_B = harmonic_entropy(problem.x_BD, problem.w_VD, options=LossOptions(chunk_rows=10), **kernel)
    # Of a distributed matrix the sum of the squares is distributed as well.
    total = 0.01 * log_p_BV.square().sum()
    total = total.full_tensor() if hasattr(total, "full_tensor") else total  # type: ignore[operator]
    gradients = torch.autograd.grad(total + entropy_B.sum(), problem.learned)
    return {
        "logits": harmonic_logits(problem.x_BD, problem.w_VD, **kernel).detach(),
        "log-probabilities": log_p_BV.detach(),
        "entropy": entropy_B.detach(),
        **{f"gradient {place}": gradient for place, gradient in enumerate(gradients)},
    }
