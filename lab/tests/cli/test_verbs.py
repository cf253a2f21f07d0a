"""The command line: what it prints where, and its exit status."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harmax.cli.main import main
from harmax_lab import experiments
from harmax_lab.experiments import EXPERIMENTS
from harmax_lab.kit.experiment import view
from harmax_lab.toy.toy_cases import EXPERIMENT, ToySpec
from harmax_lab.vision import mnist

# What a listing has no use for, and what takes long to import.
HEAVY = {"transformers", "matplotlib", "safetensors", "tiktoken", "sklearn", "PIL", "kornia", "torch._inductor"}

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def only_a_tiny_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave one experiment, a few steps long, so that these tests stay quick as experiments are added."""
    for name in reversed(list(EXPERIMENTS)):  # so that they come back in their order
        monkeypatch.delitem(EXPERIMENTS, name)
    tiny = {
        "smoke": ToySpec(steps=2, grid_size=5, cases=(1,)),
        "quick": ToySpec(steps=3, grid_size=5, cases=(1,)),
        "full": ToySpec(steps=4, grid_size=5, cases=(1,)),
    }
    monkeypatch.setitem(EXPERIMENTS, "toy_cases", replace(EXPERIMENT, profiles=tiny, figures=lambda results: {}))


def break_head(monkeypatch: pytest.MonkeyPatch, arm: str, error: BaseException) -> None:
    whole = EXPERIMENTS["toy_cases"]

    def run_cells(spec: Any, cells: Any, progress: Any) -> Any:
        if cells[0].arm == arm:
            raise error
        return whole.work.run_cells(spec, cells, progress)

    monkeypatch.setitem(EXPERIMENTS, "toy_cases", replace(whole, work=replace(whole.work, run_cells=run_cells)))


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "harmax", *arguments], capture_output=True, text=True)


def test_list(capsys: Capture) -> None:
    assert main(["list", "--folder", "nowhere"]) == 0
    head, line, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["smoke", "quick", "full"]
    assert line.startswith("toy_cases  Fig. 1 b, c ")
    assert line.endswith(f"  {EXPERIMENT.title}")


def test_list_shows_measured_times_and_variants(tmp_path: Path, capsys: Capture) -> None:
    assert main(["run", "toy_cases", "--folder", str(tmp_path)]) == 0
    assert main(["run", "Fig. 1 b", "--set", "exponent=4", "--folder", str(tmp_path)]) == 0
    configs = {path: json.loads(path.read_text()) for path in tmp_path.rglob("config.json")}
    (usual,) = (path for path, config in configs.items() if not config["overrides"])
    done = next(usual.parent.rglob("done"))
    stored = json.loads(done.read_text())
    done.write_text(json.dumps({**stored, "seconds": 7200}))
    assert "toy_cases (quick, variant exponent=4.0): 3 of 3 cells done" in capsys.readouterr().out
    assert main(["list", "--folder", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"toy_cases  Fig\. 1 b, c  .*2\.0 h [a-z] +\S+( [a-z])?  Two toy cases", printed), printed
    assert f"measured here, in {tmp_path}" in printed
    assert "your variant: exponent=4.0 (quick)" in printed
    assert main(["list", "--json", "--folder", str(tmp_path)]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["durations"]["quick"]["seconds"] > 7200
    assert entry["variants"] == ["exponent=4.0 (quick)"]


def test_experiments_of_other_packages_are_listed_and_run(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = replace(EXPERIMENTS["toy_cases"], name="mine", figure="Fig. 30")
    monkeypatch.setattr(experiments, "plugins", lambda group: {"package": [outside]} if group == "experiments" else {})
    assert main(["list", "--folder", str(tmp_path)]) == 0
    assert "\nmine " in capsys.readouterr().out
    assert main(["run", "Fig. 30", "--smoke", "--folder", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("mine (smoke): 3 of 3 cells done")
    assert main(["report", "--folder", str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [entry["experiment"] for entry in report["experiments"]] == ["toy_cases", "mine"]
    assert report["damaged"] == []
    for given, message in ((replace(outside, name="toy_cases"), "which there is already"), ([3], "got int")):
        monkeypatch.setattr(experiments, "plugins", lambda group, given=given: {"package": given})
        assert main(["list"]) == 2
        assert message in capsys.readouterr().err


def test_a_place_that_several_experiments_show_names_them(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        EXPERIMENTS, "third", replace(EXPERIMENTS["toy_cases"], name="third", figure="Fig. 1 c; Sec. 9")
    )
    assert main(["run", "fig 1"]) == 2
    message = capsys.readouterr().err
    assert "2 experiments show 'fig 1' of the paper: toy_cases (Fig. 1 b, c); third (Fig. 1 c; Sec. 9)" in message
    found = {place: experiments.find_experiment(place).name for place in ("Fig. 1 b", "Section 9", "9")}
    assert found == {"Fig. 1 b": "toy_cases", "Section 9": "third", "9": "third"}


def test_a_run_draws_its_figures(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = EXPERIMENTS["toy_cases"]
    monkeypatch.setitem(EXPERIMENTS, "toy_cases", replace(tiny, figures=EXPERIMENT.figures))
    assert main(["run", "toy_cases", "--smoke", "--folder", str(tmp_path)]) == 0
    (figures,) = tmp_path.glob("toy_cases/*/figures")
    assert sorted(path.stem for path in figures.glob("*.png")) == list(
        json.loads((figures / "captions.json").read_text())
    )
    assert f"in {figures}" in capsys.readouterr().out


def test_list_json(capsys: Capture) -> None:
    assert main(["list", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["name"] == "toy_cases"
    assert entry["cells"] == {"smoke": 3, "quick": 3, "full": 3}
    assert entry["source"] is None


def add_view(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = EXPERIMENTS["toy_cases"]
    words = {"name": "toy_view", "title": "Another look", "figure": "Fig. 9", "claims": whole.claims}
    monkeypatch.setitem(
        EXPERIMENTS,
        "toy_view",
        view(whole, **words, measure=whole.measure),
    )


def test_list_says_whose_runs_a_view_reads(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    add_view(monkeypatch)
    assert main(["list", "--folder", "nowhere"]) == 0
    assert re.fullmatch(
        r"toy_view   Fig\. 9 [ -]+  Another look \(reads toy_cases\)", capsys.readouterr().out.splitlines()[2]
    )


def test_reproduce_trains_once_for_a_view_and_tries_a_failure_once(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, groups = EXPERIMENTS["toy_cases"], []

    def run_cells(spec: Any, cells: Any, progress: Any) -> Any:
        groups.append(cells[0].arm)
        if cells[0].arm == "cross_entropy":
            raise RuntimeError("out of paper")
        return whole.work.run_cells(spec, cells, progress)

    monkeypatch.setitem(EXPERIMENTS, "toy_cases", replace(whole, work=replace(whole.work, run_cells=run_cells)))
    add_view(monkeypatch)
    assert main(["reproduce", "--smoke", "--folder", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert sorted(groups) == ["cross_entropy", "cross_entropy_bias", "harmonic"]
    assert "toy_view (smoke): 2 of 3 cells of toy_cases done, 1 failed" in printed.out
    assert printed.err.count("out of paper") == 1


def test_run_prints_verdicts_on_stdout_and_progress_on_stderr(tmp_path: Path, capsys: Capture) -> None:
    assert main(["run", "toy_cases", "--folder", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("toy_cases (quick): 3 of 3 cells done, 0 failed\n")
    assert "not decided     norms_of_case_2: " in printed.out
    assert "toy_cases: 3 of 3 cells (100%)" in printed.err
    assert "3 of 3 cells (100%)" not in printed.out


def test_run_json_is_the_summary_and_nothing_else(tmp_path: Path, capsys: Capture) -> None:
    assert main(["run", "toy_cases", "--smoke", "--json", "--folder", str(tmp_path)]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["profile"] == "smoke"
    assert {verdict["claim"] for verdict in summary["verdicts"]} == {claim.id for claim in EXPERIMENT.claims}
    assert Path(summary["folder"], "summary.json").exists()


def test_a_second_run_computes_nothing(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["run", "toy_cases", "--full", "--folder", str(tmp_path)]) == 0
    first = capsys.readouterr().out
    break_head(monkeypatch, "harmonic", AssertionError("computed again"))
    assert main(["run", "toy_cases", "--full", "--folder", str(tmp_path)]) == 0
    assert capsys.readouterr().out == first


@pytest.mark.parametrize(("text", "seeds"), [("2", [0, 1]), ("5,3", [5, 3]), ("4,", [4])])
def test_seeds(tmp_path: Path, capsys: Capture, text: str, seeds: list[int]) -> None:
    assert main(["run", "toy_cases", "--smoke", "--json", "--seeds", text, "--folder", str(tmp_path)]) == 0
    folder = json.loads(capsys.readouterr().out)["folder"]
    assert json.loads(Path(folder, "config.json").read_text())["spec"]["seeds"] == seeds


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "toy_case"], "did you mean 'toy_cases'?"),
        (["run", "toy_cases", "--engine", "lokal"], "did you mean 'local'?"),
        (["run", "toy_cases", "--seeds", "many"], "`--seeds` must be a number of seeds"),
        (["run", "toy_cases", "--seeds", "0"], "`seeds` must be a positive number"),
        (["run", "toy_cases", "--smoke", "--full"], "exclude each other"),
        (["run", "toy_cases", "--device", "abacus"], "`device` must be one that this machine has (cpu"),
        (["reproduce", "--device", "abacus"], "`device` must be one that this machine has (cpu"),
        (["report"], "must be a folder of runs"),
        (["run", "toy_cases", "--set", "exponnt=4"], "did you mean 'exponent'?"),
        (["run", "toy_cases", "--set", "exponent"], "`--set` must be FIELD=VALUE"),
        (["run", "toy_cases", "--set", "steps=many"], "`steps` must be a whole number, got 'many'"),
        (["run", "toy_cases", "--set", "steps=1", "--set", "steps=2"], "`--set` must name each field once"),
        (["run", "toy_cases", "--set", "seeds=3"], "use `--seeds`"),
        (["run", "toy_cases", "--set", "cases=9"], "`toy_cases` cannot be run with cases=9"),
        (["run", "Fig. 99"], "no experiment shows 'Fig. 99'"),
    ],
)
def test_bad_usage_is_one_line_and_status_2(
    tmp_path: Path, capsys: Capture, arguments: list[str], message: str
) -> None:
    folder = tmp_path / "nothing"
    assert main([*arguments, "--folder", str(folder)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("harmax: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert not folder.exists()


def test_failed_cells_are_status_1_and_the_rest_is_kept(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_head(monkeypatch, "cross_entropy", RuntimeError("out of paper"))
    assert main(["run", "toy_cases", "--folder", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "2 of 3 cells done, 1 failed" in printed.out
    assert "cell case=1,arm=cross_entropy,seed=0 failed: RuntimeError: out of paper" in printed.err


def test_a_reason_that_many_cells_share_is_said_once(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = EXPERIMENTS["toy_cases"]

    def run_cells(spec: Any, cells: Any, progress: Any) -> Any:
        raise RuntimeError("no ink" if cells[0].arm == "harmonic" else "out of paper")

    monkeypatch.setitem(EXPERIMENTS, "toy_cases", replace(whole, work=replace(whole.work, run_cells=run_cells)))
    assert main(["run", "toy_cases", "--smoke", "--seeds", "3", "--folder", str(tmp_path)]) == 1
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("harmax: ")]
    assert sorted(said) == [
        "harmax: toy_cases, cell case=1,arm=cross_entropy,seed=0 and 5 others failed: RuntimeError: out of paper",
        "harmax: toy_cases, cell case=1,arm=harmonic,seed=0 and 2 others failed: RuntimeError: no ink",
    ]


@pytest.mark.parametrize("words", [["run", "mnist"], ["run", "mnist", "--full"], ["reproduce"]])
def test_a_mistyped_data_folder_is_one_line_and_status_2(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setitem(EXPERIMENTS, "mnist", mnist.EXPERIMENT)
    monkeypatch.setenv("HARMAX_DATA", "/not/there")
    assert main([*words, "--folder", str(tmp_path / "runs")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("harmax: `HARMAX_DATA` must name a folder, got '/not/there'; ")
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_mistyped_data_folder_stops_nothing_that_needs_none(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXPERIMENTS, "mnist", mnist.EXPERIMENT)
    monkeypatch.setenv("HARMAX_DATA", "/not/there")
    assert main(["run", "toy_cases", "--smoke", "--folder", str(tmp_path)]) == 0
    assert main(["list"]) == 0
    capsys.readouterr()
    assert main(["list", "--json"]) == 0
    printed = capsys.readouterr()
    toy, one_layer = json.loads(printed.out)
    assert toy["cells"] == {"smoke": 3, "quick": 3, "full": 3}
    assert one_layer["cells"] == {"smoke": 20, "quick": None, "full": None}
    assert printed.err.startswith("harmax: `HARMAX_DATA` must name a folder")
    assert printed.err.count("\n") == 1
    assert main(["doctor"]) == 0
    assert "data       `HARMAX_DATA` must name a folder, got '/not/there'" in capsys.readouterr().out
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["data"] is None
    assert "/not/there" in facts["data_problem"]


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        break_head(patch, "cross_entropy", KeyboardInterrupt())
        assert main(["run", "toy_cases", "--folder", str(tmp_path)]) == 130
    assert "the same command" in capsys.readouterr().err
    assert len(list(tmp_path.rglob("done"))) == 1
    assert main(["run", "toy_cases", "--folder", str(tmp_path)]) == 0
    assert len(list(tmp_path.rglob("done"))) == 3


def test_reproduce_prints_the_reports_path_last(tmp_path: Path, capsys: Capture) -> None:
    assert main(["reproduce", "--smoke", "--folder", str(tmp_path)]) == 0
    path = Path(capsys.readouterr().out.splitlines()[-1])
    assert path == tmp_path / "report.html"
    assert "harmax run toy_cases --smoke" in path.read_text()


def test_reproduce_goes_on_past_a_damaged_folder(tmp_path: Path, capsys: Capture) -> None:
    assert main(["run", "toy_cases", "--smoke", "--folder", str(tmp_path)]) == 0
    for config in tmp_path.rglob("config.json"):
        config.write_text("{")
    capsys.readouterr()
    assert main(["reproduce", "--smoke", "--folder", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1] == str(tmp_path / "report.html")
    assert "config.json cannot be read" in printed.err
    assert main(["run", "toy_cases", "--smoke", "--folder", str(tmp_path)]) == 1


def test_report(tmp_path: Path, capsys: Capture) -> None:
    assert main(["run", "toy_cases", "--smoke", "--folder", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["report", "--folder", str(tmp_path), "--output", str(tmp_path / "my.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'my.html'}\n"
    assert main(["report", "--folder", str(tmp_path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["path"] == str(tmp_path / "report.html")
    assert facts["experiments"][0]["profile"] == "smoke"
    assert facts["damaged"] == []


def test_a_report_without_any_run_shows_what_is_published_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "runs/report.html\n"
    assert "the report shows published results only" in printed.err
    assert ">reproduced<" in (tmp_path / "runs/report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "toy_cases", "--folder", "afile"], "`--folder` must be a folder, got 'afile'"),
        (["reproduce", "--folder", "afile/runs"], "`--folder` must be a folder, got 'afile/runs', where 'afile'"),
        (["report", "--folder", ".", "--output", "."], "`--output` must be a file, got the folder '.'"),
    ],
)
def test_impossible_wishes_are_bad_usage(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "afile").touch()
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_exit_status_reaches_the_shell(tmp_path: Path) -> None:
    wrong = command("run", "toy_case", "--folder", str(tmp_path))
    assert wrong.returncode == 2
    assert "did you mean 'toy_cases'" in wrong.stderr
    listed = command("list")
    assert listed.returncode == 0
    assert listed.stderr == ""


def test_list_imports_its_own_verb_alone() -> None:
    tell = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
    code = "from harmax.cli.main import main; main(['list'])"
    done = subprocess.run([sys.executable, "-c", tell + code], capture_output=True, text=True)
    modules = set(done.stderr.split())
    assert "harmax_lab.cli.listing" in modules
    assert not modules & {"harmax_lab.cli.run", "harmax.cli.pretrain"}
    assert "harmax_lab.vision.mnist" in modules
    assert not modules & HEAVY
