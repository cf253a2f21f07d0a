"""The paper as runnable experiments: one file a figure or table, one line here."""

from typing import Any

from harmax.errors import unknown
from harmax_lab.algorithmic import (
    cosets,
    data_efficiency,
    explained_variance,
    grokking,
    modular_case,
    representations,
    runs,
)
from harmax_lab.kit import engine
from harmax_lab.kit.experiment import Experiment
from harmax_lab.kit.store import Run
from harmax_lab.language import gpt2, language_sweep, layers, parallelograms, probes
from harmax_lab.studies import ablation, authors_losses, confounds, exponents, rivals
from harmax_lab.toy import theory, toy_cases
from harmax_lab.vision import classifiers, little_data, mnist, trust

EXPERIMENTS: dict[str, Experiment[Any, Any]] = {
    "toy_cases": toy_cases.EXPERIMENT,
    "theory": theory.EXPERIMENT,
    "algorithmic": runs.EXPERIMENT,
    "representations": representations.EXPERIMENT,
    "explained_variance": explained_variance.EXPERIMENT,
    "data_efficiency": data_efficiency.EXPERIMENT,
    "grokking": grokking.EXPERIMENT,
    "modular_case": modular_case.EXPERIMENT,
    "cosets": cosets.EXPERIMENT,
    "ablation": ablation.EXPERIMENT,
    "confounds": confounds.EXPERIMENT,
    "exponents": exponents.EXPERIMENT,
    "authors_losses": authors_losses.EXPERIMENT,
    "rivals_mlp": rivals.MLP,
    "rivals_transformer": rivals.TRANSFORMER,
    "mnist": mnist.EXPERIMENT,
    "trust": trust.EXPERIMENT,
    "little_data": little_data.EXPERIMENT,
    "classifiers": classifiers.EXPERIMENT,
    "language_sweep": language_sweep.EXPERIMENT,
    "gpt2": gpt2.EXPERIMENT,
    "parallelograms": parallelograms.EXPERIMENT,
    "layers": layers.EXPERIMENT,
    "probes": probes.EXPERIMENT,
}

__all__ = ["EXPERIMENTS", "find_experiment", "run"]


def find_experiment(name: str) -> Experiment[Any, Any]:
    """Return the experiment of that name; the error for a name that does not exist lists those that are near."""
    if name not in EXPERIMENTS:
        raise ValueError(unknown("experiment", name, EXPERIMENTS))
    return EXPERIMENTS[name]


def run(experiment: str | Experiment[Any, Any], **options: Any) -> Run:
    """Run an experiment, by its name or an `Experiment` of your own; `harmax_lab.kit.engine.run` has the options."""
    return engine.run(find_experiment(experiment) if isinstance(experiment, str) else experiment, **options)
