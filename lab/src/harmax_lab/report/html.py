"""One self-contained HTML file: the published verdicts, and beside them what the runs of a folder say."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from harmax.errors import DamagedError
from harmax.figures import Picture, house_style
from harmax.files import from_json, to_json, write_atomically
from harmax_lab.kit.claims import Claim, Verdict
from harmax_lab.kit.experiment import PROFILES, Experiment, Summary
from harmax_lab.kit.results import Results
from harmax_lab.kit.store import CellResult, Damage, Run, open_runs, spec_hash
from harmax_lab.kit.variants import as_flags, changes_of, in_words, stored
from harmax_lab.report.shipped import Published, published_folder, read_published

UNREGISTERED = (
    "no experiment of this name is registered; register it in the entry-point group harmax.experiments to see it here"
)


@dataclass(frozen=True)
class Section:
    """What the report shows of one experiment. Without a run it only says how to make one."""

    experiment: Experiment[Any, Any]
    command: str
    run: Run | None = None
    results: Results[Any, Any] | None = None
    summary: Summary = field(default_factory=lambda: Summary(()))
    pictures: Mapping[str, Picture] = field(default_factory=dict)
    published: Published | None = None
    variant: str = ""
    """What a user has changed in the settings, such as "exponent=4"; empty for the standard run."""

    @property
    def id(self) -> str:
        """The section's name on its page."""
        return self.experiment.name + (f"-{self.run.folder.name}" if self.variant and self.run else "")

    @property
    def title(self) -> str:
        """The experiment's title, and what a variant changes."""
        return self.experiment.title + (f" (variant: {self.variant})" if self.variant else "")

    @property
    def judged(self) -> list[tuple[Claim, Verdict]]:
        """The claims with the verdicts of the run; empty without a finished cell."""
        return list(zip(self.experiment.claims, self.summary.verdicts, strict=False))


@dataclass(frozen=True)
class Report:
    """Where the report was written, what it shows and what it leaves out."""

    path: Path
    sections: tuple[Section, ...]
    damaged: tuple[Damage, ...]
    others: tuple[Damage, ...] = ()
    """Whole runs that are not shown, each with the reason."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report's content as plain values."""
        return {
            "path": str(self.path),
            "experiments": [
                {
                    "experiment": section.experiment.name,
                    "variant": section.variant,
                    "command": section.command,
                    "profile": section.run.profile if section.run else None,
                    "failed": len(section.run.failed) if section.run else 0,
                    "verdicts": {claim.id: verdict.verdict for claim, verdict in section.judged},
                    "published": {id: one.verdict for id, one in section.published.verdicts.items()}
                    if section.published
                    else None,
                }
                for section in self.sections
            ],
            "damaged": [{"path": str(damage.path), "reason": damage.reason} for damage in self.damaged],
            "not_shown": [{"path": str(other.path), "reason": other.reason} for other in self.others],
        }


class Collected(NamedTuple):
    """What a folder of runs holds: a section per experiment, what cannot be used, and what is not needed."""

    sections: tuple[Section, ...]
    damaged: tuple[Damage, ...]
    others: tuple[Damage, ...]


def write_report(
    experiments: Iterable[Experiment[Any, Any]],
    folder: Path | str = "runs",
    output: Path | str | None = None,
    *,
    published: Path | str | None = None,
) -> Report:
    """Write the report of a folder of runs. What cannot be used is listed in it and left as it is.

    Args:
        experiments: in the order of the report.
        folder: what was given to `harmax run --folder`.
        output: the file to write; None: report.html in `folder`.
        published: the published results; None: those that travel with the laboratory.
    """
    from harmax_lab.report.page import render

    found = collect(experiments, folder, strict=False)
    shelf = published_folder() if published is None else Path(published)
    sections, damaged = [], list(found.damaged)
    for section in found.sections:
        if section.variant:  # it has nothing published to stand beside
            sections.append(section)
            continue
        known, problems = read_published(section.experiment.name, shelf)
        damaged += problems
        sections.append(replace(section, published=known))
    path = Path(output) if output is not None else Path(folder) / "report.html"
    report = Report(path, tuple(sections), tuple(damaged), found.others)
    write_atomically(path, render(report).encode())
    return report


def collect(experiments: Iterable[Experiment[Any, Any]], folder: Path | str, *, strict: bool = True) -> Collected:
    """Judge and draw the best run of each experiment in a folder, and list what could not be used.

    Runs with settings of the user's own have sections of their own after that of the standard run.

    Args:
        experiments: in the order of the report.
        folder: with the runs.
        strict: whether a run that cannot be judged or drawn is an error. If not, it is listed, and the next best run
            takes its place.
    """
    experiments, runs = list(experiments), open_runs(folder)
    damaged, known = list(runs.damaged), {experiment.name for experiment in experiments}
    sections = []
    others: list[Damage] = []
    for experiment in experiments:
        usable: dict[str, list[tuple[tuple[bool, int, int], Run]]] = {"": []}
        for run in runs.query(experiment=experiment.name):
            try:
                _check_current(experiment, run)
                describe_environment(run)
                usable.setdefault(in_words(changes_of(run)), []).append((_worth(run), run))
            except Exception as error:  # config.json may hold anything
                damaged.append(Damage(run.folder, _reason(error, "config.json does not fit the experiment")))
        for variant, own in usable.items():
            candidates = [run for _, run in sorted(own, key=lambda one: one[0], reverse=True)]
            section = _best(experiment, candidates, variant, damaged, strict)
            if section.run is None and variant:
                continue  # it is listed as damaged
            sections.append(section)
            left_out = {damage.path for damage in damaged}
            others += [
                Damage(run.folder, f"another run of {experiment.name} is more thorough; this one is {command_of(run)}")
                for run in candidates
                if run is not section.run and run.folder not in left_out
            ]
    others += [Damage(run.folder, UNREGISTERED) for run in runs if run.experiment not in known]
    return Collected(tuple(sections), tuple(damaged), tuple(others))


def _best(
    experiment: Experiment[Any, Any], candidates: Iterable[Run], variant: str, damaged: list[Damage], strict: bool
) -> Section:
    """Return the section of the first run that can be judged and drawn."""
    for run in candidates:
        if strict:
            return _section(experiment, run, variant, damaged)
        try:
            return _section(experiment, run, variant, damaged)
        except Exception as error:  # one run never takes the report down
            damaged.append(Damage(run.folder, _reason(error, "it cannot be judged")))
    return _section(experiment, None, variant, damaged)


def _reason(error: Exception, otherwise: str) -> str:
    if isinstance(error, ValueError | OSError):
        return str(error)
    return f"{otherwise} ({type(error).__name__}: {error}); run it again, or delete it"


def command_of(run: Run) -> str:
    """Return the command that makes this run."""
    flag = {"quick": "", "smoke": " --smoke", "full": " --full"}[run.profile]
    seeds = run.config["overrides"].get("seeds")
    chosen = "" if seeds is None else " --seeds " + ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")
    return f"harmax run {run.experiment}{flag}{chosen}{as_flags(changes_of(run))}"


def _check_current(experiment: Experiment[Any, Any], run: Run) -> None:
    if run.profile not in PROFILES:
        raise ValueError(f"its profile must be one of {', '.join(PROFILES)}, got {run.profile!r}; run it again")
    experiment.check_version(run)
    spec = experiment.load_spec(run.config["spec"])
    if {cell.name for cell in experiment.work.cells(spec)} != set(run.cells):
        raise ValueError("config.json lists other cells than its settings have; run it again")
    _check_profile(experiment, run)
    command_of(run)
    origin = experiment.source
    source = origin and f"{origin.name}/{spec_hash(origin.name, origin.version, run.config['spec'])}"
    if run.source != source:
        raise ValueError(f"reads the cells of {run.source}, but the experiment now reads {source}; run it again")


def _check_profile(experiment: Experiment[Any, Any], run: Run) -> None:
    """Refuse a run that says it is of one profile and has the settings of another, besides what a user has changed."""
    own = {name: value for name, value in run.config["spec"].items() if name not in run.config["overrides"]}
    settings = {name: from_json(to_json(stored(spec))) for name, spec in experiment.profiles.items()}
    same = [name for name, usual in settings.items() if all(usual.get(key) == value for key, value in own.items())]
    if same and run.profile not in same:
        raise ValueError(f"config.json says that it is of the profile {run.profile}, but has the settings of {same[0]}")


def _worth(run: Run) -> tuple[bool, int, int]:
    """Order runs by whether nothing is left to do, then by profile, then by the number of finished cells."""
    settled = bool(run.done) and set(run.pending) <= set(run.failed)
    return settled, PROFILES.index(run.profile), len(run.done)


def _section(experiment: Experiment[Any, Any], run: Run | None, variant: str, damaged: list[Damage]) -> Section:
    if run is None or not run.done:
        return Section(
            experiment, command_of(run) if run and variant else f"harmax run {experiment.name}", run, variant=variant
        )
    spec = experiment.load_spec(run.config["spec"])
    found, unreadable = _readable(run)
    damaged += [damage for damage in unreadable if damage not in damaged]  # views read the same cells
    results = experiment.results(spec, experiment.by_cell(spec, found))
    with house_style():
        pictures = experiment.figures(results)
    summary = experiment.judge(results, variant)
    return Section(experiment, command_of(run), run, results, summary, pictures, variant=variant)


def _readable(run: Run) -> tuple[dict[str, CellResult], list[Damage]]:
    """Return the finished cells that can be read, and the others."""
    found, unreadable = {}, []
    for name in run.done:
        try:
            found[name] = run.read(name)
        except DamagedError as error:
            unreadable.append(Damage(run.cell_folder(name), str(error)))
    return found, unreadable


def describe_environment(run: Run) -> str:
    """Return one line about the versions and devices that computed a run."""
    lines = []
    for env in run.environments:
        commit = f", commit {env['commit']}" if env.get("commit") else ""
        harmax, torch, python, device = (env.get(name, "unknown") for name in ("harmax", "torch", "python", "device"))
        lines.append(f"harmax {harmax}, torch {torch}, Python {python}, {device}{commit}")
    return "; then ".join(lines) or "unknown"


def format_number(value: Any) -> str:
    """Format an entry of a table: four digits, and powers of ten for small numbers.

    >>> [format_number(v) for v in (20.22086, 1.9577e-14, 3, "harmonic", 1.0, None)]
    ['20.22', '1.96e-14', '3', 'harmonic', '1', 'none']
    """
    if not isinstance(value, float):
        return "none" if value is None else str(value)
    return f"{value:.2e}" if 0 < abs(value) < 1e-3 else f"{value:.4g}"
