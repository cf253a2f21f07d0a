"""A made-up document with data for every view of the explorer."""

from typing import Any

import numpy as np
import torch

from harmax import HarmonicHead
from harmax.inspect.explorer import (
    Example,
    ExplorerDocument,
    GrownRun,
    Shown,
    ShownClassifier,
    grown_run,
    shown_classifier,
)
from harmax.inspect.explorer.classifiers import data_address
from harmax.inspect.explorer.costs import measured_costs
from harmax.inspect.explorer.document import Figure, JudgedClaim, JudgedExperiment, JudgedResult, Verdicts

SNAPSHOTS, TOKENS, FEATURES = 12, 31, 16


def embedding(tokens: int = TOKENS, seed: int = 0) -> np.ndarray:
    """Snapshots from a cloud to a circle, (T, K, D)."""
    generator = np.random.default_rng(seed)
    turn = 2 * np.pi * np.arange(tokens) / tokens
    end = np.zeros((tokens, FEATURES))
    end[:, :3] = np.stack([3 * np.cos(turn), 2 * np.sin(turn), 0.5 * np.sin(3 * turn)], 1)
    start = 0.3 * generator.normal(size=(tokens, FEATURES))
    return np.stack([(1 - part) * start + part * end for part in np.linspace(0, 1, SNAPSHOTS)])


def grown(head: str, seed: int, tokens: int = TOKENS, **other: Any) -> GrownRun:
    """A training of modular addition."""
    curve = np.linspace(0.05, 1, 100)
    named = {"task": "modular_addition", "task_title": "Modular addition", "protocol": "authors", "model": "mlp"}
    return grown_run(
        embedding(tokens, seed),
        (0, *range(1, 20, 2), 100),
        (curve, curve**2),
        colors=["#0072B2"] * tokens,
        edges=[(token, (token + 1) % tokens) for token in range(tokens)],
        labels=[str(token) for token in range(tokens)],
        head=head,
        seed=seed,
        **{**named, **other},
    )


def classifier(kind: str) -> ShownClassifier:
    """A classifier of small pictures, of texts or of rows."""
    generator = np.random.default_rng(1)
    centers = generator.normal(size=(4, 64)).astype(np.float32)
    labels = np.arange(200) % 4
    features = (centers[labels] + 5.0 * generator.normal(size=(200, 64))).astype(np.float32)
    head = HarmonicHead(64, 4)
    head.weight.data.copy_(torch.from_numpy(centers))

    def show(place: int) -> Example:
        title = f"example {place}"
        if kind == "texts":
            return Example(title, text=f"A sentence about thing {place}.")
        if kind == "rows":
            return Example(title, row={"length": f"{features[place, 0]:.2f}", "width": f"{features[place, 1]:.2f}"})
        return Example(title, data_address(0.5 + features[place].reshape(8, 8) / 8))

    side = Shown(features, labels, show)
    return shown_classifier(head, ["north", "east", "south", "west"], side, side, name=kind, examples=40)


def verdicts() -> Verdicts:
    """Three claims of two experiments."""
    picture = data_address(np.zeros((8, 8)))
    experiments = (
        JudgedExperiment("one", "One experiment", "Fig. 1", "https://example.org/one", "harmax run one", ()),
        JudgedExperiment("two", "Two experiments", "Fig. 2", "", "harmax run two", (Figure("curves", picture, ""),)),
    )

    def claim(name: str, experiment: str, verdict: str, place: str, control: bool = False) -> JudgedClaim:
        result = JudgedResult("published runs", "full", verdict, f"What {name} found.", "https://example.org/runs")
        return JudgedClaim(name, experiment, f"Claim {name}.", "Its rule.", place, (place,), control, (result,))

    claims = (
        claim("a", "one", "reproduced", "Sec. 1"),
        claim("b", "two", "not reproduced", "Sec. 2"),
        claim("c", "two", "does not hold", "Sec. 2", control=True),
    )
    return Verdicts(experiments, claims)


def planted_page() -> ExplorerDocument:
    """Data for every view."""
    return ExplorerDocument(
        title="harmax explorer",
        made_by="a test",
        source="nowhere",
        growth=tuple(grown(head, seed) for head in ("linear", "harmonic") for seed in (0, 1)),
        classifiers=tuple(map(classifier, ("pictures", "texts", "rows"))),
        verdicts=verdicts(),
        costs=measured_costs(),
        notes=("A note.",),
    )
