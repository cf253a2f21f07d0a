"""Random numbers as a function of a key: the same run draws the same numbers, alone or among a thousand others.

torch's generators hand out one stream, so what a run draws depends on what was drawn before it. Here a number is a hash
of (key, index); keys are int64 tensors of any shape with values in 0 .. 2^32 - 1, so they stack, vmap and compile.
Multipliers stay below 2^31: with values below 2^32 no product overflows int64, which C++ leaves undefined.
"""

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_SPREAD = 0x5851F42D  # odd: distinct indices stay distinct


def scramble(value: Tensor) -> Tensor:
    """Hash integers in 0 .. 2^32 - 1 to integers of the same range, one to one.

    The multipliers are those of a 32-bit mixer found by search for low bias (C. Wellons, hash-prospector).
    """
    value = ((value ^ (value >> 16)) * 0x21F0AAAD) & _MASK
    value = ((value ^ (value >> 15)) * 0x735A2D97) & _MASK
    return value ^ (value >> 15)


def derive_key(key: Tensor, data: Tensor | int) -> Tensor:
    """Return another key for each pair of key and data (0 .. 2^31 - 1): per epoch, per step, per layer.

    >>> derive_key(torch.tensor(1), 0) == derive_key(torch.tensor(1), 1)
    tensor(False)
    """
    return scramble(scramble(key) ^ ((data * _SPREAD + 1) & _MASK))


def random_bits(key: Tensor, index: Tensor) -> Tensor:
    """Return an integer in 0 .. 2^32 - 1 for each key and index (0 .. 2^31 - 1), which broadcast.

    One round only, so give keys that `derive_key` has mixed. More rounds make torch.compile slow: it writes an
    expression out at every use, and a round uses its input eight times over. No multiple of the index either: compiled
    code would count it in int32.
    """
    return scramble(index ^ key)


class Noise:
    """The random numbers of one pass through a model: each call takes the next stretch of the key's sequence.

    Stretches have a fixed length, so what one call draws does not depend on how much another did.

    Args:
        key: 0-d int64 tensor.
    """

    STRETCH = 2**22

    def __init__(self, key: Tensor) -> None:
        self.key, self.calls = key, 0

    def bits(self, shape: torch.Size) -> Tensor:
        """Return integers in 0 .. 2^32 - 1."""
        count = shape.numel()
        if count > self.STRETCH:
            raise ValueError(
                f"`shape` must have at most {self.STRETCH} elements, got {tuple(shape)}; use smaller batches."
            )
        start = self.calls * self.STRETCH
        self.calls += 1
        return random_bits(self.key, torch.arange(start, start + count, device=self.key.device)).reshape(shape)


def dropout(input: Tensor, rate: float, noise: Noise | None) -> Tensor:
    """Set a share `rate` of the entries to 0 and scale the others by 1 / (1 - rate); without noise nothing happens.

    >>> dropout(torch.ones(2, 5), 0.5, Noise(derive_key(torch.tensor(7), 0)))
    tensor([[2., 0., 2., 0., 2.],
            [0., 2., 2., 2., 0.]])
    """
    if noise is None or rate == 0:
        return input
    kept = noise.bits(input.shape) >= int(rate * 2**32)
    return torch.where(kept, input / (1 - rate), 0.0)
