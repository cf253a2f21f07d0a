"""`harmax bench gpt2`: one row per subject, each with its own memory."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from harmax.bench import BenchOptions, gpt2
from harmax.cli.main import main
from harmax.train.language.step import LanguageStep

SMOKE = BenchOptions(smoke=True)


def test_smoke_prints_a_row_for_each_head(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "gpt2", "--smoke", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["head"], row["loss"]) for row in rows] == [("linear", "cross_entropy"), ("harmonic", "fused")]
    for row in rows:
        assert row["tokens"] == row["sequences"] * row["context"]
        assert row["tokens_per_s"] == pytest.approx(1e3 * row["tokens"] / row["step_ms_p50"], rel=1e-2)
        assert row["step_ms_p20"] <= row["step_ms_p50"] <= row["step_ms_p80"]
        assert row["mfu"] is None  # nobody knows what this CPU could do
        assert {"compile", "dtype", "device", "torch", "speed_ratio", "memory_ratio"} <= row.keys()
    assert (rows[0]["speed_ratio"], rows[0]["memory_ratio"]) == (1, 1)


def test_on_a_gpu_it_is_gpt2_small_as_pretrain_trains_it() -> None:
    spec = gpt2.ON_GPU
    assert (spec.n_layer, spec.n_head, spec.n_embd, spec.vocab) == (12, 12, 768, 50257)
    assert (spec.sequences, spec.micro_batch, spec.context) == (32, 32, 1024)
    assert (spec.dtype, spec.compile, spec.clip, spec.tied) == ("bf16", True, 1.0, True)
    assert list(gpt2.SUBJECTS) == ["cross_entropy", "fused", "eager_compiled"]


def test_the_peak_has_parameters_moments_and_gradients_of_this_subject_alone() -> None:
    spec = replace(gpt2.SMOKE, head="linear", n_embd=64, vocab=4000, sequences=1, micro_batch=1, context=4)
    batches = gpt2.make_batches(spec, torch.device("cpu"))
    peaks = []
    for _ in range(2):  # the first is still there when the second is measured
        step, peak = gpt2._warm_up(spec, "auto", batches, SMOKE)
        peaks.append((step, peak))
    (step, first), (_, second) = peaks
    size = sum(parameter.nbytes for parameter in step.model.parameters()) / 2**30
    assert first == pytest.approx(second, rel=0.05)
    assert 4 * size <= first < 7 * size


def test_what_does_not_fit_has_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    take = LanguageStep.__call__

    def run_out(self: LanguageStep, *arguments: Any) -> Any:
        if self._spec.head == "harmonic":
            raise torch.OutOfMemoryError("no room")
        return take(self, *arguments)

    monkeypatch.setattr(LanguageStep, "__call__", run_out)
    assert [row["loss"] for row in gpt2.rows(SMOKE)] == ["cross_entropy"]


def test_tokens_have_the_frequencies_of_words_and_targets_follow_inputs() -> None:
    spec = replace(gpt2.SMOKE, vocab=1000, micro_batch=50, context=100)
    batches = gpt2.make_batches(spec, torch.device("cpu"))
    pool = [next(batches) for _ in range(gpt2.POOL)]
    inputs, targets = map(torch.cat, zip(*pool, strict=True))
    assert inputs.shape == targets.shape == (50 * gpt2.POOL, 100)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    share = inputs.flatten().bincount(minlength=1000) / inputs.numel()
    assert share[0] == pytest.approx(2 * share[1].item(), rel=0.1)
    assert torch.equal(next(batches)[0], pool[0][0])
