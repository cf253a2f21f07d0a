"""A training step of ResNet-50, as in `harmax vision imagenet`, with the harmonic head and with the linear head.

A step is forward, backward and SGD. It has 256 images of 224 x 224 on a GPU and 4 on a CPU, where 256 would take
minutes. Images are noise from a pool that is on the device already, so decoding and augmentation are not measured.
"""

# B images per step, C channels, H rows, W columns

import gc
import itertools
import statistics
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from harmax.bench.measure import peak_mib, percentiles, time_blocks
from harmax.bench.options import BenchOptions
from harmax.train.vision import VISION_PRESETS, VisionSpec

if TYPE_CHECKING:
    from harmax.train.vision.step import VisionStep

CLASSES = 1000
ON_GPU = VISION_PRESETS["imagenet"]
ON_CPU = replace(ON_GPU, batch=4, micro_batch=4, dtype="float32")
SMOKE = replace(VISION_PRESETS["smoke"], image_size=12)

Batches = Iterator[tuple[Tensor, Tensor]]
POOL = 4
"""Number of batches that both heads use in turn."""
HEADS: tuple[Literal["linear", "harmonic"], ...] = ("linear", "harmonic")


def rows(options: BenchOptions) -> Iterator[dict[str, Any]]:
    """A training step of ResNet-50: images per second and peak memory, harmonic head against linear head.

    One row per head. In each of `repeats` rounds both heads take a block of steps, with one wait for the device per
    block. Percentiles are over blocks, each divided by its number of steps. The peak is the memory of parameters,
    running statistics and momenta plus the largest further memory of a step. It is measured before the step is
    recorded, because a recorded step keeps that memory. A head that does not fit into memory has no row.
    """
    if options.threads:
        torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    spec = SMOKE if options.smoke else ON_GPU if device.type == "cuda" else ON_CPU
    count = 2 if options.smoke else 10 if device.type == "cuda" else 1
    torch.compiler.reset()
    # Memory is measured on the current GPU, if there is one.
    with torch.cuda.device(device if device.type == "cuda" else -1):
        batches, steps, peaks = make_batches(spec, device), {}, {}
        for head in HEADS:
            with suppress(torch.OutOfMemoryError):
                steps[head], peaks[head] = _warm_up(replace(spec, head=head), batches, options)
            gc.collect()  # free the memory of a head that did not fit
        repeats = 1 if options.smoke else options.repeats
        turns: dict[str, Callable[[], object]] = {
            head: partial(step, batches, spec.lr / 100) for head, step in steps.items()
        }
        times = time_blocks(turns, count, repeats, device)
    middle = {head: statistics.median(values) for head, values in times.items()}
    for head in steps:
        yield {
            "head": head,
            "images_per_s": round(1e3 * spec.batch / middle[head], 2),
            "peak_gib": round(peaks[head], 3),
            "speed_ratio": round(middle["linear"] / middle[head], 4) if "linear" in steps else None,
            "memory_ratio": round(peaks[head] / peaks["linear"], 4) if "linear" in steps else None,
            **{key: round(value, 3) for key, value in percentiles(times[head], "step_ms").items()},
            "model": spec.model,
            "images": spec.batch,
            "image_size": spec.image_size,
            "classes": CLASSES,
            "compile": spec.compile,
            "recorded": steps[head].records,
            "channels_last": spec.channels_last,
            "dtype": spec.dtype,
            "device": options.device,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            **({"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}),
        }


def make_batches(spec: VisionSpec, device: torch.device) -> Batches:
    """Return an endless cycle of images (B, C, H, W) and targets (B,), with all classes equally likely."""
    generator, size = torch.Generator(device).manual_seed(0), spec.image_size
    layout = torch.channels_last if spec.channels_last else torch.contiguous_format
    pool = []
    for _ in range(POOL):
        images = torch.randn(spec.micro_batch, 3, size, size, device=device, generator=generator)
        targets_B = torch.randint(CLASSES, (spec.micro_batch,), device=device, generator=generator)
        pool.append((images.contiguous(memory_format=layout), targets_B))
    return itertools.cycle(pool)


def _warm_up(spec: VisionSpec, batches: Batches, options: BenchOptions) -> tuple["VisionStep", float]:
    """Build a model, compile it, measure its peak memory in GiB, and record its step."""
    from harmax.train.vision.recording import PLAIN_CALLS
    from harmax.train.vision.step import VisionStep
    from harmax.train.world import World

    step = VisionStep(spec, [str(number) for number in range(CLASSES)], World(0, 1, torch.device(options.device)))
    take = partial(step, batches, spec.lr / 100)  # with noise as data, a small rate keeps the numbers ordinary
    for _ in range(1 if options.smoke else PLAIN_CALLS - 1):
        take()
    momenta = [tensor for state in step.optimizer.state.values() for tensor in state.values()]
    held = sum(tensor.nbytes for tensor in (*step.model.state_dict().values(), *momenta))
    peak = held / 2**30 + peak_mib(take, options.device) / 2**10
    if step.records:
        take()
    return step, peak
