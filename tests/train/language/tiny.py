"""A GPT-2 that trains in a second, and how its runs are compared."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from harmax.files import from_json
from harmax.train import PRESETS, PretrainSpec

# What a step computes; the rest of a line says how long it took.
NUMBERS = ("step", "tokens", "loss", "lr", "gradient_norm", "val_loss", "epochs")


def spec(**fields: Any) -> PretrainSpec:
    sizes = dict(
        n_embd=16, context=16, vocab=50, sequences=8, micro_batch=2, steps=20, warmup=2, evaluation_sequences=7
    )
    every = dict(evaluate_every=10, checkpoint_every=4)
    fields = {**sizes, **every, **fields}
    fields["warmup"] = min(fields["warmup"], (fields.get("decay_steps") or fields["steps"]) - 1)
    return replace(PRESETS["smoke"], **fields)


def flags(settings: PretrainSpec) -> list[str]:
    """What `harmax pretrain` has to be told for a spec."""
    differing = [name for name, value in vars(settings).items() if value != getattr(PRESETS["smoke"], name)]
    return [
        "smoke",
        *(word for name in differing for word in (f"--{name.replace('_', '-')}", str(vars(settings)[name]))),
    ]


def lines(output: Path) -> list[dict[str, Any]]:
    return [from_json(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def last_whole_line(output: Path) -> dict[str, Any]:
    """The last line of metrics that a killed run got to write."""
    return from_json((output / "metrics.jsonl").read_text().rpartition("\n")[0].splitlines()[-1])


def curve(output: Path) -> list[dict[str, Any]]:
    return [{name: line[name] for name in NUMBERS if name in line} for line in lines(output)]


def weights(output: Path) -> dict[str, torch.Tensor]:
    return load_file(output / "model" / "model.safetensors")


def assert_same_up_to_rounding(output: Path, reference: Path) -> None:
    """Loss curves and final weights agree as far as sums in another order can.

    A gradient is a sum over sequences, and other processes or micro-batches add them in another order: float32 has a
    unit of 1.2e-7 there, and AdamW carries it on through 20 steps of up to 1e-2. On two and four processes logged
    numbers come to differ by 2e-6 of themselves and weights by 1.4e-6; the bounds are some ten times that. A gradient
    scaled by one part in a thousand, or one sequence counted twice, is far outside.
    """
    ours, theirs = lines(output), lines(reference)
    assert [line["step"] for line in ours] == [line["step"] for line in theirs]
    for name in ("loss", "val_loss", "gradient_norm"):
        pairs = [(a[name], b[name]) for a, b in zip(ours, theirs, strict=True) if name in a and name in b]
        torch.testing.assert_close(*map(torch.tensor, zip(*pairs, strict=True)), rtol=2e-5, atol=1e-6)
    found, wanted = weights(output), weights(reference)
    assert found.keys() == wanted.keys()
    for name in wanted:
        a, b = found[name], wanted[name]
        if name.endswith("c_attn.bias"):
            # A bias of the keys moves no attention: its gradient is rounding alone, which Adam blows up to a step.
            width = len(a) // 3
            a, b = (torch.cat([t[:width], t[2 * width :]]) for t in (a, b))
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1.5e-5, msg=lambda text, name=name: f"{name}: {text}")
