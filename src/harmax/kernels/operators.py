"""Parts that every custom operator here needs: exact products inside, and rules for autograd, vmap and torch.func."""

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Context in which products keep the dtype of their operands, also inside a caller's autocast region."""
    # Nothing to turn off must leave no trace in an exported graph. And autocast refuses the name "meta".
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)


def shapes_of(op: Any) -> Callable[[Callable[[Any], Any]], None]:
    """Register a function that makes empty outputs of an operator, for compilers and meta tensors.

    It gets the operator's arguments by name.
    """
    signature = inspect.signature(op._init_fn)

    def register(outputs: Callable[[Any], Any]) -> None:
        def fake(*arguments: Any, **named: Any) -> Any:
            given = signature.bind(*arguments, **named)
            given.apply_defaults()  # torch may leave out arguments that have their defaults
            _refuse_mixed_meta(given.arguments)
            return outputs(SimpleNamespace(**given.arguments))

        op.register_fake(fake)

    return register


def _refuse_mixed_meta(arguments: Mapping[str, Any]) -> None:
    """Refuse meta tensors among real ones. Torch calls a fake kernel for both, which returns memory without values."""
    given = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
    first = "x_BD" if "x_BD" in given else next(iter(given))
    expected = given[first].device
    for name, tensor in given.items():
        is_meta = tensor.device.type == "meta"
        # A number on the CPU may go with tensors on meta: nothing real comes back.
        if is_meta != (expected.type == "meta") and (is_meta or tensor.dim()):
            raise ValueError(
                f"`{name}` must be on the device of `{first}` ({expected}), got {tensor.device}; "
                "move one of them with .to(...)."
            )


def _on(device: torch.device) -> contextlib.AbstractContextManager[None]:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


class _FullPrecision:
    """Computes float32 products in float32 while any thread is inside: the setting is one for the whole process.

    TF32 and bf16 shortcuts round products that almost cancel in a distance. The first thread to enter turns them off,
    the last one to leave turns them on again.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._restore = threading.Lock(), 0, contextlib.ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._raise_precision()

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._restore.close()

    def _raise_precision(self) -> None:
        if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
            # Not the older setting: torch refuses to read it after a program has used this one.
            for matmul in (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul):  # type: ignore[attr-defined]
                if matmul.fp32_precision not in ("none", "ieee"):
                    self._restore.callback(setattr, matmul, "fp32_precision", matmul.fp32_precision)
                    matmul.fp32_precision = "ieee"
        elif torch.get_float32_matmul_precision() != "highest":
            self._restore.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("highest")


_FULL_PRECISION = _FullPrecision()


def with_true_products(body: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
    """Run an operator's body, whose first tensor argument names the device, with exact float32 products."""

    @functools.wraps(body)
    def run(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        device = next(arg.device for arg in args if isinstance(arg, Tensor))
        # Triton launches on the current device, whichever the tensors are on.
        with without_autocast(device), _FULL_PRECISION, _on(device):
            return body(*args, **kwargs)

    return run


def _loop_over_batch(op: Callable[..., Any]) -> Callable[..., Any]:
    """Make the vmap rule that calls an operator once per sample and stacks the results."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        def sample(index: int) -> Any:
            return op(*(arg if dim is None else arg.select(dim, index) for arg, dim in zip(args, in_dims, strict=True)))

        results = [sample(index) for index in range(info.batch_size)]
        if isinstance(results[0], Tensor):
            return torch.stack(results), 0
        return tuple(map(torch.stack, zip(*results, strict=True))), (0,) * len(results[0])

    return rule


_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)  # torch 2.6 has no name for it


def is_exporting() -> bool:
    """Whether torch.export traces, so that the graph must run where harmax and its operators are not installed."""
    return _is_exporting()


def is_wrapped(tensor: Tensor) -> bool:
    """Whether a tensor stands for a batch or for a level of a torch.func transform. Its values cannot be read then."""
    functorch = torch._C._functorch
    return functorch.is_functorch_wrapped_tensor(tensor) or functorch.is_legacy_batchedtensor(tensor)


def unwrapped(tensor: Tensor) -> Tensor:
    """Return what a wrapped tensor stands for, one level down."""
    return torch._C._functorch.get_unwrapped(tensor)


def is_traced(tensor: Tensor) -> bool:
    """Whether reading a tensor's values would break a graph or a transform."""
    return torch.compiler.is_compiling() or type(tensor) not in (Tensor, torch.nn.Parameter) or is_wrapped(tensor)


def tracks_gradient(tensor: Tensor) -> bool:
    """Whether autograd or a surrounding torch.func transform may ask for the tensor's gradient."""
    if torch.compiler.is_compiling():  # it cannot look through the wrappers, but knows whether there are any
        return tensor.requires_grad or torch._C._are_functorch_transforms_active()
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        if tensor.requires_grad:
            return True
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.requires_grad


def with_rules(op: Any, rule: Callable[..., Any], save: Callable[..., None] | None = None) -> Callable[..., Any]:
    """Register a backward rule and a vmap rule with a custom operator; return a function for torch.func as well.

    torch.func.grad refuses an operator's registered autograd rule, but accepts an autograd.Function with the same rule.
    vmap uses the registered rule in both cases.
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
        # Without the autograd.Function torch asks the schema about each argument: 60 us in which the device is idle.
        plain = torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active()
        return op(*args) if plain else Transformable.apply(*args)

    return call
