"""A step recorded as one CUDA graph: the host then starts it by one call, where it had handed out hundreds of kernels.

A ResNet's kernels are short, and a processor that hands them out one by one is often the slower of the two.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from harmax.train.vision.data import Batches

PLAIN_CALLS = 3
"""Calls before one is recorded: code is compiled, convolutions are chosen and momenta are made in them."""


class Recording:
    """Takes steps: the first few as they are, then one that is recorded, and from there on what was recorded.

    All of them count, and the recorded ones give the numbers of the plain ones. A step must read nothing that changes
    but its batches and tensors that stay where they are, must not wait for the GPU, and gives one tensor.

    Args:
        turns: micro-batches of a step.
        device: the GPU.
    """

    def __init__(self, turns: int, device: torch.device) -> None:
        self._turns, self._device, self._calls = turns, device, 0
        self._stream = torch.cuda.Stream(device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[tuple[Tensor, Tensor]] = []

    def __call__(self, take: Callable[[Batches], Tensor], batches: Batches) -> Tensor:
        """Take a step.

        Args:
            take: the step; it is handed in every time, since a method kept here would hold its object in a cycle.
            batches: as many are taken as a step has; all of one shape, that of the first.
        """
        self._calls += 1
        if self._calls <= PLAIN_CALLS:
            return self._beside(take, batches)
        given = [next(batches) for _ in range(self._turns)]
        if self._graph is None:
            self._inputs = [(torch.empty_like(images), torch.empty_like(targets)) for images, targets in given]
        for kept, came in zip(self._inputs, given, strict=True):
            torch._foreach_copy_(kept, came)
        if self._graph is None:
            self._record(take)
        assert self._graph is not None
        self._graph.replay()
        return self._output.clone()  # the next step writes over it

    def _beside(self, take: Callable[[Batches], Tensor], batches: Batches) -> Tensor:
        """Take a plain step on the stream that is recorded later, as torch asks for."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            output = take(batches)
        current.wait_stream(self._stream)
        return output

    def _record(self, take: Callable[[Batches], Tensor]) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            # Of this thread alone: one that reads pictures ahead may ask for pinned memory meanwhile.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._output = take(iter(self._inputs))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise RuntimeError(
                "a step must be recordable as a CUDA graph, got one in which something waits for the GPU or the like; "
                "turn `record` off (--no-record) to take every step as it is."
            ) from error
        self._graph = graph
