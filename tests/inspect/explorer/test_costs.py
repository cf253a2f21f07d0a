"""The costs of a page are the measured rows, from a wheel as from a checkout."""

import json
import tomllib
from pathlib import Path

import pytest

from harmax.errors import DamagedError
from harmax.inspect.explorer import costs

ROOT = Path(__file__).parents[3]


def test_costs_are_the_measured_rows() -> None:
    found = costs.measured_costs()
    rows = [json.loads(line) for line in (ROOT / "benchmarks/results/loss-cuda.jsonl").read_text().splitlines()]
    on_gpu = [row for row in found if row.place == "NVIDIA H200, bfloat16"]
    assert [(row.impl, row.tokens, row.ms) for row in on_gpu] == [(r["impl"], r["tokens"], r["ms_p50"]) for r in rows]
    assert {row.place for row in found if row not in on_gpu} == {"CPU, 1 thread, float32", "CPU, 2 threads, float32"}


def test_a_wheel_brings_every_file_that_is_read() -> None:
    target = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    brought = target["force-include"]
    assert {Path(path).name for path, place in brought.items() if "measured" in place} == set(costs.MEASURED)
    assert all((ROOT / path).is_file() for path in brought)


def test_damaged_rows_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in costs.MEASURED:
        (tmp_path / name).write_text('{"impl": "eager"}\n')
    monkeypatch.setattr(costs, "rows_folder", lambda: tmp_path)
    with pytest.raises(DamagedError, match=r"loss-cuda.jsonl must hold measured rows"):
        costs.measured_costs()
    monkeypatch.setattr(costs, "rows_folder", lambda: None)
    assert costs.measured_costs() == []
