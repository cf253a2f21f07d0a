"""What a run measures: metrics.jsonl, the cost of a token, the memory."""

import resource
import sys
from pathlib import Path
from typing import Any

import torch

from harmax.files import from_json, to_json, write_atomically
from harmax.train.spec import PretrainSpec

# bf16 products of dense matrices, FLOP/s, by the makers' sheets. The first name that occurs in the device's counts.
PEAK_FLOPS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "RTX 4090": 165e12,
}


class MetricsFile:
    """A file of one JSON object a line, one line a step, that goes on after a checkpoint's step."""

    def __init__(self, path: Path, after: int) -> None:
        self.path = path
        lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
        kept = []
        for line in lines:
            # What was written after the checkpoint comes again; a crash may have left half a line.
            if not line.endswith(b"\n") or from_json(line)["step"] > after:
                break
            kept.append(line)
        write_atomically(path, b"".join(kept))

    def add(self, record: dict[str, Any]) -> None:
        """Append one line."""
        with self.path.open("a") as file:
            file.write(to_json(record) + "\n")


def flops_per_token(spec: PretrainSpec, parameters: int) -> float:
    """Floating-point operations that training spends on a token: 6 N + 12 layers x features x context.

    Args:
        spec: the model's sizes.
        parameters: all of them, a tied matrix once; lookups (positions, an untied embedding) are taken off here.

    >>> f"{flops_per_token(PretrainSpec(), 124_475_904):.3g}"
    '8.55e+08'
    """
    lookups = spec.context * spec.n_embd + (0 if spec.tied else spec.vocab * spec.n_embd)
    return 6 * (parameters - lookups) + 12 * spec.n_layer * spec.n_embd * spec.context


def peak_flops(device: torch.device, dtype: str) -> float | None:
    """FLOP/s that a device could do, where that is known."""
    if device.type != "cuda" or dtype != "bf16":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for known, peak in PEAK_FLOPS.items() if known in name), None)


def memory_gib(device: torch.device) -> float:
    """Most memory held so far: of the GPU as torch counts it, else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    unit = 1 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
