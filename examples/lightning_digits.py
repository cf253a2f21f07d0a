"""Train a network with a harmonic head in Lightning: the loss is the head's own, and a checkpoint brings it back.

python examples/lightning_digits.py

pip install "harmax[sklearn]" lightning       the data is inside the wheel of scikit-learn: no download
"""

import tempfile
from pathlib import Path

import lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from harmax import HarmonicHead


class Classifier(lightning.LightningModule):
    """A body, a head, and the loss of the head. Nothing else is special."""

    def __init__(self, width: int = 32, exponent: float = 4.0) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width))
        self.head = HarmonicHead(width, 10, exponent=exponent)

    def forward(self, x: Tensor) -> Tensor:
        """Return log-probabilities."""
        return self.head(self.body(x))

    def training_step(self, batch: list[Tensor]) -> Tensor:
        """Return the loss of a batch; the first batch also finds the scale of the head."""
        x, y = batch
        return self.head(self.body(x), y)

    def validation_step(self, batch: list[Tensor]) -> None:
        """Log the accuracy."""
        x, y = batch
        self.log("accuracy", (self(x).argmax(1) == y).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return one optimizer for body and centers."""
        return torch.optim.AdamW(self.parameters(), 0.005)


def main(epochs: int = 10) -> dict[str, float]:
    """Train, validate, and validate what a checkpoint brings back."""
    lightning.seed_everything(0)
    data = load_digits()
    x, y = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    fit = DataLoader(TensorDataset(x[:1297], y[:1297]), batch_size=64, shuffle=True)
    test = DataLoader(TensorDataset(x[1297:], y[1297:]), batch_size=500)
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False
    )
    model = Classifier()
    trainer.fit(model, fit)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "digits.ckpt"
        trainer.save_checkpoint(file)
        again = Classifier.load_from_checkpoint(file)
    found = {
        name: trainer.validate(one, test, verbose=False)[0]["accuracy"]
        for name, one in (("trained", model), ("loaded", again))
    }
    print(f"scale {again.head.scale:g}, found by the first batch and loaded with the checkpoint")
    print(", ".join(f"{name}: {accuracy:.1%} of 500 test digits right" for name, accuracy in found.items()))
    return found


if __name__ == "__main__":
    main()
