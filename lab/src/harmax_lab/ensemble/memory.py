"""How much memory is free."""

import os

import torch

from harmax.environment import cores


def free_bytes(device: torch.device) -> int:
    """Return how many bytes are free on a device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # Memory that torch's allocator holds but does not use is free too.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        with open("/proc/meminfo") as lines:
            free = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    if "HARMAX_CORES" not in os.environ:
        return free
    # A process that may use only some of the cores may use the same share of the memory.
    return free * cores() // max(os.cpu_count() or 1, cores())


def in_words(size: int) -> str:
    """Write a number of bytes in MiB or GiB.

    >>> in_words(3 * 2**30)
    '3.0 GiB'
    """
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
