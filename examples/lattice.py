"""Watch a lattice appear: small models learn to complete parallelograms on a 5 x 5 grid that they never see.

    python examples/lattice.py

Trains several standard and several harmonic MLPs; the runs of one head are one ensemble. Prints how much of each
embedding lies in a plane and how much of it no lattice explains. Draws the first run of each head.

    pip install harmax-lab
"""

import argparse

import numpy as np

from harmax.analysis import explained_variance, lattice_fit, project
from harmax_lab import Ensemble, Plan, fit
from harmax_lab.models import MLP
from harmax_lab.tasks import find_task, make_split


def main(epochs: int = 150, seeds: int = 4, output: str | None = "lattice.svg") -> dict[str, float]:
    """Train, print, draw, and return the median share of variance that no lattice explains, by head."""
    task = find_task("lattice")
    splits = [make_split(task, seed) for seed in range(seeds)]
    residuals, planes = {}, {}
    for head, options in {"linear": {}, "harmonic": {"exponent": 2.0}}.items():

        def build(head: str = head, options: dict[str, float] = options) -> MLP:
            return MLP(task.vocabulary, task.inputs, head=head, **options)

        ensemble = Ensemble(build, range(seeds), device="cpu")
        history = fit(ensemble, splits, Plan(epochs=epochs))
        points = [model.embedding.detach().numpy() for model in ensemble]
        fits = [lattice_fit(one, task.structure.values, components=None) for one in points]
        residuals[head] = float(np.median([one.residual for one in fits]))
        planes[head] = project(points[0])
        in_plane = np.median([explained_variance(one) for one in points])
        print(
            f"{head}: test accuracy {np.median(history.test_accuracy[:, -1]):.2f}, in a plane {in_plane:.1%}, "
            f"left by the best lattice {residuals[head]:.2%} (medians of {seeds} runs)"
        )
    if output:
        draw(planes, task.structure.values, output)
    return residuals


def draw(planes: dict[str, np.ndarray], coordinates: np.ndarray, output: str) -> None:
    """Draw each head's embedding in its first two components, neighbors on the grid joined by lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    for axes, (head, points) in zip(figure.subplots(1, 2), planes.items(), strict=True):
        for first in range(len(points)):
            for second in range(first):
                if np.abs(coordinates[first] - coordinates[second]).sum() == 1:
                    axes.plot(*points[[first, second]].T, color="#bbbbbb", zorder=1)
        axes.scatter(*points.T, c=coordinates[:, 0], cmap="viridis", zorder=2)
        axes.set(title=f"{head} head", aspect="equal", xticks=[], yticks=[])
    figure.savefig(output)
    print(output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--output", default="lattice.svg", help="where to draw")
    arguments = parser.parse_args()
    main(arguments.epochs, arguments.seeds, arguments.output)
