"""From sources to a page. The page shows what can be read, and names what cannot."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import harmax
from harmax.errors import DamagedError
from harmax.inspect.explorer.costs import measured_costs
from harmax.inspect.explorer.document import ExplorerDocument, JudgedClaim, JudgedExperiment, Verdicts
from harmax.inspect.explorer.parts import Cloud, ExplorerOptions, ExplorerParts
from harmax.inspect.sources import find_source
from harmax.plugins import plugins

DEFAULT = Path("runs")
MISSING = {
    "growth": "This page was made without stored trainings of the algorithmic tasks. Make some with "
    "`harmax run algorithmic`, which needs harmax-lab and takes some minutes, then run `harmax explore` again.",
    "classifiers": "This page was made without a classifier. Train one with `harmax vision`, or `harmax run mnist` of "
    "harmax-lab, then give its folder: `harmax explore FOLDER`.",
    "verdicts": "The paper's verdicts come with harmax-lab. Install it with `pip install harmax-lab`, then run "
    "`harmax explore` again.",
    "costs": "The measured rows are not in this installation. Measure this machine with `harmax bench loss`.",
}


@dataclass(frozen=True, eq=False)
class Assembled:
    """A document, the point clouds beside it, and what went wrong with the source."""

    document: ExplorerDocument
    clouds: tuple[Cloud, ...]
    problems: tuple[str, ...]


def assemble(source: Path | ExplorerParts | None, options: ExplorerOptions) -> Assembled:
    """Read a source, add what needs none, and return the document of a page.

    Args:
        source: a folder, or its parts if they were not stored. None: "runs" in the current folder, if there is one.
        options: what to show of it.
    """
    problems: list[str] = []
    own, origin = ExplorerParts(), ""
    if isinstance(source, ExplorerParts):
        own = source
    elif source is not None or DEFAULT.is_dir():
        folder = source or DEFAULT
        origin = str(folder)
        with _noting(problems):
            own = _read(folder, options)
    published = [own]
    for read in plugins("explorer").values():
        with _noting(problems):
            published.append(read(options))
    costs = []
    with _noting(problems):
        costs = measured_costs()
    verdicts = joined([part.verdicts for part in published if part.verdicts is not None])
    found = {"growth": own.growth, "classifiers": own.classifiers, "verdicts": verdicts, "costs": costs}
    document = ExplorerDocument(
        title="harmax explorer",
        made_by=f"harmax {harmax.__version__}",
        source=origin,
        growth=own.growth,
        classifiers=own.classifiers,
        verdicts=verdicts,
        costs=costs,
        notes=(*problems, *(note for part in published for note in part.notes)),
        missing={view: words for view, words in MISSING.items() if not found[view]},
    )
    return Assembled(document, own.clouds, tuple(problems))


def joined(verdicts: list[Verdicts]) -> Verdicts | None:
    """Return the verdicts of several sources as one: published ones, which come last, are shown first."""
    if not verdicts:
        return None
    experiments: dict[str, JudgedExperiment] = {}
    claims: dict[tuple[str, str], JudgedClaim] = {}
    for part in reversed(verdicts):
        for one in part.experiments:
            experiments.setdefault(one.name, one)
        for claim in part.claims:
            known = claims.get((claim.experiment, claim.id))
            results = (*(known.results if known else ()), *claim.results)
            claims[claim.experiment, claim.id] = JudgedClaim(**{**vars(known or claim), "results": results})
    return Verdicts(tuple(experiments.values()), tuple(claims.values()))


def _read(folder: Path, options: ExplorerOptions) -> ExplorerParts:
    if not folder.is_dir():
        raise ValueError(f"SOURCE must be a folder, got {str(folder)!r}, which is none; name a folder that exists.")
    found = find_source(folder)
    if found is None:
        raise ValueError(
            f"SOURCE must be a folder of runs, a run, or the output of `harmax vision`, got {str(folder)!r}, which is "
            "none of them; finish the training, or name another. Runs of `harmax run` need harmax-lab."
        )
    return found.explorer_parts(options)


@contextlib.contextmanager
def _noting(problems: list[str]) -> Iterator[None]:
    """Keep the sentence of an error, so that the page still shows what else there is."""
    try:
        yield
    except (ValueError, OSError) as error:  # DamagedError is a ValueError
        words = str(error)
        if isinstance(error, DamagedError) and ";" not in words:  # it says what is wrong, but not what to do
            words = f"{words.rstrip('.')}; make it again, or name another folder."
        problems.append(words)
