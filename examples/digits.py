"""Train a harmonic head on 8 x 8 digits in an ordinary loop, and look at its weights: they are digits.

python examples/digits.py                     writes digits.svg
python examples/digits.py --output out.png    any format matplotlib knows

pip install "harmax[sklearn,figures]"         the data is inside the wheel of scikit-learn: no download
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

from harmax import HarmonicHead


def train(head: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int) -> torch.nn.Module:
    """Fit any head to the data: nothing in this loop knows about harmonic loss."""
    optimizer = torch.optim.Adam(head.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(head(x), y).backward()
        optimizer.step()
    return head


def draw(heads: dict[str, torch.nn.Module], accuracies: dict[str, float], output: str) -> None:
    """One row of pictures a head, one picture a class."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2.1), layout="constrained")
    axes = figure.subplots(len(heads), 10)
    for row, (name, head) in enumerate(heads.items()):
        weight = (head.centers if name == "harmonic" else head.weight.detach()).numpy().reshape(10, 8, 8)
        limit = abs(weight).max()
        for digit in range(10):
            ax = axes[row, digit]
            ax.imshow(weight[digit], cmap="PuOr_r", vmin=-limit, vmax=limit)
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(False)
        axes[row, 0].set_ylabel(f"{name}\n{accuracies[name]:.1%}", rotation=0, ha="right", va="center")
    figure.savefig(output, dpi=160)


def main(steps: int = 500, output: str = "digits.svg") -> dict[str, float]:
    """Train a harmonic and a linear head, print their test accuracy, draw their weights."""
    torch.manual_seed(0)
    data = load_digits()
    x = torch.tensor(data.data, dtype=torch.float32) / 16
    y = torch.tensor(data.target)
    order = torch.randperm(len(x))
    fit, test = order[:1297], order[1297:]
    heads = {"harmonic": HarmonicHead(64, 10), "linear": torch.nn.Linear(64, 10)}
    accuracies = {}
    for name, head in heads.items():
        train(head, x[fit], y[fit], steps)
        accuracies[name] = (head(x[test]).argmax(1) == y[test]).float().mean().item()
        print(f"{name:>8}: {accuracies[name]:.1%} of {len(test)} test digits right")
    draw(heads, accuracies, output)
    return accuracies


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500, help="full-batch steps of Adam")
    parser.add_argument("--output", default="digits.svg", help="where the picture goes")
    arguments = parser.parse_args()
    main(arguments.steps, arguments.output)
