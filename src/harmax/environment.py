"""What computed a result: versions, device, commit. No dates and no names of machines."""

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np


def environment() -> dict[str, Any]:
    """Describe this process: versions, device, threads, commit of the source."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine() + " CPU"
    return {
        "harmax": version("harmax"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": platform.system(),
        "device": device,
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
