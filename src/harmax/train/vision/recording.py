"""A step recorded as one CUDA graph, which the host starts by one call instead of launching hundreds of kernels.

A ResNet's kernels are short, so launching them one by one often takes longer than running them.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from harmax.train.vision.data import Batches

PLAIN_CALLS = 3
"""Calls before one is recorded: in these, code is compiled, convolutions are chosen and momentum is made."""


class Recording:
    """Takes steps: the first few plainly, then one that is recorded, and from then on the recorded one.

    All of them count, and recorded steps give the same numbers as plain ones. A step may read only its batches and
    tensors that stay at their place, must not wait for the GPU, and returns one tensor.

    Args:
        micro_batches: micro-batches per step.
        device: the GPU.
    """

    def __init__(self, micro_batches: int, device: torch.device) -> None:
        self._micro_batches, self._device, self._calls = micro_batches, device, 0
        self._stream = torch.cuda.Stream(device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[tuple[Tensor, Tensor]] = []

    def __call__(self, take: Callable[[Batches], Tensor], batches: Batches) -> Tensor:
        """Take a step.

        Args:
            take: the step; it is passed every time, since a method kept here would hold its object in a cycle.
            batches: a step takes as many as it needs; all have the shape of the first.
        """
        self._calls += 1
        if self._calls <= PLAIN_CALLS:
            return self._beside(take, batches)
        given = [next(batches) for _ in range(self._micro_batches)]
        if self._graph is None:
            self._inputs = [(torch.empty_like(images), torch.empty_like(targets)) for images, targets in given]
        for kept, came in zip(self._inputs, given, strict=True):
            torch._foreach_copy_(kept, came)
        if self._graph is None:
            self._record(take)
        assert self._graph is not None
        self._graph.replay()
        return self._output.clone()  # the next step overwrites it

    def _beside(self, take: Callable[[Batches], Tensor], batches: Batches) -> Tensor:
        """Take a plain step on the stream that is recorded later, as torch requires."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            output = take(batches)
        current.wait_stream(self._stream)
        return output

    def _record(self, take: Callable[[Batches], Tensor]) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            # Only this thread: another one that reads pictures ahead may allocate pinned memory meanwhile.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._output = take(iter(self._inputs))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise RuntimeError(
                "this step cannot be recorded as a CUDA graph: something in it waits for the GPU or the like; turn "
                "`record` off (--no-record)."
            ) from error
        self._graph = graph
