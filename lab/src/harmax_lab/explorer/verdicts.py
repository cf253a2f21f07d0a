"""The paper's claims with their verdicts: published ones, and those of stored runs."""

import base64
import io
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harmax.errors import DamagedError, needs
from harmax.files import read_json
from harmax.inspect.explorer.document import Figure, JudgedClaim, JudgedExperiment, JudgedResult, Verdicts
from harmax_lab.experiments import EXPERIMENTS
from harmax_lab.kit.claims import Claim, said_and_rule, verdict_words
from harmax_lab.kit.experiment import PROFILES, Experiment
from harmax_lab.kit.published import ROWS
from harmax_lab.kit.store import Run
from harmax_lab.paper import SENTENCES
from harmax_lab.report.shipped import published_folder

REPOSITORY = "https://github.com/harmax/harmax/tree/main/lab/results"
PUBLISHED = "published runs"
WIDTH, QUALITY = 760, 50  # of figures on the page: legible, and all of them 3 MB


def published_verdicts(*, pictures: bool = True) -> Verdicts | None:
    """Return all claims with the verdicts of the published runs; None if the package has no results.

    Args:
        pictures: whether to include the published figures, about 3 MB.
    """
    folder = published_folder()
    if not folder.is_dir():
        return None
    experiments: list[JudgedExperiment] = []
    claims: list[JudgedClaim] = []
    for experiment in EXPERIMENTS.values():
        own = folder / experiment.name
        summary = read_json(own / "summary.json") if (own / "summary.json").is_file() else {}
        address = f"{REPOSITORY}/{experiment.name}" if summary else ""
        figures = [_figure(path, experiment.name, pictures) for path in sorted(own.glob("*.png"))]
        experiments.append(_experiment(experiment, address, figures))
        rows = f"{address}/{ROWS}" if (own / ROWS).is_file() else address
        claims += _claims(experiment, summary, PUBLISHED, rows)
    return Verdicts(tuple(experiments), tuple(claims))


def stored_verdicts(runs: Iterable[Run]) -> tuple[Verdicts | None, list[str]]:
    """Return the claims of finished runs as their summaries judge them, the most thorough run of each, and notes."""
    best: dict[str, tuple[Run, Mapping[str, Any]]] = {}
    notes = []
    for run in runs:
        experiment = EXPERIMENTS.get(run.experiment)
        if experiment is None or run.profile not in PROFILES:
            continue
        try:
            experiment.check_version(run)
        except ValueError as error:
            notes.append(f"{run.folder}: {error}.")
            continue
        try:
            summary = run.summary
            if summary is None:
                continue
            _ = {one["claim"]: (one["verdict"], one["sentence"]) for one in summary["verdicts"]}
        except (DamagedError, KeyError, TypeError):
            notes.append(f"{run.folder}/summary.json cannot be read; run `harmax run {run.experiment}` again.")
            continue
        known = best.get(run.experiment)
        if known is None or PROFILES.index(known[0].profile) < PROFILES.index(run.profile):
            best[run.experiment] = run, summary
    if not best:
        return None, notes
    experiments = tuple(_experiment(EXPERIMENTS[name], "", []) for name in best)
    claims = tuple(
        claim
        for name, (run, found) in best.items()
        for claim in _claims(EXPERIMENTS[name], found, "runs of this folder", run.folder.resolve().as_uri())
    )
    return Verdicts(experiments, claims), notes


def _experiment(experiment: Experiment[Any, Any], address: str, figures: list[Figure]) -> JudgedExperiment:
    command = f"harmax run {experiment.name} --full"
    return JudgedExperiment(experiment.name, experiment.title, experiment.figure, address, command, tuple(figures))


def _claims(
    experiment: Experiment[Any, Any], summary: Mapping[str, Any], origin: str, address: str
) -> Iterable[JudgedClaim]:
    found = {one["claim"]: one for one in summary.get("verdicts", ())}
    for claim in experiment.claims:
        one = found.get(claim.id) or asdict(claim.unanswered("No published run answers this yet."))
        words = verdict_words(one["verdict"], claim)
        result = JudgedResult(origin, str(summary.get("profile", "")), words, one["sentence"], address)
        said, rule = said_and_rule(claim.statement)
        yield JudgedClaim(
            id=claim.id,
            experiment=experiment.name,
            statement=said,
            rule=rule,
            paper=claim.source,
            places=_places(claim),
            control=claim.control,
            results=(result,),
        )


def _places(claim: Claim) -> tuple[str, ...]:
    return tuple(dict.fromkeys(SENTENCES[key].where for key in claim.sentences))


def _figure(path: Path, experiment: str, pictures: bool) -> Figure:
    return Figure(path.stem, _small(path) if pictures else "", f"{REPOSITORY}/{experiment}/{path.name}")


def _small(path: Path) -> str:
    with needs("figures"):
        from PIL import Image  # comes with matplotlib

    with Image.open(path) as image:
        picture = image.convert("RGB")
    picture.thumbnail((WIDTH, 10 * WIDTH))
    buffer = io.BytesIO()
    picture.save(buffer, "webp", quality=QUALITY)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"
