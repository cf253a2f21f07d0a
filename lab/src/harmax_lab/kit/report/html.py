"""One self-contained HTML file: for each figure the claims, the paper's numbers, ours, the verdicts and the command."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harmax.errors import needs
from harmax.figures import Picture, house_style
from harmax.files import write_atomically
from harmax_lab.kit.claims import Claim, Verdict, said_and_rule, verdict_words
from harmax_lab.kit.experiment import PROFILES, Experiment, Summary
from harmax_lab.kit.report.svg import to_svg
from harmax_lab.kit.results import Results
from harmax_lab.kit.store import Damage, Run, open_runs, spec_hash
from harmax_lab.kit.variants import as_flags, changes_of, in_words

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
        """The claims with their verdicts; empty without a finished cell."""
        return list(zip(self.experiment.claims, self.summary.verdicts, strict=False))


@dataclass(frozen=True)
class Report:
    """Where the report was written, what it shows and what it leaves out."""

    path: Path
    sections: tuple[Section, ...]
    damaged: tuple[Damage, ...]

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
                }
                for section in self.sections
            ],
            "damaged": [{"path": str(damage.path), "reason": damage.reason} for damage in self.damaged],
        }


def write_report(
    experiments: Iterable[Experiment[Any, Any]], folder: Path | str = "runs", output: Path | str | None = None
) -> Report:
    """Write the report of a folder of runs. Damaged runs are listed in it and left as they are.

    Args:
        experiments: in the order of the report.
        folder: what was given to `harmax run --folder`.
        output: the file to write; None: report.html in `folder`.
    """
    sections, damaged = collect(experiments, folder)
    path = Path(output) if output is not None else Path(folder) / "report.html"
    report = Report(path, sections, damaged)
    write_atomically(path, _render(report).encode())
    return report


def collect(
    experiments: Iterable[Experiment[Any, Any]], folder: Path | str
) -> tuple[tuple[Section, ...], tuple[Damage, ...]]:
    """Judge and draw the best run of each experiment in a folder, and list what could not be used.

    Runs with settings of the user's own have sections of their own after that of the standard run.
    """
    experiments, runs = list(experiments), open_runs(folder)
    damaged, known = list(runs.damaged), {experiment.name for experiment in experiments}
    damaged += [Damage(run.folder, UNREGISTERED) for run in runs if run.experiment not in known]
    sections = []
    for experiment in experiments:
        candidates: dict[str, list[Run]] = {"": []}
        for run in runs.query(experiment=experiment.name):
            try:
                _check_current(experiment, run)
                describe_environment(run)
                candidates.setdefault(in_words(changes_of(run)), []).append(run)
            except ValueError as error:  # a DamagedError among them
                damaged.append(Damage(run.folder, str(error)))
        for variant, own in candidates.items():
            sections.append(_section(experiment, max(own, key=_worth, default=None), variant))
    return tuple(sections), tuple(damaged)


def command_of(run: Run) -> str:
    """Return the command that makes this run."""
    flag = {"quick": "", "smoke": " --smoke", "full": " --full"}[run.profile]
    seeds = run.config["overrides"].get("seeds")
    chosen = "" if seeds is None else " --seeds " + ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")
    return f"harmax run {run.experiment}{flag}{chosen}{as_flags(changes_of(run))}"


def _check_current(experiment: Experiment[Any, Any], run: Run) -> None:
    if run.profile not in PROFILES:
        raise ValueError(f"its profile must be one of {', '.join(PROFILES)}, got {run.profile!r}; run it again")
    if run.config["version"] != experiment.version:
        raise ValueError(
            f"written by version {run.config['version']} of the experiment, which is now at {experiment.version}; "
            f"run it again"
        )
    experiment.load_spec(run.config["spec"])
    origin = experiment.source
    source = origin and f"{origin.name}/{spec_hash(origin.name, origin.version, run.config['spec'])}"
    if run.source != source:
        raise ValueError(f"reads the cells of {run.source}, but the experiment now reads {source}; run it again")


def _worth(run: Run) -> tuple[bool, int, int]:
    """Order runs by whether nothing is left to do, then by profile, then by the number of finished cells."""
    settled = bool(run.done) and set(run.pending) <= set(run.failed)
    return settled, PROFILES.index(run.profile), len(run.done)


def _section(experiment: Experiment[Any, Any], run: Run | None, variant: str) -> Section:
    if run is None or not run.done:
        return Section(
            experiment, command_of(run) if run and variant else f"harmax run {experiment.name}", run, variant=variant
        )
    spec = experiment.load_spec(run.config["spec"])
    results = experiment.results(spec, experiment.by_cell(spec, run.results))
    with house_style():
        pictures = experiment.figures(results)
    if variant:  # an id on the page is that of one figure
        pictures = {f"{name}-{run.folder.name}": picture for name, picture in pictures.items()}
    return Section(experiment, command_of(run), run, results, experiment.judge(results, variant), pictures, variant)


def _render(report: Report) -> str:
    with needs("figures"):
        from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("harmax_lab.kit.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": format_number,
        "words": verdict_words,
        "said_and_rule": said_and_rule,
        "machine": describe_environment,
        "svg": to_svg,
    }
    return environment.get_template("template.html.j2").render(report=report)


def format_number(value: Any) -> str:
    """Format an entry of a table: four digits, and powers of ten for small numbers.

    >>> [format_number(v) for v in (20.22086, 1.9577e-14, 3, "harmonic", 1.0, None)]
    ['20.22', '1.96e-14', '3', 'harmonic', '1', 'none']
    """
    if not isinstance(value, float):
        return "none" if value is None else str(value)
    return f"{value:.2e}" if 0 < abs(value) < 1e-3 else f"{value:.4g}"


def describe_environment(run: Run) -> str:
    """Return one line about the versions and devices that computed a run."""
    lines = []
    for env in run.environments:
        commit = f", commit {env['commit']}" if env.get("commit") else ""
        harmax, torch, python, device = (env.get(name, "unknown") for name in ("harmax", "torch", "python", "device"))
        lines.append(f"harmax {harmax}, torch {torch}, Python {python}, {device}{commit}")
    return "; then ".join(lines) or "unknown"
