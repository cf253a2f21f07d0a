"""Train a network with a harmonic head in a loop with accelerate, save its state, and go on from there.

python examples/accelerate_digits.py                                   saves its state in the folder digits_state
accelerate launch --num_processes 2 examples/accelerate_digits.py

pip install "harmax[sklearn,hf]"              the data is inside the wheel of scikit-learn: no download

The model returns its loss when it is given targets. So the forward pass goes through the prepared model, as DDP and
FSDP need it.
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from harmax import HarmonicHead


class Network(nn.Module):
    """A body and a head."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width))
        self.head = HarmonicHead(width, 10, exponent=4.0)

    def forward(self, x: Tensor, target: Tensor | None = None) -> Tensor:
        """Return log-probabilities, or the loss of a target."""
        return self.head(self.body(x), target)


def main(epochs: int = 10, output: str = "digits_state") -> dict[str, float]:
    """Train with a pause in the middle, in which everything is saved and loaded into new objects."""
    data = load_digits()
    x, y = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    fit = TensorDataset(x[:1297], y[:1297])
    accelerator, found = Accelerator(cpu=not torch.cuda.is_available()), {}

    def prepared() -> tuple[nn.Module, torch.optim.Optimizer]:
        set_seed(0)
        model = Network()
        return accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 0.005))

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> float:
        for epoch in range(first, last):
            order = torch.Generator().manual_seed(epoch)
            for part, target in accelerator.prepare(DataLoader(fit, batch_size=64, shuffle=True, generator=order)):
                optimizer.zero_grad()
                accelerator.backward(model(part, target))
                optimizer.step()
        with torch.no_grad():
            return float(model(x[1297:].to(accelerator.device), y[1297:].to(accelerator.device)))

    found["without a pause"] = train(*prepared(), 0, epochs)
    accelerator.free_memory()  # because it saves all models that it has prepared
    train(*prepared(), 0, epochs // 2)
    accelerator.save_state(output)
    accelerator.free_memory()
    model, optimizer = prepared()
    accelerator.wait_for_everyone()  # one process writes
    accelerator.load_state(output)
    found["with a pause"] = train(model, optimizer, epochs // 2, epochs)
    for name, loss in found.items():
        accelerator.print(f"{name}: test loss {loss:.6f}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="digits_state", help="folder for the saved state, seen by all processes")
    main(output=parser.parse_args().output)
