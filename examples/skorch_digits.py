"""A network with a harmonic head as a classifier of scikit-learn, with skorch: a grid search over the exponent.

python examples/skorch_digits.py

pip install "harmax[sklearn]" skorch          the data is inside the wheel of scikit-learn: no download

The criterion is `nn.CrossEntropyLoss`, because the head returns log-probabilities. skorch's default, `nn.NLLLoss`,
expects probabilities and takes their logarithm.
"""

from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier
from torch import Tensor, nn

from harmax import HarmonicHead


class Network(nn.Module):
    """A body and a head; skorch passes `module__width` and `module__exponent`."""

    def __init__(self, width: int = 32, exponent: float = 4.0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width))
        self.head = HarmonicHead(width, 10, exponent=exponent)

    def forward(self, x: Tensor) -> Tensor:
        """Return log-probabilities."""
        return self.head(self.body(x))


def main(epochs: int = 10) -> dict[str, Any]:
    """Search, print the best exponent and its accuracy on held-out digits, and return them."""
    torch.manual_seed(0)
    data = load_digits()
    x, y = data.data.astype("float32") / 16, data.target
    classifier = NeuralNetClassifier(
        Network,
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.AdamW,
        lr=0.005,
        max_epochs=epochs,
        batch_size=64,
        train_split=None,
        verbose=0,
    )
    search = GridSearchCV(classifier, {"module__exponent": [1.0, 4.0, 16.0]}, cv=3).fit(x[:1297], y[:1297])
    probabilities = search.predict_proba(x[1297:])
    found = {
        "exponent": search.best_params_["module__exponent"],
        "accuracy": float((probabilities.argmax(1) == y[1297:]).mean()),
        "sums": probabilities.sum(1),
    }
    print(f"exponent {found['exponent']:g}: {found['accuracy']:.1%} of 500 test digits right")
    return found


if __name__ == "__main__":
    main()
