"""Times and peaks of steps."""

from typing import Any

import pytest
import torch

from harmax.bench import measure


def test_subjects_take_turns_and_the_first_round_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    now, order = [0.0], []

    def takes(name: str, seconds: float) -> Any:
        def step() -> None:
            order.append(name)
            now[0] += seconds if len(order) > 4 else 1000

        return step

    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    steps = {"a": takes("a", 0.002), "b": takes("b", 0.003)}
    times = measure.time_blocks(steps, count=2, rounds=3, device=torch.device("cpu"))
    assert "".join(order) == "aabb" * 4
    assert {name: [round(value, 6) for value in values] for name, values in times.items()} == {
        "a": [2, 2, 2],
        "b": [3, 3, 3],
    }


def test_a_peak_is_what_a_step_holds_at_once_and_not_in_all() -> None:
    def step() -> None:
        for _ in range(3):
            torch.ones(2**18)  # one MiB, freed before the next

    assert measure.peak_mib(step, "cpu") == pytest.approx(1, rel=0.1)


def test_one_measurement_is_all_three_percentiles() -> None:
    assert measure.percentiles([2.0], "ms") == {"ms_p20": 2.0, "ms_p50": 2.0, "ms_p80": 2.0}
