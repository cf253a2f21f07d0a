"""The processes of a run: which one this is, what they agree on, and how a model is distributed over them."""

import gc
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from harmax.environment import choose_device
from harmax.sharding import local_part, whole

GRAPHS = 256
T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """This process among all: rank `rank` of `size`."""

    rank: int
    size: int
    device: torch.device
    copies: int = 1
    """Processes that compute the same data together: all of them with tensor parallelism."""

    @property
    def parts(self) -> int:
        """Into how many parts a batch is divided."""
        return self.size // self.copies

    @property
    def part(self) -> int:
        """Which part of a batch is this process's."""
        return self.rank // self.copies

    @property
    def leads(self) -> bool:
        """Whether this process writes files and prints messages."""
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """Sum over all parts of a batch."""
        if dist.is_initialized():
            dist.all_reduce(values)
        return values if self.copies == 1 else values / self.copies

    def tell(self, value: T) -> T:
        """Return the first process's value on every process."""
        if not dist.is_initialized():
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def lead(self, action: Callable[[], object]) -> None:
        """Do something on the first process alone, while the others wait; its error is raised on every process."""
        failure: OSError | ValueError | None = None
        if self.leads:
            try:
                action()
            except (OSError, ValueError) as error:
                failure = error
        if (failure := self.tell(failure)) is not None:
            raise failure


class RunSpec(Protocol):
    """The fields that every specification has, whatever it trains."""

    @property
    def engine(self) -> str:
        """One of single, ddp, fsdp and, for a language model, tp."""

    @property
    def compile(self) -> bool:
        """Whether to compile the model."""

    @property
    def seed(self) -> int:
        """Seed of the run."""

    @property
    def log_every(self) -> int:
        """Steps between lines of metrics."""

    @property
    def checkpoint_every(self) -> int:
        """Steps between checkpoints."""

    @property
    def keep(self) -> int:
        """Number of checkpoints to keep."""

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the numbers, as plain values."""


@contextmanager
def joined(spec: RunSpec, device: str | None = None) -> Iterator[World]:
    """Join the processes that torchrun started, or be the only one."""
    launched = dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))
    if spec.engine == "single":
        if launched > 1:
            raise ValueError(f"`engine` must be ddp or fsdp with {launched} processes, got single; name one.")
        yield World(0, 1, torch.device(choose_device(device)))
        return
    # torchrun's processes find each other once: a program of several runs starts the group itself, and keeps it.
    starts = not dist.is_initialized()
    if starts and "RANK" not in os.environ:
        raise ValueError(
            f"`engine` {spec.engine} must be started by torchrun, got a plain process; put `torchrun --nproc-per-node "
            "N -m harmax` in place of `harmax`, or take engine single."
        )
    place = torch.device(choose_device(device))
    if place.type == "cuda":
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(place)
    if starts:
        start_group(place)
    try:
        size = dist.get_world_size()
        yield World(dist.get_rank(), size, place, copies=size if spec.engine == "tp" else 1)
    finally:
        if starts:
            # Models lie in cycles, and one that outlives its group keeps the group's threads running.
            gc.collect()
            dist.destroy_process_group()


def start_group(place: torch.device) -> None:
    """Let the processes that torchrun started find each other.

    torchrun keeps one store through all restarts, in which a process may find the address of one that was killed before
    it, and wait for it (pytorch/pytorch#135712). On one machine the number of the restart keeps them apart. Several
    machines may count differently; there TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 makes torchrun take a new store.
    """
    settings: dict[str, Any] = {"device_id": place} if place.type == "cuda" else {}
    values = os.environ
    if values.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and values.get("GROUP_WORLD_SIZE") == "1":
        store = dist.TCPStore(values["MASTER_ADDR"], int(values["MASTER_PORT"]), is_master=False)
        settings |= {"store": dist.PrefixStore(f"restart {values['TORCHELASTIC_RESTART_COUNT']}", store)}
        settings |= {"rank": int(values["RANK"]), "world_size": int(values["WORLD_SIZE"])}
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo", **settings)


def spread(
    loss: nn.Module,
    spec: RunSpec,
    world: World,
    *,
    blocks: Iterable[nn.Module] = (),
    divide: Callable[[DeviceMesh], None] | None = None,
) -> nn.Module:
    """Move a model to its device and hand it to the engine; its parameters are final afterwards.

    Args:
        loss: the model with its loss.
        spec: names the engine.
        world: the processes.
        blocks: parts that fsdp gathers one at a time.
        divide: divides the layers of the model among the processes of a mesh, for tp.
    """
    loss.to(world.device)
    if spec.compile:
        _make_room_for_graphs()
    if spec.engine == "tp" and divide is not None:
        divide(init_device_mesh(world.device.type, (world.size,)))
        for block in blocks if spec.compile else ():
            block.compile(dynamic=False)
        return loss
    if spec.compile and spec.engine != "fsdp":
        loss.compile(dynamic=False)  # batches have one shape, whatever another run of this process had
    if spec.engine == "ddp":
        ids = [world.device] if world.device.type == "cuda" else None
        return DistributedDataParallel(loss, device_ids=ids)
    if spec.engine == "fsdp":
        mesh = init_device_mesh(world.device.type, (world.size,))
        for block in blocks:
            if spec.compile:
                block.compile(dynamic=False)
            fully_shard(block, mesh=mesh)
        # What is left, embedding and head among it, is one group: a tied matrix is sharded once.
        fully_shard(loss, mesh=mesh)
    return loss


def _make_room_for_graphs() -> None:
    """Raise torch's limit on compiled graphs, which all runs of a process share: beyond it nothing is compiled."""
    import torch._dynamo.config as config

    for limit in ("recompile_limit", "accumulated_recompile_limit"):
        setattr(config, limit, max(GRAPHS, getattr(config, limit)))


def without_exchange(module: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Surround a backward pass whose gradients are only added up; those of the `last` one are exchanged."""
    if isinstance(module, DistributedDataParallel):
        return nullcontext() if last else module.no_sync()
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
    return nullcontext()


def gather_no_longer(module: nn.Module) -> None:
    """Shard parameters again after a forward pass without a backward pass, which would have done it."""
    if isinstance(module, FSDPModule):
        module.reshard()


def clip_gradients(parameters: Sequence[nn.Parameter], limit: float) -> Tensor:
    """Scale gradients to a norm of at most `limit`, and return the norm before; every process must call this."""
    divided = [parameter for parameter in parameters if isinstance(parameter, DTensor)]
    if len(divided) in (0, len(parameters)):
        return whole(nn.utils.clip_grad_norm_(parameters, limit))
    # Torch does not mix the two kinds.
    kinds = (divided, [parameter for parameter in parameters if not isinstance(parameter, DTensor)])
    norms = [whole(nn.utils.clip_grad_norm_(kind, math.inf)) for kind in kinds]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        if parameter.grad is not None:
            local_part(parameter.grad).mul_(factor)
    return norm


def autocast(dtype: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context in which a specification's `dtype`, bf16 or float32, is used for products."""
    return nullcontext() if dtype == "float32" else torch.autocast(device.type, dtype=torch.bfloat16)


def send(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to a device without waiting for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
