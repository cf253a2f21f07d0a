"""What every custom operator here needs: exact products inside, and rules for autograd, vmap and torch.func."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Context in which products keep the dtype of their operands, whatever region the caller is in."""
    if device.type == "meta":  # computes nothing, and autocast refuses its name
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)


@contextlib.contextmanager
def _true_products(device: torch.device) -> Iterator[None]:
    """Turn off autocast, TF32 and bf16 shortcuts: each rounds the products that the distance cancels."""
    precision = torch.get_float32_matmul_precision()
    with without_autocast(device), contextlib.ExitStack() as stack:
        if precision != "highest":
            torch.set_float32_matmul_precision("highest")
            stack.callback(torch.set_float32_matmul_precision, precision)
        yield


def with_true_products(body: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
    """Run an operator's body, whose first tensor argument names the device, with exact float32 products."""

    @functools.wraps(body)
    def run(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        device = next(arg.device for arg in args if isinstance(arg, Tensor))
        with _true_products(device):
            return body(*args, **kwargs)

    return run


def _loop_over_batch(op: Callable[..., Any]) -> Callable[..., Any]:
    """Make the vmap rule that calls an operator once per sample and stacks what comes back."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        def sample(index: int) -> Any:
            return op(*(arg if dim is None else arg.select(dim, index) for arg, dim in zip(args, in_dims, strict=True)))

        results = [sample(index) for index in range(info.batch_size)]
        if isinstance(results[0], Tensor):
            return torch.stack(results), 0
        return tuple(map(torch.stack, zip(*results, strict=True))), (0,) * len(results[0])

    return rule


def with_rules(op: Any, rule: Callable[..., Any], save: Callable[..., None] | None = None) -> Callable[..., Any]:
    """Register a backward rule and a vmap rule with a custom operator; return a function for torch.func as well.

    An operator's registered autograd rule is refused inside torch.func.grad, where an autograd.Function of the same
    rule is accepted; vmap goes through the registered rule in both cases.
    """
    op.register_autograd(rule, setup_context=save)
    op.register_vmap(_loop_over_batch(op))

    def keep_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        return None

    class Transformable(torch.autograd.Function):
        generate_vmap_rule = True
        forward = staticmethod(lambda *args: op(*args))
        setup_context = staticmethod(save or keep_nothing)
        backward = staticmethod(rule)

    @functools.wraps(op._init_fn)
    def call(*args: Any) -> Any:
        return Transformable.apply(*args) if torch._C._are_functorch_transforms_active() else op(*args)

    return call
