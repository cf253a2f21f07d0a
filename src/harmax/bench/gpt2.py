"""A training step of GPT-2 small, as in `harmax pretrain`, with the harmonic head and with the linear head.

A step is forward, backward, clipping and AdamW. It has 32 x 1024 tokens on a GPU and 1 x 1024 on a CPU, where 32 would
take minutes. Tokens are random with the frequencies of words. They come from a pool that is on the device already.
"""

# B sequences per step, T tokens per sequence

import gc
import itertools
import statistics
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from harmax.bench.measure import peak_mib, percentiles, time_blocks
from harmax.bench.options import BenchOptions
from harmax.train import PRESETS, PretrainSpec

if TYPE_CHECKING:
    from harmax.train.language.step import LanguageStep

ON_GPU = PretrainSpec(sequences=32, micro_batch=32)
ON_CPU = replace(ON_GPU, sequences=1, micro_batch=1, dtype="float32")
SMOKE = replace(PRESETS["smoke"], sequences=8)

Batches = Iterator[tuple[Tensor, Tensor]]
POOL = 8
"""Number of batches that all subjects use in turn."""


@dataclass(frozen=True)
class Subject:
    """A head, and how its loss is computed."""

    head: Literal["harmonic", "linear"]
    impl: str = "auto"
    gpu_only: bool = False


SUBJECTS: dict[str, Subject] = {
    "cross_entropy": Subject("linear"),
    "fused": Subject("harmonic"),
    # The loss without the kernels: the specification, compiled with the rest of the model.
    "eager_compiled": Subject("harmonic", "eager", gpu_only=True),
}
STANDARD = "cross_entropy"


def rows(options: BenchOptions) -> Iterator[dict[str, Any]]:
    """A training step of GPT-2 small: tokens per second and peak memory, harmonic head against linear head.

    One row per subject. In each of `repeats` rounds every subject takes a block of steps, with one wait for the device
    per block. Percentiles are over blocks, each divided by its number of steps. The peak is the memory of parameters
    and moments plus the largest further memory of a step. It does not include the memory of other subjects, nor the
    workspace of cuBLAS, which exists before the measured step. A subject that does not fit into memory has no row.
    """
    from harmax.train.language.cost import peak_flops

    if options.threads:
        torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    spec = SMOKE if options.smoke else ON_GPU if device.type == "cuda" else ON_CPU
    tokens, steps_of_block = spec.sequences * spec.context, 2 if options.smoke else 10 if device.type == "cuda" else 1
    torch.compiler.reset()
    # Memory is measured on the current GPU, if there is one.
    with torch.cuda.device(device if device.type == "cuda" else -1):
        batches, steps, peaks = make_batches(spec, device), {}, {}
        for name, subject in SUBJECTS.items():
            if subject.gpu_only and device.type != "cuda":
                continue
            with suppress(torch.OutOfMemoryError):
                steps[name], peaks[name] = _warm_up(replace(spec, head=subject.head), subject.impl, batches, options)
            gc.collect()  # free the memory of a subject that did not fit
        turns = {name: partial(step, batches, spec.lr) for name, step in steps.items()}
        times = time_blocks(turns, steps_of_block, 1 if options.smoke else options.repeats, device)
    peak = peak_flops(device, spec.dtype)
    middle = {name: statistics.median(values) for name, values in times.items()}
    for name, step in steps.items():
        speed = 1e3 * tokens / middle[name]
        yield {
            "head": SUBJECTS[name].head,
            "loss": name,
            "tokens_per_s": round(speed),
            "peak_gib": round(peaks[name], 3),
            "mfu": None if peak is None else round(speed * step.flops_per_token / peak, 4),
            "speed_ratio": round(middle[STANDARD] / middle[name], 4) if STANDARD in steps else None,
            "memory_ratio": round(peaks[name] / peaks[STANDARD], 4) if STANDARD in steps else None,
            **{key: round(value, 3) for key, value in percentiles(times[name], "step_ms").items()},
            "tokens": tokens,
            "context": spec.context,
            "sequences": spec.sequences,
            "compile": spec.compile,
            "dtype": spec.dtype,
            "device": options.device,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            **({"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}),
        }


def make_batches(spec: PretrainSpec, device: torch.device) -> Batches:
    """Return an endless cycle of inputs and targets, (B, T) each; the frequency of token k is proportional to 1 / k."""
    generator = torch.Generator().manual_seed(0)
    frequency = 1 / torch.arange(1.0, spec.vocab + 1)
    shape = (POOL, spec.micro_batch, spec.context + 1)
    drawn = torch.multinomial(frequency, POOL * spec.micro_batch * (spec.context + 1), True, generator=generator)
    windows = drawn.view(shape).to(device)
    return itertools.cycle([(window[:, :-1].contiguous(), window[:, 1:].contiguous()) for window in windows])


def _warm_up(spec: PretrainSpec, impl: str, batches: Batches, options: BenchOptions) -> tuple["LanguageStep", float]:
    """Build a subject, compile it, and measure its peak memory in GiB."""
    from harmax.train.language.step import LanguageStep
    from harmax.train.world import World

    step = LanguageStep(spec, World(0, 1, torch.device(options.device)), impl=impl)
    for _ in range(1 if options.smoke else 3):
        step(batches, spec.lr)
    states = [state for of in step.optimizer.state.values() for state in of.values()]
    held = sum(tensor.nbytes for tensor in (*step.model.parameters(), *states))
    return step, held / 2**30 + peak_mib(lambda: step(batches, spec.lr), options.device) / 2**10
