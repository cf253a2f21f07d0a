"""Time and memory of a training step."""

import os
import statistics
import time
from collections.abc import Callable, Mapping

import torch


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def milliseconds(steps: Mapping[str, Callable[[], object]], repeats: int, device: str) -> dict[str, dict[str, float]]:
    """20th, 50th and 80th percentile of each step's time; steps take turns, after one untimed round."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(repeats + 1):
        for name, step in steps.items():
            _wait(device)
            start = time.perf_counter()
            step()
            _wait(device)
            if round_:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: _percentiles(values) for name, values in times.items()}


def _percentiles(values: list[float]) -> dict[str, float]:
    if len(values) < 2:
        return dict.fromkeys(("ms_p20", "ms_p50", "ms_p80"), values[0])
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return {"ms_p20": cuts[1], "ms_p50": cuts[4], "ms_p80": cuts[7]}


def peak_mib(step: Callable[[], object], device: str) -> float:
    """Most memory a step holds at once beyond what was there before it, in MiB, as torch's allocator counts it."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # the profiler announces every start and stop on standard error
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak / 2**20
