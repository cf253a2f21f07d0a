"""The settings of a head as whole numbers, so that they are saved with its weights and come back exactly.

A float buffer would not do: a cast of the model to bfloat16 turns 27.71 into 27.75. The bits of a float64, stored as an
int64, survive casts, safetensors and quantizers. The head computes with its Python numbers. The buffer is their copy.
"""

import math
import struct
import zlib
from typing import NamedTuple

import torch
from torch import Tensor

from harmax.kernels.operators import is_traced, is_wrapped, unwrapped

KEY = "settings"
"""Name of the buffer, and so the last part of its key in a state_dict."""


class Settings(NamedTuple):
    """What a head needs beside its parameters."""

    exponent: float
    """NaN where the exponent is a parameter."""
    softening: float
    scale: float
    """The factor on the features; NaN while it is not known."""

    @property
    def known_scale(self) -> float | None:
        """The factor on the features; None while it is not known."""
        return None if math.isnan(self.scale) else self.scale

    def encode(self) -> Tensor:
        """Return the numbers and a checksum as int64, (4,).

        The checksum is for averages of checkpoints, which are plausible numbers that no head was trained with.

        >>> Settings(27.71, 0.0, 1.0).encode().dtype
        torch.int64
        """
        numbers = struct.pack("<3d", *self)
        # On the CPU also where a context makes new tensors on another device.
        return torch.tensor([*struct.unpack("<3q", numbers), zlib.crc32(numbers)], device="cpu")

    @classmethod
    def decode(cls, stored: Tensor) -> "Settings":
        """Read what `encode` wrote; refuse anything else.

        >>> Settings.decode(Settings(27.71, 0.0, 1.0).encode()).exponent
        27.71
        """
        length = len(cls._fields) + 1
        if stored.dtype != torch.int64 or stored.shape != (length,):
            raise ValueError(
                f"the settings of a harmonic head must be {length} int64 numbers, got {stored.dtype} of "
                f"shape {tuple(stored.shape)}; average only the floating-point tensors of checkpoints, and take the "
                "settings of one of them."
            )
        *bits, checksum = stored.tolist()
        numbers = struct.pack("<3q", *bits)
        found = cls(*struct.unpack("<3d", numbers))
        sound = (math.isnan(found.exponent) or 0 < found.exponent < math.inf) and 0 <= found.softening < math.inf
        sound &= math.isnan(found.scale) or 0 < found.scale < math.inf
        if not sound or zlib.crc32(numbers) != checksum:
            raise ValueError(
                "the settings of a harmonic head must be as a head has saved them, got numbers that something has "
                "changed; average only the floating-point tensors of checkpoints, and take the settings of one of them."
            )
        return found


class Watch:
    """Notices when a buffer of settings holds something that its head did not write.

    It reads the buffer only after a change of it, because reading waits for a GPU.
    """

    def __init__(self) -> None:
        self._buffer: Tensor | None = None
        self._version = -1
        self._numbers: list[int] = []

    def note(self, buffer: Tensor, numbers: Tensor) -> None:
        """Remember what a buffer holds, given its numbers on the CPU."""
        self._buffer, self._version, self._numbers = buffer, _version(buffer), numbers.tolist()

    def changed(self, buffer: Tensor) -> Tensor | None:
        """Return the numbers of a buffer on the CPU if they are not the noted ones.

        >>> watch, buffer = Watch(), Settings(4.0, 0.0, 1.0).encode()
        >>> watch.note(buffer, buffer)
        >>> watch.changed(buffer) is None
        True
        >>> watch.changed(buffer.copy_(Settings(56.0, 0.0, 1.0).encode())) is None
        False
        """
        if is_wrapped(buffer):
            return self._changed_member(buffer)
        if buffer.is_meta or is_traced(buffer) or (buffer is self._buffer and _version(buffer) == self._version):
            return None
        numbers = buffer.detach().cpu()
        if numbers.tolist() == self._numbers:
            self.note(buffer, numbers)
            return None
        return numbers

    def _changed_member(self, buffer: Tensor) -> Tensor | None:
        """Look at the settings of all heads of an ensemble under vmap, because one head computes for all of them."""
        while is_wrapped(buffer):
            buffer = unwrapped(buffer)
        members = buffer.detach().cpu().reshape(-1, len(self._numbers))
        return next((numbers for numbers in members if numbers.tolist() != self._numbers), None)


def _version(buffer: Tensor) -> int:
    return -1 if buffer.is_inference() else buffer._version


def differences(saved: Settings, built: Settings) -> list[str]:
    """List the settings that a state_dict and a head do not share; a scale that the head does not know is no conflict.

    >>> differences(Settings(56.0, 0.0, 1.0), Settings(4.0, 0.0, 1.0))
    ['exponent=56']
    """

    def differ(one: float, other: float) -> bool:
        return not (one == other or (math.isnan(one) and math.isnan(other)))

    names = [name for name in ("exponent", "softening") if differ(getattr(saved, name), getattr(built, name))]
    if not math.isnan(built.scale) and not math.isnan(saved.scale) and saved.scale != built.scale:
        names.append("scale")
    return [f"{name}={getattr(saved, name):.17g}" for name in names]
