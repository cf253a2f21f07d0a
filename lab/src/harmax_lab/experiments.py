"""The paper as runnable experiments: one file a figure or table, one line here."""

from typing import Any

from harmax.errors import unknown
from harmax.plugins import plugins
from harmax_lab.algorithmic import (
    cosets,
    data_efficiency,
    explained_variance,
    grokking,
    l2_strength,
    modular_case,
    representations,
    runs,
)
from harmax_lab.kit import engine
from harmax_lab.kit.experiment import Experiment
from harmax_lab.kit.notebook import showing_progress
from harmax_lab.kit.places import places_in, shows
from harmax_lab.kit.store import Run
from harmax_lab.language import gpt2, language_sweep, layers, parallelograms, probes
from harmax_lab.studies import ablation, authors_losses, confounds, exponents, rivals, start
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
    "l2_strength": l2_strength.EXPERIMENT,
    "ablation": ablation.EXPERIMENT,
    "confounds": confounds.EXPERIMENT,
    "exponents": exponents.EXPERIMENT,
    "authors_losses": authors_losses.EXPERIMENT,
    "rivals_mlp": rivals.MLP,
    "rivals_transformer": rivals.TRANSFORMER,
    "start": start.EXPERIMENT,
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

__all__ = ["EXPERIMENTS", "all_experiments", "find_experiment", "run"]


def all_experiments() -> dict[str, Experiment[Any, Any]]:
    """Return our experiments, and after them those that installed packages register in the group `harmax.experiments`.

    An entry point names an `Experiment`, or a sequence of them.
    """
    found = dict(EXPERIMENTS)
    for entry, given in plugins("experiments").items():
        for experiment in (given,) if isinstance(given, Experiment) else given:
            if not isinstance(experiment, Experiment):
                raise ValueError(
                    f"the entry point `{entry}` of harmax.experiments must name an Experiment or a sequence of them, "
                    f"got {type(experiment).__name__}; correct the package that registers it."
                )
            if experiment.name in found:
                raise ValueError(
                    f"the entry point `{entry}` of harmax.experiments must have a name of its own, got "
                    f"{experiment.name!r}, which there is already; rename that experiment."
                )
            found[experiment.name] = experiment
    return found


def find_experiment(name: str) -> Experiment[Any, Any]:
    """Return the experiment of that name, or the one that shows a figure, table or section of the paper.

    >>> find_experiment("Fig. 1 b").name, find_experiment("section 3.5").name
    ('toy_cases', 'modular_case')
    """
    known = all_experiments()
    if name in known:
        return known[name]
    wanted = places_in(f"Sec. {name}" if name[:1].isdecimal() else name)
    if not wanted:
        raise ValueError(unknown("experiment", name, known))
    found = [experiment for experiment in known.values() if shows(experiment, wanted)]
    if not found:
        raise ValueError(f"no experiment shows {name!r} of the paper; `harmax list` says what each one shows.")
    if len(found) > 1:
        named = "; ".join(f"{experiment.name} ({experiment.figure})" for experiment in found)
        raise ValueError(f"{len(found)} experiments show {name!r} of the paper: {named}. Name one of them.")
    return found[0]


def run(experiment: str | Experiment[Any, Any], **options: Any) -> Run:
    """Run an experiment, by its name, its place in the paper, or an `Experiment` of your own.

    `harmax_lab.kit.engine.run` has the options. In a notebook, progress is shown in the cell.
    """
    with showing_progress(options.pop("progress", None)) as progress:
        chosen = find_experiment(experiment) if isinstance(experiment, str) else experiment
        return engine.run(chosen, progress=progress, **options)
