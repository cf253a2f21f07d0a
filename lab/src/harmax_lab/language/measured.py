"""What the finished cells of `gpt2` hold of the measures on their models, by task, arm and seed."""

from collections.abc import Mapping

import numpy as np

from harmax.inspect.embedding import MEASURE, Arrays, measured_tasks
from harmax_lab.kit.store import CellResult
from harmax_lab.language.arms import HARMONIC, STANDARD
from harmax_lab.language.gpt2 import ArmCell

Results = Mapping[ArmCell, CellResult]


def tasks_of(results: Results, measure: str = MEASURE) -> list[str]:
    """Return the tasks that were measured, in their order."""
    return list(dict.fromkeys(task for found in results.values() for task in measured_tasks(found.arrays, measure)))


def by_seed(results: Results, arm: str, key: str) -> dict[int, Arrays]:
    """Return the arrays of one arm's cells that hold a key, by seed."""
    return {cell.seed: found.arrays for cell, found in results.items() if cell.arm == arm and key in found.arrays}


def settings_ratio(results: Results) -> dict[str, np.ndarray]:
    """Return, by task, the harmonic median divided by the standard median in each of the 32 settings, (2, 32).

    The first row compares losses. In the second row each loss is divided by the median of the arm's own null first.
    With several seeds the ratio is the geometric mean of the seeds' ratios.
    """
    ratios = {}
    for task in tasks_of(results):
        key = f"{MEASURE}/{task}/quantiles"
        standard, harmonic = (by_seed(results, arm, key) for arm in (STANDARD, HARMONIC))
        both = sorted(standard.keys() & harmonic.keys())
        if not both:
            continue
        medians = [np.stack([arm[seed][key][..., 50] for seed in both]).astype(float) for arm in (harmonic, standard)]
        with np.errstate(divide="ignore", invalid="ignore"):  # an exact parallelogram has a loss of 0
            logs = np.log(medians[0]) - np.log(medians[1])
            ratios[task] = np.exp(np.stack([logs[:, 0], logs[:, 0] - logs[:, 1]], axis=1).mean(0))
    return ratios
