"""What the stored probes of some models say: where they look, how well they do, and how two arms differ."""

# S probes (of all models of an arm), N sentences, K draws

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from harmax.analysis.statistics import Interval, PairedDifference, bootstrap_interval, paired_difference
from harmax_lab.kit.store import CellResult
from harmax_lab.language.arms import HARMONIC, STANDARD
from harmax_lab.language.gpt2 import ArmCell, LanguageSpec
from harmax_lab.language.probe_training import SCORES, scores
from harmax_lab.language.probing import READOUTS

Results = Mapping[ArmCell, CellResult]

TITLES = {"sst2": "SST-2", "cola": "CoLA"}
READOUT_WORDS = {"last": "last token", "mean": "mean over tokens"}
# F1 in points and its deviation, by data set, layer and arm.
PAPER = {
    ("sst2", 0, STANDARD): (76.2, 1.5),
    ("cola", 0, STANDARD): (73.9, 1.0),
    ("sst2", 0, HARMONIC): (77.9, 1.1),
    ("cola", 0, HARMONIC): (74.3, 1.0),
    ("sst2", 6, STANDARD): (79.9, 1.3),
    ("cola", 6, STANDARD): (78.2, 1.7),
    ("sst2", 6, HARMONIC): (79.9, 1.7),
    ("cola", 6, HARMONIC): (77.1, 4.2),
}
DRAWS = 1000


class Spot(NamedTuple):
    """Where a probe looks."""

    task: str
    layer: int
    readout: str

    @property
    def words(self) -> str:
        """Name it in a sentence."""
        return f"{title(self.task)} layer {self.layer}, {READOUT_WORDS[self.readout]}"


def title(task: str) -> str:
    """Return a data set's name in print."""
    return TITLES.get(task, task.replace("_", " "))


def tasks_of(results: Results) -> tuple[str, ...]:
    """Return the data sets that were probed, the paper's two first; those where nothing is there yet."""
    found = {key.split("/")[1] for one in results.values() for key in one.arrays if key.startswith("probes/")}
    return (*(task for task in TITLES if task in found), *sorted(found - set(TITLES))) or tuple(TITLES)


def spots_of(spec: LanguageSpec, results: Results, readouts: Sequence[str] = READOUTS) -> list[Spot]:
    """List every data set, layer and read-out."""
    return [Spot(task, layer, one) for task in tasks_of(results) for layer in spec.probe_layers for one in readouts]


def probes_of(results: Results, arm: str, spot: Spot, what: str) -> np.ndarray | None:
    """Return what is stored of an arm's probes at a spot, (S, ...), model after model; None where there is nothing."""
    found, below = [], f"probes/{spot.task}"
    for cell in sorted((cell for cell in results if cell.arm == arm), key=lambda cell: cell.seed):
        arrays = results[cell].arrays
        if f"{below}/{what}" not in arrays or spot.layer not in arrays[f"{below}/layers"]:
            return None
        layer = list(arrays[f"{below}/layers"]).index(spot.layer)
        found.append(np.asarray(arrays[f"{below}/{what}"])[:, layer, READOUTS.index(spot.readout)])
    return np.concatenate(found) if found else None


def mean_of(results: Results, arm: str, spot: Spot, score: str = "f1", *, level: float = 0.95) -> Interval | None:
    """Return the mean of an arm's probes in points, and its interval over probes."""
    values = probes_of(results, arm, spot, score)
    return None if values is None else bootstrap_interval(_points(values), statistic="mean", level=level)


def majority_of(results: Results, task: str) -> float | None:
    """Return the F1 of always giving the more frequent training label, in points."""
    key = f"probes/{task}/majority"
    return next((100 * float(r.arrays[key][SCORES.index("f1")]) for r in results.values() if key in r.arrays), None)


def compare(results: Results, spot: Spot, *, score: str = "f1", level: float = 0.95) -> PairedDifference | None:
    """Compare harmonic with standard in points, probe by probe; None where the probes of an arm are missing."""
    harmonic, standard = (probes_of(results, arm, spot, score) for arm in (HARMONIC, STANDARD))
    if harmonic is None or standard is None or len(harmonic) != len(standard):
        return None
    return paired_difference(_points(harmonic), _points(standard), statistic="mean", level=level)


def compare_on_sentences(results: Results, spot: Spot, *, level: float = 0.95, seed: int = 0) -> Interval | None:
    """Return the difference of the mean F1 in points, its interval over draws of probes and sentences together.

    A draw takes as many dev sentences and as many pairs of probes as there are, with replacement.
    """
    harmonic, standard = (probes_of(results, arm, spot, "said") for arm in (HARMONIC, STANDARD))
    if harmonic is None or standard is None or harmonic.shape != standard.shape:
        return None
    key = f"probes/{spot.task}/labels"
    labels_N = next(np.asarray(r.arrays[key]) for r in results.values() if key in r.arrays)
    generator, count = np.random.default_rng(seed), len(labels_N)
    drawn_KN = generator.integers(count, size=(DRAWS, count))
    counts_KN = np.stack([np.bincount(drawn_N, minlength=count) for drawn_N in drawn_KN])
    difference_SK = _points(scores(harmonic, labels_N, counts_KN)["f1"] - scores(standard, labels_N, counts_KN)["f1"])
    picked_SK = generator.integers(len(difference_SK), size=difference_SK.shape)
    tail = (1 - level) / 2
    low, high = np.quantile(np.take_along_axis(difference_SK, picked_SK, 0).mean(0), [tail, 1 - tail], method="nearest")
    found_S = scores(harmonic, labels_N)["f1"] - scores(standard, labels_N)["f1"]
    return Interval(float(_points(found_S).mean()), float(low), float(high))


def _points(values: np.ndarray) -> np.ndarray:
    return 100 * values.astype(np.float64)
