"""`harmax bench vision`: one row per head, each with its own memory."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from harmax.bench import BenchOptions, vision
from harmax.train.vision.step import VisionStep

SMOKE = BenchOptions(smoke=True)


def test_smoke_has_a_row_for_each_head() -> None:
    rows = list(vision.rows(SMOKE))
    assert [row["head"] for row in rows] == ["linear", "harmonic"]
    for row in rows:
        assert row["images_per_s"] == pytest.approx(1e3 * row["images"] / row["step_ms_p50"], rel=1e-2)
        assert row["step_ms_p20"] <= row["step_ms_p50"] <= row["step_ms_p80"]
        assert {"peak_gib", "memory_ratio", "compile", "dtype", "device", "torch"} <= row.keys()
    assert (rows[0]["speed_ratio"], rows[0]["memory_ratio"]) == (1, 1)
    assert rows[1]["speed_ratio"] == pytest.approx(rows[0]["step_ms_p50"] / rows[1]["step_ms_p50"], rel=1e-2)


def test_on_a_gpu_it_is_resnet_50_as_the_recipe_trains_it() -> None:
    spec = vision.ON_GPU
    assert (spec.model, spec.batch, spec.micro_batch, spec.image_size) == ("resnet50", 256, 256, 224)
    assert (spec.dtype, spec.compile, spec.channels_last, vision.CLASSES) == ("bf16", True, True, 1000)


def test_the_peak_has_weights_momenta_and_gradients_of_this_head_alone() -> None:
    spec = replace(vision.SMOKE, head="linear", model="resnet18", batch=2, micro_batch=2)
    batches = vision.make_batches(spec, torch.device("cpu"))
    (step, first), (_, second) = [vision._warm_up(spec, batches, SMOKE) for _ in range(2)]
    size = sum(parameter.nbytes for parameter in step.model.parameters()) / 2**30
    assert first == pytest.approx(second, rel=0.05)
    assert 3 * size <= first < 5 * size


def test_what_does_not_fit_has_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    take = VisionStep.__call__

    def run_out(self: VisionStep, *arguments: Any) -> Any:
        if self._spec.head == "linear":
            raise torch.OutOfMemoryError("no room")
        return take(self, *arguments)

    monkeypatch.setattr(VisionStep, "__call__", run_out)
    (row,) = vision.rows(SMOKE)
    assert (row["head"], row["speed_ratio"]) == ("harmonic", None)
