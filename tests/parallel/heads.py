"""Heads under `parallelize_module`, FSDP and `loss_parallel`: each beside the same head on one process."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import loss_parallel, parallelize_module

from harmax import HarmonicHead, LearnableHarmonicHead, harmonic_loss
from harmax.hf.head import LearnableTokenHead, TokenHead
from harmax.parallel import ClassParallel

HEADS: dict[str, Callable[[], HarmonicHead]] = {
    "13 classes, prior": lambda: HarmonicHead(16, 13, prior=True),
    "8192 classes": lambda: HarmonicHead(16, 8192, scale=0.5),
    "9 classes, learned exponent": lambda: LearnableHarmonicHead(16, 9, prior=True),
    "50 tokens in 64 rows": lambda: TokenHead(16, 50, rows=64, prior=True),
    "50 tokens in 64 rows, learned exponent": lambda: LearnableTokenHead(16, 50, rows=64),
}
LAYOUTS = {"same tokens": Replicate(), "divided sequences": Shard(1)}


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def build(kind: str, dtype: torch.dtype = torch.float32) -> HarmonicHead:
    torch.manual_seed(0)
    return HEADS[kind]().to(dtype)


def batch(classes: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    target_BT = torch.randint(classes, (3, 8), generator=random)
    target_BT[0, 0] = -100
    return torch.randn(3, 8, 16, generator=random), target_BT


def train_once(
    head: HarmonicHead, features: Tensor, target: Tensor, loss: Callable[[Any, Tensor, Tensor], Tensor]
) -> dict[str, Tensor]:
    """Return the loss and all gradients; that of the features is this rank's part."""
    head.zero_grad()
    features = features.clone().requires_grad_()
    value = loss(head, features, target)
    value.backward()
    assert features.grad is not None
    gradients = {name: whole(p.grad) for name, p in head.named_parameters() if p.grad is not None}
    return {"loss": whole(value).detach(), "features": features.grad, **gradients}


def fused(head: HarmonicHead, features: Tensor, target: Tensor) -> Tensor:
    return head(input=features, target=target, label_smoothing=0.1)


def of_log_probabilities(head: HarmonicHead, features: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(whole(head(features)).flatten(0, 1), target.flatten())


def of_divided_log_probabilities(head: HarmonicHead, features: Tensor, target: Tensor) -> Tensor:
    log_p_BTV = head(features)
    assert log_p_BTV.placements == (Shard(2),)
    return F.cross_entropy(log_p_BTV.flatten(0, 1), target.flatten())


def of_plain_features(head: HarmonicHead, features: Tensor) -> dict[str, Tensor]:
    """What a head with divided centers finds for features that are no DTensor, beside its forward."""
    found = {"distance": head.distance(features), "entropy": head.entropy(features)}
    if head.prior is None:
        found |= dict(head.to_argmax_linear().named_parameters())
    return {name: value.detach() for name, value in found.items()}


def compare_heads(mesh: DeviceMesh) -> dict[str, Any]:
    """Return what ranks found, what one process finds, and what it finds in float64, by name."""
    return {**dict(compare(kind, layout, mesh) for kind in HEADS for layout in LAYOUTS), "fsdp": compare_fsdp(mesh)}


def compare(kind: str, layout: str, mesh: DeviceMesh) -> tuple[str, Any]:
    alone, exact, head = build(kind), build(kind, torch.float64), build(kind)
    plan = ClassParallel(input_layouts=LAYOUTS[layout], use_local_output=False)
    parallelize_module(head, mesh, plan)
    features, target = batch(alone.out_features)
    cut = mesh.size() if LAYOUTS[layout].is_shard() else 1
    own = features.chunk(cut, 1)[mesh.get_local_rank() % cut]

    def all_three(loss: Any, loss_of_ranks: Any) -> list[dict[str, Tensor]]:
        found = train_once(head, own, target, loss_of_ranks)
        ones = [train_once(one, features.to(one.weight.dtype), target, loss) for one in (alone, exact)]
        for one in ones:
            one["features"] = one["features"].chunk(cut, 1)[mesh.get_local_rank() % cut]
        return [found, *ones]

    results = {"fused": all_three(fused, fused)}
    results["plain features"] = [of_plain_features(one, own.to(one.weight.dtype)) for one in (head, alone, exact)]
    assert head.scale == alone.scale == exact.scale
    # Padding makes shares that no placement describes, and torch's loss_parallel wants a class on every rank.
    if isinstance(alone, TokenHead) or (alone.out_features, mesh.size()) == (9, 4):
        results["log-probabilities"] = all_three(of_log_probabilities, of_log_probabilities)
    else:
        with loss_parallel():
            results["log-probabilities"] = all_three(of_log_probabilities, of_divided_log_probabilities)
    return f"{kind}, {layout}", results


def compare_fsdp(mesh: DeviceMesh) -> Any:
    """The fused loss with weights as FSDP2 stores them, outside the head's own forward."""
    features, target = batch(50)
    rows, rank = features.flatten(0, 1).chunk(mesh.size()), mesh.get_local_rank()
    target = target.flatten().clamp(min=0)

    def train(fsdp: bool, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 16), HarmonicHead(16, 50, scale=1.0, prior=True)).to(dtype)
        if fsdp:
            for part in model:
                fully_shard(part, mesh=mesh)
        body, head = model
        x, y = (rows[rank], target.chunk(mesh.size())[rank]) if fsdp else (features.flatten(0, 1), target)
        harmonic_loss(body(x.to(dtype)), head.weight, y, prior=head.prior).backward()
        return {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}

    return {"fused": [train(True), train(False), train(False, torch.float64)]}
