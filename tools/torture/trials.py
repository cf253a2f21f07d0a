"""Every trial, by name."""

from functools import partial

from torture import draws, faults, hostile, works
from torture.table import Trial

FAULTS = {
    "kill": (faults.kill, "a random kill, and resuming"),
    "pair": (faults.pair, "two processes at once, one of which may be killed"),
    "disk": (faults.full_disk, "a full disk, and resuming"),
    "power": (faults.lose_power, "a loss of power, which takes what was not synced, and resuming"),
}
TRIALS: dict[str, Trial] = {
    "draws": Trial(draws.on_cpu, "drawn calls of eager and of chunked against float64", calls=2, batch=500),
    "draws-triton": Trial(draws.in_triton, "the same of the Triton kernels in float32, in their interpreter"),
    "draws-gpu": Trial(draws.on_gpu, "the same of triton, chunked and eager on a GPU", calls=3, batch=100),
    **{
        f"{fault}-{task}": Trial(partial(case, task), f"{about}: {task}")
        for fault, (case, about) in FAULTS.items()
        for task in works.TASKS
    },
    "hostile": Trial(hostile.case, "a file that is changed at random, and read", batch=20),
}
