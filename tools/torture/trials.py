"""Every trial, by name."""

from torture import draws
from torture.table import Trial

TRIALS: dict[str, Trial] = {
    "draws": Trial(draws.on_cpu, "drawn calls of eager and of chunked against float64", calls=2, batch=500),
    "draws-triton": Trial(
        draws.in_triton, "the same of the Triton kernels, in their interpreter", prepare=draws.use_triton_interpreter
    ),
    "draws-gpu": Trial(draws.on_gpu, "the same of triton, chunked and eager on a GPU", calls=3, batch=100),
}
