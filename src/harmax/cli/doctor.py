"""`harmax doctor`: what is installed, what is missing, and which implementation of the loss is used for which shape."""

from dataclasses import dataclass
from typing import Any

from harmax.cli.usage import print_json
from harmax.data.folder import find_data
from harmax.environment import environment
from harmax.errors import EXTRAS, install_command, is_installed

SHAPES = {
    "small classifier": (32, 16, 31),
    "MNIST, one layer": (128, 784, 10),
    "ImageNet head": (256, 2048, 1000),
    "GPT-2 small, one sequence": (1024, 768, 50304),
    "GPT-2 small, 16 sequences": (16384, 768, 50304),
    "8B-size vocabulary": (8192, 4096, 128256),
}
"""Typical uses, with their numbers of tokens, features and classes."""


@dataclass(frozen=True)
class Doctor:
    """Report versions, devices, missing extras with the command that installs them, and what `impl="auto"` chooses.

    The last table lists, for six typical shapes, the implementation of the loss that `impl="auto"` uses, and why.
    """

    json: bool = False
    """Print one JSON object."""

    def __call__(self) -> int:
        """Print the report."""
        facts = examine()
        if self.json:
            print_json(facts)
            return 0
        for name, value in facts["environment"].items():
            print(f"{name:<10} {value}")
        print(f"{'devices':<10} {', '.join(facts['devices'])}")
        print(f"{'data':<10} {facts['data'] or facts['data_problem']}")
        print("\nextras")
        for name, extra in facts["extras"].items():
            print(f"  {name:<9} {'installed' if extra['installed'] else 'missing: ' + extra['install']}")
        print('\nimpl="auto"')
        for row in facts["implementations"]:
            shape = f"{row['tokens']} x {row['features']} x {row['classes']}"
            print(f"  {row['use']:<26} {shape:<22} {row['device']:<5} {row['impl']:<8} {row['reason']}")
        return 0


def examine() -> dict[str, Any]:
    """Return the report as plain values."""
    import torch

    from harmax.kernels import choose

    devices = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    implementations = []
    for device in dict.fromkeys(name.partition(":")[0] for name in devices):
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        for use, (tokens, features, classes) in SHAPES.items():
            impl, reason = choose(tokens=tokens, features=features, classes=classes, dtype=dtype, device=device)
            row = {"use": use, "tokens": tokens, "features": features, "classes": classes, "device": device}
            implementations.append({**row, "dtype": str(dtype), "impl": impl, "reason": reason})
    extras = {name: {"installed": is_installed(name), "install": install_command(name)} for name in EXTRAS}
    data, problem = None, "none found; set HARMAX_DATA to the data folder"
    try:
        data = find_data()
    except ValueError as error:
        problem = str(error)
    return {
        "environment": environment(),
        "devices": devices,
        "data": str(data) if data else None,
        "data_problem": None if data else problem,
        "extras": extras,
        "implementations": implementations,
    }
