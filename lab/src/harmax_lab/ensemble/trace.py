"""From a function of tensors to a graph, its memory, and its compiled form."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

COMPILE_STEPS = 6000
"""Steps from which compiling pays: both its time and what it saves a step grow with the number of operations."""


class Traced:
    """A function written out as a graph of tensor operations for given shapes; the call takes the same nesting.

    Args:
        function: takes nested tuples of tensors.
        device: where it will run.
        arguments: tensors on "meta" that have the shapes; no memory is taken for them.
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
        """Run it."""
        with torch.no_grad():
            return self._call(*pytree.tree_leaves(arguments))

    def compile(self) -> None:
        """Compile at the first call; where no compiler works, say so once and go on without.

        By inductor alone: dynamo has nothing to find in a graph, and would look again at every call.
        """

        def first(*tensors: Tensor) -> Any:
            try:
                with warnings.catch_warnings():
                    # float32 products are meant.
                    warnings.filterwarnings("ignore", "TensorFloat32")
                    compiled = _compile(self.graph, tensors)
            except Exception as error:
                if not _is_compiler_error(error):
                    raise
                warnings.warn(
                    f"torch.compile failed ({_first_line(error)}); training goes on, several times slower.",
                    stacklevel=2,
                )
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
            # A view keeps alive what it looks at.
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
    """Compile a graph for tensors of these shapes, or find on disk what was compiled for them before.

    Outside of a tracing inductor keeps its kernels on disk and nothing else; inside of one, shapes would be variables,
    and the code slower, if they were not said to be fixed.
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
    """Whether an operation returns memory of its first argument: a view of it, or itself, changed in place."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(result.alias_info is not None for result in schema.returns)


def _bytes(node: fx.Node) -> int:
    """Bytes of a result; none for what was there before."""
    if node.op != "call_function":
        return 0
    values = pytree.tree_leaves(node.meta.get("val"))
    return sum(value.numel() * value.element_size() for value in values if isinstance(value, Tensor))


def _options() -> dict[str, Any]:
    """Options under which the same graph is compiled to the same additions every time, on a GPU too.

    A kernel's shape decides the order of its sums and which products are fused with them, so none may be chosen by a
    stopwatch. Of reductions in one piece the shape picked without one is poor: a block for each row, however short.
    """
    from torch._inductor import config

    options = {"triton.autotune_pointwise": False, "triton.persistent_reductions": False}
    # Older versions have no such switch.
    return {**options, "deterministic": True} if hasattr(config, "deterministic") else options


def _is_compiler_error(error: Exception) -> bool:
    return type(error).__module__.startswith(("torch._inductor", "torch._dynamo", "triton")) or isinstance(
        error, (FileNotFoundError, ImportError)
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
