"""Tracing a function of tensors: its graph, its memory, and its compiled form."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

COMPILE_STEPS = 6000
"""Compiling pays from this number of steps: its time and the time it saves per step grow with the operations."""


class Traced:
    """A function as a graph of tensor operations for given shapes.

    Args:
        function: takes nested tuples of tensors.
        device: where it will run.
        arguments: tensors on "meta" with the shapes. They need no memory.
    """

    def __init__(self, function: Callable[..., Any], device: torch.device, *arguments: Any) -> None:
        shapes, self._spec = pytree.tree_flatten(arguments)

        def flattened(*tensors: Tensor) -> Any:
            return function(*pytree.tree_unflatten(list(tensors), self._spec))

        with FakeTensorMode():
            flat = [torch.empty(shape.shape, dtype=shape.dtype, device=device) for shape in shapes]
            self.graph: fx.GraphModule = make_fx(flattened, tracing_mode="real")(*flat)
        self._call: Callable[..., Any] = self.graph
        self.compiled = False

    def __call__(self, *arguments: Any) -> Any:
        """Run the graph. The arguments must be nested as those it was traced with."""
        with torch.no_grad():
            return self._call(*pytree.tree_leaves(arguments))

    def compile(self) -> None:
        """Compile at the first call. If no compiler works, warn once and run the graph as it is.

        Only inductor is used: dynamo would find nothing in a graph, but would check it at every call.
        """

        def first(*tensors: Tensor) -> Any:
            try:
                with warnings.catch_warnings():
                    # Products are in float32 on purpose.
                    warnings.filterwarnings("ignore", "TensorFloat32")
                    compiled = _compile(self.graph, tensors)
            except Exception as error:
                if not _is_compiler_error(error):
                    raise
                why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
                warnings.warn(f"torch.compile failed ({why}); training goes on, several times slower.", stacklevel=2)
                self._call, self.compiled = self.graph, False
            else:
                self._call = compiled
            return self._call(*tensors)

        self._call, self.compiled = first, True

    def peak_bytes(self) -> int:
        """Return the most bytes that intermediate results hold at once when the graph runs node by node."""
        owner: dict[fx.Node, fx.Node] = {}
        last_use: dict[fx.Node, fx.Node] = {}
        for node in self.graph.graph.nodes:
            # A view keeps its base alive.
            owner[node] = owner[node.all_input_nodes[0]] if _is_view(node) else node
            for used in node.all_input_nodes:
                last_use[owner[used]] = node
        freed: dict[fx.Node, int] = {}
        for used, node in last_use.items():
            freed[node] = freed.get(node, 0) + _bytes(used)
        held = peak = 0
        for node in self.graph.graph.nodes:
            held += _bytes(node) if owner[node] is node else 0
            peak = max(peak, held)
            held -= freed.get(node, 0)
        return peak


def _compile(graph: fx.GraphModule, tensors: Sequence[Tensor]) -> Callable[..., Any]:
    """Compile a graph for tensors of these shapes, or load its compiled form from disk.

    Without a tracing context, inductor stores only kernels on disk. Within one, it would make shapes variable, which is
    slower, so they are marked as fixed.
    """
    import torch._inductor
    from torch._guards import TracingContext, tracing
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv())
    fixed: list[Any] = [mode.from_tensor(tensor, static_shapes=True) for tensor in tensors]
    with tracing(TracingContext(mode)):
        compiled: Callable[..., Any] = torch._inductor.compile(graph, fixed, options=_options())
    return compiled


def _is_view(node: fx.Node) -> bool:
    """Return whether the result of an operation has the memory of its first argument (a view, or in place)."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(result.alias_info is not None for result in schema.returns)


def _bytes(node: fx.Node) -> int:
    """Return the bytes of a result; 0 for arguments and constants."""
    if node.op != "call_function":
        return 0
    values = pytree.tree_leaves(node.meta.get("val"))
    return sum(value.numel() * value.element_size() for value in values if isinstance(value, Tensor))


def _options() -> dict[str, Any]:
    """Return options with which the same graph is always compiled to the same arithmetic, also on a GPU.

    The shape of a kernel decides the order of its sums and which products are fused with them, so it must not depend on
    timings. Without timings inductor chooses bad shapes for persistent reductions: one block per row, however short.
    """
    from torch._inductor import config

    options = {"triton.autotune_pointwise": False, "triton.persistent_reductions": False}
    # Older versions do not have this option.
    return {**options, "deterministic": True} if hasattr(config, "deterministic") else options


def _is_compiler_error(error: Exception) -> bool:
    return type(error).__module__.startswith(("torch._inductor", "torch._dynamo", "triton")) or isinstance(
        error, (FileNotFoundError, ImportError)
    )
