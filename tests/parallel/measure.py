"""How much memory a computation needs: from torch's own list of allocations."""

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def measured(compute: Callable[[], T]) -> tuple[T, int, int]:
    """Return what a computation returns, the most bytes that it had allocated at once, and those of one tensor."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        result = compute()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    held = peak = 0
    for event in events:
        held += event.nbytes()
        peak = max(peak, held)
    return result, peak, max(event.nbytes() for event in events)
