"""The command `harmax` of the library: what it prints where, and its exit status."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harmax.cli.main import main
from harmax.cli.verbs import LAB_VERBS, all_verbs
from harmax.kernels import IMPLS

Capture = pytest.CaptureFixture[str]

# What help has no use for, and what takes long to import.
HEAVY = {"transformers", "matplotlib", "safetensors", "tiktoken", "sklearn", "PIL", "kornia", "torch._inductor"}


def test_doctor(capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HARMAX_DATA", str(tmp_path))
    monkeypatch.setattr("harmax.cli.doctor.is_installed", lambda extra: extra != "sklearn")
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert 'sklearn   missing: pip install "harmax[sklearn]"' in text
    assert f"data       {tmp_path}" in text
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    chosen = {row["use"]: row["impl"] for row in facts["implementations"] if row["device"] == "cpu"}
    assert chosen["small classifier"] == "eager"
    assert chosen["GPT-2 small, 16 sequences"] == "chunked"
    assert all(row["reason"] for row in facts["implementations"])


@pytest.mark.parametrize("verb", LAB_VERBS)
def test_without_the_laboratory_its_verbs_say_what_to_install(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("harmax.plugins.entry_points", lambda group: [])
    monkeypatch.chdir(tmp_path)
    assert main([verb]) == 2
    printed = capsys.readouterr()
    assert (
        printed.err
        == f"harmax: `harmax {verb}` needs harmax-lab, which is not installed; run pip install harmax-lab.\n"
    )
    assert printed.out == ""
    assert not list(tmp_path.iterdir())


def test_the_laboratory_brings_the_verbs_that_are_promised() -> None:
    assert set(LAB_VERBS) <= set(all_verbs())


def test_an_unknown_verb_is_bad_usage(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["frobnicate"])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert all(verb in said for verb in all_verbs())


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "benchmarks/results"


def test_bench_json_prints_and_keeps_a_row_a_line(results: Path, capsys: Capture) -> None:
    assert main(["bench", "import", "--repeats", "1", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["module"] for row in rows] == ["harmax"]
    assert [json.loads(line) for line in (results / "import-cpu.jsonl").read_text().splitlines()] == rows


@pytest.mark.usefixtures("results")
def test_bench_loss_measures_every_implementation(capsys: Capture) -> None:
    assert main(["bench", "loss", "--smoke", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    measured = {row["impl"].partition("_")[0] for row in rows}
    assert {"cross", *IMPLS} <= measured
    for row in rows:
        assert row["ms_p20"] <= row["ms_p50"] <= row["ms_p80"]
        assert {"tokens", "features", "classes", "dtype", "device", "peak_mib"} <= set(row)
        assert 0 < row["error"] < 1e-5


def test_bench_smoke_keeps_nothing(results: Path, capsys: Capture) -> None:
    assert main(["bench", "import", "--smoke"]) == 0
    assert "harmax" in capsys.readouterr().out
    assert not results.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "import", "--repeats", "0"], "`--repeats` must be at least 1, got 0"),
        (["bench", "import", "--threads", "-1"], "`--threads` must be at least 1, got -1"),
        (["bench", "loss", "--device", "abacus"], "`--device` must name a device of this machine, got 'abacus'"),
    ],
)
def test_impossible_wishes_are_bad_usage(arguments: list[str], message: str, capsys: Capture) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_benchmark_is_bad_usage(capsys: Capture) -> None:
    assert main(["bench", "los"]) == 2
    assert "did you mean 'loss'?" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["tyro", "rich"])
def test_without_the_extra_the_command_says_how_to_install_it(module: str) -> None:
    code = f"import sys; sys.modules[{module!r}] = None; from harmax.cli.main import main; sys.exit(main(['doctor']))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert 'run pip install "harmax[cli]"' in result.stderr


def loaded_by(*words: str) -> set[str]:
    """Names of the modules that a command leaves imported."""
    code = f"import sys; from harmax.cli.main import main; main({list(words)!r})"
    tell = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
    done = subprocess.run([sys.executable, "-c", tell + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def own_verbs(modules: set[str]) -> set[str]:
    files = {where.partition(":")[0] for where, _ in all_verbs().values()}
    return modules & files


def test_help_imports_no_verb_and_no_experiment() -> None:
    modules = loaded_by("--help")
    assert own_verbs(modules) == set()
    assert not any(
        name.startswith(("harmax_lab.experiments", "harmax.train", "harmax_lab.kit.engine")) for name in modules
    )
    assert not modules & {*HEAVY, "torch._dynamo"}


@pytest.mark.parametrize("name", all_verbs())
def test_every_verb_explains_itself(name: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: harmax {name}")
    assert all_verbs()[name][1].endswith(".")


def test_help_names_every_verb_and_says_what_it_does(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    lines = " ".join(line.strip("│ ") for line in capsys.readouterr().out.splitlines())
    for name, (_, words) in all_verbs().items():
        assert f"• {name}" in lines
        assert words in lines


def test_completion_knows_the_flags_of_every_verb(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--tyro-print-completion", "bash"])
    assert not stop.value.code
    script = capsys.readouterr().out
    assert all(flag in script for flag in ("--smoke", "--neighbors", "--shard-tokens", "--micro-batch"))
