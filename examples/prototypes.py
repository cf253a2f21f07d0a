"""Read a classifier by its centers: which one is nearest, what lies next to it, and what abstaining gains.

    python examples/prototypes.py                        writes decisions.png
    python examples/prototypes.py --output out.png       any format matplotlib knows

A small network on 8 x 8 digits, trained in an ordinary loop. Its centers are points in a space of 32 features. One
cannot look at them, but one can look at the training images next to them. `harmax prototypes FOLDER` does this for a
ResNet.

    pip install "harmax[sklearn,figures]"                the data is inside the wheel of scikit-learn: no download
"""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from harmax import HarmonicHead
from harmax.analysis.outliers import abstention_curve
from harmax.data.images import load_images
from harmax.figures import house_style
from harmax.inspect import PrototypeView, draw_decisions, nearest_images, prototype_view


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int) -> None:
    """Fit a classifier: nothing in this loop knows about harmonic loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def main(steps: int = 300, output: str = "decisions.png") -> dict[str, float]:
    """Train, ask for the prototypes, print what they say, and draw some decisions."""
    torch.manual_seed(0)
    known, new = load_images("digits", "train"), load_images("digits", "test")
    x, x_new = (torch.tensor(images.pixels, dtype=torch.float32) / 255 for images in (known, new))
    head = HarmonicHead(32, 10)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), head)
    train(model, x, torch.tensor(known.labels), steps)

    near = nearest_images(x, head, model=model, count=5)  # places of the training images next to each center
    view = prototype_view(x_new, head, model=model)  # the two nearest centers of each new image
    correct = view.winner == new.labels
    curve = abstention_curve(correct, -view.ratio)  # the least clear ones are left out first
    found = {
        "accuracy": float(correct.mean()),
        "own": float((known.labels[near.images] == np.arange(10)[:, None]).mean()),
        "clearest": float(curve.accuracy[np.searchsorted(curve.coverage, 0.8)]),
    }
    print(f"{found['accuracy']:.1%} of {len(correct)} digits of other hands right")
    print(f"{found['own']:.1%} of the 5 training images next to a center are of its class")
    print(f"{found['clearest']:.1%} right where the clearest 80 % are answered")

    order = np.argsort(view.ratio)
    rows = np.concatenate([order[correct[order]][[0, -1]], order[~correct[order]][:4]])  # clear, unclear, mistakes
    shown = PrototypeView(*(column[rows] for column in view))
    with house_style():
        figure = draw_decisions(
            x_new[rows].numpy(), shown, new.labels[rows], known.classes, x[near.images[:, 0]].numpy()
        )
        figure.savefig(output, dpi=160)
    print(output)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="full-batch steps of Adam")
    parser.add_argument("--output", default="decisions.png", help="where the picture goes")
    arguments = parser.parse_args()
    main(arguments.steps, arguments.output)
