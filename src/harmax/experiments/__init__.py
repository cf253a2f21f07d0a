"""The paper as runnable experiments: one file a figure or table, one line here."""

from typing import Any

from harmax.experiments import theory, toy_cases
from harmax.experiments.algorithmic import (
    cosets,
    data_efficiency,
    explained_variance,
    grokking,
    modular_case,
    representations,
    runs,
)
from harmax.experiments.language import layers, parallelograms, probes, sweep
from harmax.experiments.language import runs as language_runs
from harmax.experiments.rivals import ablation, confounds, exponents, rivals
from harmax.experiments.spec import Experiment
from harmax.experiments.vision import classifiers, little_data, mnist, trust

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
    "rivals_mlp": rivals.MLP,
    "rivals_transformer": rivals.TRANSFORMER,
    "mnist": mnist.EXPERIMENT,
    "trust": trust.EXPERIMENT,
    "little_data": little_data.EXPERIMENT,
    "classifiers": classifiers.EXPERIMENT,
    "language_sweep": sweep.EXPERIMENT,
    "gpt2": language_runs.EXPERIMENT,
    "parallelograms": parallelograms.EXPERIMENT,
    "layers": layers.EXPERIMENT,
    "probes": probes.EXPERIMENT,
}

__all__ = ["EXPERIMENTS"]
