"""GPT-2 in tensor parallelism: the processes divide attention heads, hidden units and tokens among themselves.

All of them compute the same batch. The vectors between two layers are whole on every process. Norms and positions are
too, because they are small.

Shape suffixes: B sequences, T tokens, D features.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import Placement

from harmax.heads import HarmonicHead
from harmax.parallel import ClassParallel
from harmax.sharding import local_part

PARTS = 3
"""Query, key and value, which GPT-2 computes by one matrix."""


class Divided(ParallelStyle):
    """A plan for a layer of transformers that multiplies by a matrix: how its tensors are distributed."""

    def __init__(self, *, weight: Placement, bias: Placement, input: Placement, output: Placement) -> None:
        super().__init__()
        self.own, self.input, self.output = {"weight": weight, "bias": bias}, input, output

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, parameter in list(module.named_parameters(recurse=False)):
            if not isinstance(parameter, DTensor):
                module.register_parameter(
                    name, nn.Parameter(distribute_tensor(parameter, device_mesh, [self.own[name]]))
                )
        module.register_forward_pre_hook(
            lambda _, inputs: (DTensor.from_local(inputs[0], device_mesh, [self.input], run_check=False),)
        )
        module.register_forward_hook(lambda _, inputs, output: output.redistribute(placements=[self.output]).to_local())
        return module


class QueryKeyValue(nn.Module):
    """GPT-2's first layer of attention for some of the heads: from (B, T, D) to query, key and value beside each other.

    Every process has columns of all three, so the weight is (D, 3, D) and divided along its last dimension.
    """

    def __init__(self, layer: nn.Module, mesh: DeviceMesh) -> None:
        super().__init__()
        for name, parameter in layer.named_parameters():
            parts = parameter.detach().unflatten(-1, (PARTS, -1))
            divided = distribute_tensor(parts, mesh, [Shard(parts.ndim - 1)])
            self.register_parameter(name, nn.Parameter(divided))

    def forward(self, input_BTD: Tensor) -> Tensor:
        """Return this process's queries, keys and values."""
        weight: Any = self.weight
        bias: Any = self.bias
        # Each process has a part of the gradient of the input.
        same = DTensor.from_local(input_BTD, weight.device_mesh, [Replicate()], run_check=False)
        rows = same.to_local(grad_placements=[Partial()]).flatten(0, -2)
        output = torch.addmm(bias.to_local().flatten(), rows, weight.to_local().flatten(1))
        return output.view(*input_BTD.shape[:-1], -1)


def check_heads(n_head: int, processes: int) -> None:
    """Refuse a number of processes that cannot divide the attention heads among themselves."""
    if n_head % processes:
        raise ValueError(
            f"`n_head` ({n_head}) must be a multiple of the number of processes ({processes}) with engine tp; start "
            "another number of processes, or take engine fsdp."
        )


def divide(model: nn.Module, mesh: DeviceMesh) -> None:
    """Divide a GPT-2 among the processes of a mesh, in place. A head that is tied to the embedding stays so."""
    transformer: Any = model.transformer
    head: Any = model.lm_head
    tied = head.weight is transformer.wte.weight
    for block in transformer.h:
        block.attn.c_attn = QueryKeyValue(block.attn.c_attn, mesh)
        block.attn.num_heads //= mesh.size()
        block.attn.split_size //= mesh.size()
    columns = {"weight": Shard(1), "bias": Shard(0), "input": Replicate(), "output": Shard(-1)}
    rows = {"weight": Shard(0), "bias": Replicate(), "input": Shard(-1), "output": Replicate()}
    plan: dict[str, ParallelStyle] = {
        "transformer.wte": RowwiseParallel(input_layouts=Replicate()),
        "transformer.h.*.attn.c_proj": Divided(**rows),
        "transformer.h.*.mlp.c_fc": Divided(**columns),
        "transformer.h.*.mlp.c_proj": Divided(**rows),
    }
    parallelize_module(model, mesh, plan)
    if tied:
        head.weight = transformer.wte.weight
    if isinstance(head, HarmonicHead):
        parallelize_module(head, mesh, ClassParallel())
    else:  # every process has all logits
        style = Divided(weight=Shard(0), bias=Shard(0), input=Replicate(), output=Replicate())
        parallelize_module(head, mesh, style)


def divided_in_parts(model: nn.Module) -> set[str]:
    """Return the names of the parameters that a plain GPT-2 has in another shape."""
    layers = ((name, module) for name, module in model.named_modules() if isinstance(module, QueryKeyValue))
    return {f"{name}.{own}" for name, module in layers for own, _ in module.named_parameters()}


def joined_parts(tensor: DTensor) -> Tensor:
    """Return the tensor of a `QueryKeyValue` in the shape that a plain GPT-2 has, (D, 3 D) or (3 D), for a checkpoint.

    A matrix is divided along its rows then, and copied; a bias is whole.
    """
    mesh = tensor.device_mesh
    same = tensor.redistribute(mesh, [Replicate()])  # at once would need an exchange that gloo does not have
    if tensor.ndim == 2:
        return same.to_local().flatten()
    rows = same.redistribute(mesh, [Shard(0)]).to_local().flatten(1).clone()
    return DTensor.from_local(rows, mesh, [Shard(0)], run_check=False)


def take_joined_parts(joined: Tensor, tensor: DTensor) -> None:
    """Copy what `joined_parts` has made, and a checkpoint has filled, into the tensor of a `QueryKeyValue`."""
    placement = Replicate() if tensor.ndim == 2 else Shard(0)
    local = local_part(joined).unflatten(-1, (PARTS, -1))
    parts = DTensor.from_local(local, tensor.device_mesh, [placement], run_check=False)
    same = parts.redistribute(placements=[Replicate()])
    local_part(tensor).copy_(same.redistribute(placements=tensor.placements).to_local())


def with_joined_parts(tensors: dict[str, Tensor], names: set[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a checkpoint, those of each `QueryKeyValue` in the shape that a plain GPT-2 has.

    Args:
        tensors: named "model.NAME", or with the name of a moment in place of "model".
        names: from `divided_in_parts`.
    """
    for name, tensor in tensors.items():
        in_parts = name.partition(".")[2] in names
        yield name, joined_parts(tensor) if in_parts and isinstance(tensor, DTensor) else tensor
