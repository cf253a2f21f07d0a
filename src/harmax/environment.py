"""What computes a result: device, cores, versions, commit. No dates and no names of machines."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np


def choose_device(wanted: str | None = None) -> str:
    """Return the device that is wanted, if this machine has it; without a wish cuda where there is one, else cpu."""
    import torch

    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    known = ["cpu", *(["cuda"] if gpus else []), *gpus]
    if wanted is None:
        return "cuda" if gpus else "cpu"
    if wanted not in known:
        raise ValueError(
            f"`device` must be one that this machine has ({', '.join(known)}), got {wanted!r}; "
            "leave it out for the best."
        )
    return wanted


def cores() -> int:
    """Return how many cores this process may use: HARMAX_CORES, or all that it may run on.

    >>> cores() >= 1
    True
    """
    wanted = os.environ.get("HARMAX_CORES")
    if wanted is not None:
        if not wanted.isdigit() or int(wanted) < 1:
            raise ValueError(f"HARMAX_CORES must be a whole number from 1 on, got {wanted!r}; correct or unset it.")
        return int(wanted)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment(device: str | None = None) -> dict[str, Any]:
    """Describe this process: versions, the device it computes on, threads, commit of the source."""
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
        # Fails for a copy installed under someone else's repository, whose commit would say nothing.
        git("ls-files", "--error-unmatch", Path(__file__).name)
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
