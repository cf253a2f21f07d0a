"""Heads in tensor parallelism: a plan for `torch.distributed.tensor.parallel.parallelize_module`.

Torch's own `ColwiseParallel` takes Linear layers and embeddings only.
"""

# D features, V classes

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle
from torch.distributed.tensor.placement_types import Placement

from harmax.heads import CenterHead, HarmonicHead


class ClassParallel(ParallelStyle):
    """Divide the classes of a harmonic head among the ranks of a mesh, evenly as far as that is possible.

    Given features, the head returns log-probabilities as `output_layouts` says; given a target too, the loss, which is
    a plain tensor and the same on every rank. With `use_local_output=False` torch's `loss_parallel` takes the
    log-probabilities. All ranks of the mesh must have the same targets.

    Args:
        input_layouts: how features that are no DTensor are distributed; None means that every rank has all of them.
            Shard(1) stands for sequences that the ranks divide.
        output_layouts: how log-probabilities are distributed; None means along the classes.
        use_local_output: whether to return this rank's log-probabilities as a plain tensor.

    Example::

        mesh = init_device_mesh("cuda", (8,))
        parallelize_module(model, mesh, {"lm_head": ClassParallel()})
        loss = model.lm_head(features, target)
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        super().__init__()
        self.input_layouts, self.output_layouts = input_layouts or Replicate(), output_layouts or Shard(-1)
        self.use_local_output = use_local_output

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, HarmonicHead) and type(module) is not CenterHead:
            raise TypeError(
                f"ClassParallel must be given a harmonic head, got {type(module).__name__}; name the head in the plan, "
                "and use torch's ColwiseParallel for a Linear."
            )
        if device_mesh.ndim != 1:
            raise ValueError(
                f"the mesh of ClassParallel must have one dimension, got {device_mesh}; give that part of it which "
                "divides the classes, such as mesh['tp']."
            )
        if module.out_features < device_mesh.size():
            raise ValueError(
                f"a head must have at least as many classes as ranks divide them ({device_mesh.size()}), got "
                f"{module.out_features}; leave it out of the plan."
            )
        for name, parameter in list(module.named_parameters()):
            if not isinstance(parameter, DTensor):  # as the weight of an embedding that was parallelized before
                placement = Shard(0) if name in ("weight", "prior") else Replicate()
                distributed = distribute_tensor(parameter, device_mesh, [placement], **self._source())
                module.register_parameter(name, nn.Parameter(distributed, requires_grad=parameter.requires_grad))

        def before(
            _: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            if inputs:
                return (self._distributed(inputs[0], device_mesh), *inputs[1:]), named
            return inputs, {**named, "input": self._distributed(named["input"], device_mesh)}

        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(lambda _, inputs, output: self._returned(output))
        return module

    def _source(self) -> dict[str, Any]:
        """The rank whose weights count, where this version of torch lets `parallelize_module` choose it."""
        return {"src_data_rank": self.src_data_rank} if hasattr(self, "src_data_rank") else {}

    def _distributed(self, input: Any, mesh: DeviceMesh) -> Any:
        if isinstance(input, DTensor):
            return input
        return DTensor.from_local(input, mesh, [self.input_layouts], run_check=False)

    def _returned(self, output: Any) -> Any:
        if not isinstance(output, DTensor):  # a loss
            return output
        output = output.redistribute(placements=[self.output_layouts])
        return output.to_local() if self.use_local_output else output
