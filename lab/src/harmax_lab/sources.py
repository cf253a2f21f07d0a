"""Run folders of the laboratory as sources for `harmax prototypes`, `geometry` and `explore`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from harmax.errors import DamagedError, unknown
from harmax.files import read_json
from harmax.heads import CenterHead
from harmax.inspect.explorer.parts import ExplorerOptions, ExplorerParts
from harmax.inspect.geometry import MeasuredModel
from harmax.inspect.sources import Classifier, Source
from harmax_lab.kit.store import Damage, Run, open_runs


def open_source(folder: Path) -> "LabRun | LabRuns | None":
    """Return the source for a run folder of the laboratory, or for a folder of runs; None for other folders."""
    if not (folder / "config.json").is_file():
        started = any((run / "config.json").is_file() for run in folder.glob("[!.]*/[!.]*/"))
        return LabRuns(folder) if started else None
    try:
        config = read_json(folder / "config.json")
        if not isinstance(config, dict) or "experiment" not in config:
            return None
        run = Run.open(folder)
    except DamagedError as error:
        if (folder / "cells").is_dir():
            raise DamagedError(f"{folder} must be a whole run folder, but {error}.") from None
        return None  # of another kind, whose own reader says what is wrong
    kinds = {"mnist": OneLayerRun, "gpt2": LanguageRun}
    return kinds.get(run.home.parent.name, LabRun)(run)


@dataclass(frozen=True)
class LabRun(Source):
    """The run folder of any experiment."""

    run: Run

    @property
    def kind(self) -> str:
        """What the folder is, for error messages."""
        return f"a run of `{self.run.experiment}`"

    def explorer_parts(self, options: ExplorerOptions) -> ExplorerParts:
        """Return the trainings and verdicts of the run."""
        return run_parts([self.run], (), options)


@dataclass(frozen=True)
class LabRuns(Source):
    """A folder of runs."""

    folder: Path

    @property
    def kind(self) -> str:
        """What the folder is, for error messages."""
        return "a folder of runs"

    def explorer_parts(self, options: ExplorerOptions) -> ExplorerParts:
        """Return the trainings, the classifier and the verdicts of the runs in it."""
        found = open_runs(self.folder)
        parts = run_parts(list(found), found.damaged, options)
        classifiers = [run for run in found if run.experiment == "mnist" and run.done]
        if not classifiers:
            return parts
        best = max(classifiers, key=lambda run: len(run.done))
        try:
            own = OneLayerRun(best).explorer_parts(options)
        except (ValueError, OSError) as error:  # images that are not on this machine, say
            return replace(parts, notes=(*parts.notes, f"{best.folder}: {error}"))
        return replace(parts, classifiers=own.classifiers, clouds=(*parts.clouds, *own.clouds))


class OneLayerRun(LabRun):
    """A run of `mnist`: one-layer classifiers on pixels. A variant is a protocol."""

    def open_classifier(
        self, *, dataset: str | None, variant: str | None, device: str, backbone: str | None = None
    ) -> Classifier:
        """Return the harmonic classifier of the first seed."""
        if backbone is not None:
            raise ValueError(f"`--backbone` must be left out for {self.kind}, got {backbone!r}; it has none.")
        from harmax_lab.vision import mnist
        from harmax_lab.vision.one_layer import HARMONIC, PROTOCOLS, OneLayerCell, exponent_of

        spec = mnist.EXPERIMENT.load_spec(self.run.config["spec"])
        cells = [OneLayerCell(one, rule, HARMONIC, spec.seeds[0]) for one in spec.datasets for rule in spec.protocols]
        finished = [cell for cell in cells if cell.name in set(self.run.done)]
        if not finished:
            raise ValueError(
                f"{self.run.folder} must have a finished harmonic cell of seed {spec.seeds[0]}, got none; finish the "
                "run with `harmax run mnist`."
            )
        dataset = _chosen("--dataset", dataset, [cell.dataset for cell in finished])
        # The authors' exponent is the one that reaches the paper's accuracy.
        own = sorted(
            (cell for cell in finished if cell.dataset == dataset), key=lambda cell: cell.protocol != "authors"
        )
        protocol = _chosen("--variant", variant, [cell.protocol for cell in own])
        cell = next(cell for cell in own if cell.protocol == protocol)
        weight = torch.from_numpy(self.run.read(cell.name).arrays["weight"]).flatten(1)
        exponent, softening = exponent_of(protocol, weight.shape[1]), PROTOCOLS[protocol].softening
        head = CenterHead(weight.shape[1], len(weight), exponent=exponent, softening=softening)
        head.weight.data.copy_(weight)
        return Classifier(dataset, head.to(device), None, lambda pixels: pixels.float() / 255)

    def explorer_parts(self, options: ExplorerOptions) -> ExplorerParts:
        """Return the classifier with its images, and the verdicts of the run."""
        from harmax.inspect.explorer.image_parts import image_parts

        images = image_parts(self.run.folder, options)
        return replace(run_parts([self.run], (), options), classifiers=images.classifiers, clouds=images.clouds)


class LanguageRun(LabRun):
    """A run of `gpt2` or a view of it. Its models are gone, but their measures are stored."""

    def measured_models(self) -> list[MeasuredModel]:
        """Return the finished models of all arms."""
        from harmax_lab.language import gpt2

        spec = gpt2.EXPERIMENT.load_spec(self.run.config["spec"])
        read = {cell: self.run.read(cell.name).arrays for cell in gpt2.cells(spec) if cell.name in set(self.run.done)}
        measured = {cell: arrays for cell, arrays in read.items() if arrays}  # a model that diverged has none
        if not measured:
            raise ValueError(
                f"{self.run.folder} must have a finished model, got none; finish the run with `harmax run gpt2`."
            )
        vocabulary = "one token per word" if spec.embedded else "GPT-2's BPE"
        return [
            MeasuredModel(
                name=f"{cell.arm}, seed {cell.seed}" if len(spec.seeds) > 1 else cell.arm,
                model=str(self.run.folder),
                vocabulary=vocabulary,
                tokens=spec.vocab,
                arrays=arrays,
                spelling=(vocabulary, spec.vocab, spec.tasks, spec.quadruples),
            )
            for cell, arrays in measured.items()
        ]


def _chosen(flag: str, wanted: str | None, there: list[str]) -> str:
    if wanted is not None and wanted not in there:
        raise ValueError(unknown(flag, wanted, list(dict.fromkeys(there))))
    return wanted or there[0]


def run_parts(runs: Sequence[Run], damaged: Sequence[Damage], options: ExplorerOptions) -> ExplorerParts:
    """Return the trainings and verdicts of some runs, and what is damaged."""
    from harmax_lab.explorer.growth import best_run, growth_parts
    from harmax_lab.explorer.verdicts import stored_verdicts

    verdicts, notes = stored_verdicts(runs)
    best = best_run(runs)
    parts = ExplorerParts() if best is None else growth_parts(best, options)
    # A damaged cell of the shown run is in its own notes already.
    whole = [f"{one}; delete the folder and run it again." for one in damaged if one.path.parent.name != "cells"]
    return replace(parts, verdicts=verdicts, notes=(*parts.notes, *notes, *whole))
