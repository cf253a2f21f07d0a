"""A small language model whose layers and vocabulary several processes divide among themselves.

    python examples/tensor_parallel.py                               one process
    torchrun --nproc-per-node 2 examples/tensor_parallel.py          two, which compute the same numbers

Each process holds a part of the embedding, which is the head's weight too, and a part of the hidden units. No process
ever holds the scores of all words, or all centers.

    pip install harmax
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from harmax import HarmonicHead
from harmax.parallel import ClassParallel

WORDS, WIDTH = 251, 32  # 251 does not divide evenly: one process has a word less


class Model(nn.Module):
    """Predicts the word that follows from one word: an embedding, one hidden layer, and a head on the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.head = HarmonicHead(WIDTH, WORDS, exponent=24)

    def forward(self, words: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """The mean loss of the words that follow; it is the same on every process."""
        features = self.embedding(words)
        features = features + self.down(torch.tanh(self.up(features)))
        return self.head(features, following)


def parallelize(model: Model, mesh: DeviceMesh) -> None:
    """Divide the model, and let embedding and head share one divided weight."""
    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
    }
    parallelize_module(model, mesh, plan)
    model.head.weight = model.embedding.weight
    parallelize_module(model.head, mesh, ClassParallel())


def main(steps: int = 200) -> list[float]:
    """Learn a random order of all words, and return the loss of every step."""
    if "RANK" in os.environ:
        dist.init_process_group()
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cuda" if torch.cuda.is_available() else "cpu", (dist.get_world_size(),))
    if mesh.device_type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    torch.manual_seed(0)  # all processes draw the same model and the same batches
    model = Model().to(mesh.device_type)
    parallelize(model, mesh)
    successor = torch.randperm(WORDS).to(mesh.device_type)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        words = torch.randint(WORDS, (64,)).to(mesh.device_type)
        loss = model(words, successor[words])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if dist.get_rank() == 0 and (step % 50 == 0 or step == steps - 1):
            print(f"step {step:4d}  loss {losses[-1]:.5f}")
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    main(parser.parse_args().steps)
