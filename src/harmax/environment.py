"""A description of what computes a result: device, cores, versions, commit. It has no dates and no machine names."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np


def choose_device(wanted: str | None = None) -> str:
    """Return the wanted device if this machine has it; without one, "cuda" if there is a GPU and "cpu" otherwise."""
    import torch

    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    known = ["cpu", *(["cuda"] if gpus else []), *gpus]
    if wanted is None:
        return "cuda" if gpus else "cpu"
    if wanted not in known:
        raise ValueError(
            f"`device` must be one that this machine has ({', '.join(known)}), got {wanted!r}; "
            "leave it out to use the fastest."
        )
    return wanted


def cores() -> int:
    """Return how many cores this process may use: HARMAX_CORES, or all that the system allows.

    >>> cores() >= 1
    True
    """
    wanted = os.environ.get("HARMAX_CORES")
    if wanted is not None:
        if not wanted.isdigit() or int(wanted) < 1:
            raise ValueError(
                f"HARMAX_CORES must be a whole number of at least 1, got {wanted!r}; correct or unset the variable."
            )
        return int(wanted)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment(device: str | None = None) -> dict[str, Any]:
    """Return a description of this process: versions, device, threads, commit of the source."""
    import torch

    from harmax import __version__

    device = choose_device(device)
    name = platform.machine() + " CPU" if device == "cpu" else torch.cuda.get_device_name(device)
    return {
        "harmax": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": platform.system(),
        "device": name,
        "threads": torch.get_num_threads(),
        "commit": _commit(),
    }


def _commit() -> str | None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        # This fails for a copy that is installed inside another repository, whose commit would mean nothing here.
        git("ls-files", "--error-unmatch", Path(__file__).name)
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, of the machine or of a GPU.

    >>> is_out_of_memory(RuntimeError("CUDA error: out of memory"))
    True
    """
    # torch's allocator for GPUs has a class for this error. CUDA and the allocator for CPUs have only words.
    words = str(error)
    return isinstance(error, MemoryError) or "out of memory" in words or "can't allocate memory" in words
