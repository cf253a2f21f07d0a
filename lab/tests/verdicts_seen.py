"""Which verdicts planted results gave: at the end of a whole run, a claim that was never upheld or never broken fails.

A verdict that no planted results can turn rests on a comparison that cannot fail. Tests judge planted results through
`Experiment.judge`, which is watched here. The check is made where every file of `FOLDERS` ran, in one process or in
several, and nothing else failed. To see it alone:

    python -m pytest lab/tests/algorithmic lab/tests/studies lab/tests/toy lab/tests/vision lab/tests/language
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
FOLDERS = ("algorithmic", "studies", "toy", "vision", "language")
WHOLE = ("", "not gpu and not browser and not jax and not walk and not slow")
"""Markers of a whole run, as `make test` gives them."""
WANTED = ("reproduced", "not reproduced")
OUTPUT = "harmax_lab_verdicts"


def lacking(claims: Iterable[tuple[str, Any]], seen: Mapping[str, set[str]]) -> dict[str, list[str]]:
    """Return, by experiment/claim, the verdicts that no planted results gave; claims that cannot be run need none."""
    found = {}
    for experiment, claim in claims:
        key = f"{experiment}/{claim.id}"
        missing = [verdict for verdict in WANTED if verdict not in seen.get(key, ())]
        if missing and not claim.not_run:
            found[key] = missing
    return found


class Verdicts:
    """The pytest plugin: it records in every process, and checks in the one that reports."""

    def __init__(self) -> None:
        self.seen: dict[str, set[str]] = {}
        self.files: set[str] = set()
        self.planted = False
        self.lacking: dict[str, list[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note which files run, and watch the judge if any of them can call it."""
        self.files |= {item.path.relative_to(HERE).as_posix() for item in session.items if HERE in item.path.parents}
        module = sys.modules.get("harmax_lab.kit.experiment")
        if module is None:
            return
        judge = module.Experiment.judge

        def watched(experiment: Any, results: Any, *variant: str) -> Any:
            summary = judge(experiment, results, *variant)
            for one in summary.verdicts if self.planted else ():
                self.seen.setdefault(f"{experiment.name}/{one.claim}", set()).add(one.verdict)
            return summary

        module.Experiment.judge = watched

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Only tests of experiments plant results; the contract's runs are real and small."""
        self.planted = HERE in item.path.parents and item.path.relative_to(HERE).parts[0] in FOLDERS

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a process of pytest-xdist has seen."""
        files, seen = getattr(node, "workeroutput", {}).get(OUTPUT, ((), {}))
        self.files |= set(files)
        for key, verdicts in seen.items():
            self.seen.setdefault(key, set()).update(verdicts)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Hand over what was seen, or check it."""
        if hasattr(session.config, "workeroutput"):
            seen = {key: sorted(verdicts) for key, verdicts in self.seen.items()}
            session.config.workeroutput[OUTPUT] = (sorted(self.files), seen)
        elif exitstatus == 0 and self.whole(session.config):
            from harmax_lab.experiments import EXPERIMENTS

            claims = [(name, claim) for name, experiment in EXPERIMENTS.items() for claim in experiment.claims]
            self.lacking = lacking(claims, self.seen)
            if self.lacking:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def whole(self, config: pytest.Config) -> bool:
        """Return whether all tests that plant results ran."""
        files = {path.relative_to(HERE).as_posix() for name in FOLDERS for path in (HERE / name).glob("test_*.py")}
        chosen = config.option.keyword or config.option.markexpr not in WHOLE or config.getoption("lf")
        chosen = chosen or any("::" in str(one) for one in config.args)
        return not chosen and not config.option.collectonly and files <= self.files

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Name the claims."""
        if self.lacking:
            terminalreporter.section("claims whose verdict no planted results could turn", red=True)
            for key, verdicts in self.lacking.items():
                terminalreporter.line(f"{key}: never {' and never '.join(verdicts)}; plant such results in its tests")
