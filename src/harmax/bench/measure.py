"""Measures time and memory of a training step."""

import os
import statistics
import time
from collections.abc import Callable, Mapping

import torch

CYCLES = 4_000_000
"""GPU cycles that take at least two milliseconds, at the highest clock."""


def milliseconds(steps: Mapping[str, Callable[[], object]], repeats: int, device: str) -> dict[str, dict[str, float]]:
    """Return the 20th, 50th and 80th percentile of each step's time. Steps take turns, after one untimed round.

    On a GPU these are GPU times, with the host ahead of the device as in training. `host_ms` is the CPU time needed to
    launch one step. If it is larger than the GPU time and nothing else keeps the GPU busy, the step takes that long.
    """
    measure = _on_gpu if device.startswith("cuda") else _on_cpu
    return measure(steps, repeats)


def _on_cpu(steps: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, dict[str, float]]:
    times: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(repeats + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if round_:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: percentiles(values, "ms") for name, values in times.items()}


def _on_gpu(steps: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, dict[str, float]]:
    host = {name: statistics.median(_host_milliseconds(step) for _ in range(3)) for name, step in steps.items()}
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in steps}
    for _ in range(repeats + 1):
        for name, step in steps.items():
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            _keep_gpu_busy(int(host[name] * CYCLES))  # while the host launches the step
            first.record()
            step()
            last.record()
            events[name].append((first, last))
    torch.cuda.synchronize()
    times = {name: [first.elapsed_time(last) for first, last in pairs[1:]] for name, pairs in events.items()}
    return {name: {**percentiles(values, "ms"), "host_ms": host[name]} for name, values in times.items()}


def _keep_gpu_busy(cycles: int) -> None:
    """Make the GPU wait without occupying the host; torch has no public name for it."""
    torch.cuda._sleep(cycles)


def _host_milliseconds(step: Callable[[], object]) -> float:
    """Return the time that the host needs to launch a step on an idle device."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    taken = time.perf_counter() - start
    torch.cuda.synchronize()
    return 1e3 * taken


def time_blocks(
    steps: Mapping[str, Callable[[], object]], count: int, rounds: int, device: torch.device
) -> dict[str, list[float]]:
    """Return the milliseconds per step in each block of `count` steps. Blocks take turns, after one untimed round."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(rounds + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            for _ in range(count):
                step()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if round_:
                times[name].append(1e3 * (time.perf_counter() - start) / count)
    return times


def percentiles(values: list[float], name: str) -> dict[str, float]:
    """Return the 20th, 50th and 80th percentile, under names that begin with `name`.

    >>> percentiles([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "ms")
    {'ms_p20': 2.0, 'ms_p50': 3.5, 'ms_p80': 5.0}
    """
    if len(values) < 2:
        return dict.fromkeys((f"{name}_p20", f"{name}_p50", f"{name}_p80"), values[0])
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return {f"{name}_p20": cuts[1], f"{name}_p50": cuts[4], f"{name}_p80": cuts[7]}


def peak_mib(step: Callable[[], object], device: str) -> float:
    """Return the peak memory of a step in MiB, as torch's allocator counts it, without the memory in use before it."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # otherwise the profiler prints a line per start and stop
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    held = peak = 0
    # The public events of a profile have no order in time, which a peak needs.
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak / 2**20
