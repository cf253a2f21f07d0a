"""`harmax bench`: what it prints, what it keeps, and its help."""

import json
from pathlib import Path

import pytest

from harmax.bench import describe_benchmarks
from harmax.cli.main import main
from harmax.kernels import IMPLS

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "benchmarks/results"


def test_json_prints_and_keeps_one_row_per_line(results: Path, capsys: Capture) -> None:
    assert main(["bench", "import", "--repeats", "1", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["module"] for row in rows] == ["harmax"]
    assert [json.loads(line) for line in (results / "import-cpu.jsonl").read_text().splitlines()] == rows


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.usefixtures("results")
def test_bench_ranks_shows_less_memory_on_more_processes(capsys: Capture) -> None:
    assert main(["bench", "ranks", "--smoke", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["ranks"] for row in rows] == [1, 2]
    assert all(row["difference"] < 1e-6 for row in rows)
    one, two = (row["centers_mib"] + row["gradients_mib"] + row["peak_mib"] for row in rows)
    assert two < 0.7 * one


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
def test_impossible_settings_are_bad_usage(arguments: list[str], message: str, capsys: Capture) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_benchmark_is_bad_usage(capsys: Capture) -> None:
    assert main(["bench", "los"]) == 2
    assert "did you mean 'loss'?" in capsys.readouterr().err


def test_help_lists_every_benchmark_with_one_line(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", "--help"])
    assert stop.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    for name, words in describe_benchmarks().items():
        assert len(words) > 20
        assert f"{name}: {words}" in lines
