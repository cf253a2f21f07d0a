"""The state of a training on disk, written whole or not at all."""

import time
import warnings
from pathlib import Path

from torch import Tensor

from harmax.errors import needs
from harmax.files import write_atomically

EVERY_SECONDS = 30.0


class Checkpoint:
    """One file that holds the last state; it is asked to save after every block and does so every half minute.

    Args:
        path: the file; its folder is made when first written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = time.monotonic()
        with needs("run"):
            import safetensors.torch  # noqa: F401  (before the work, not after half a minute of it)

    def load(self) -> dict[str, Tensor] | None:
        """Return what was saved last, or None; a file that cannot be read is told, and the training starts over."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        if not self.path.exists():
            return None
        try:
            return load_file(self.path)
        except (SafetensorError, OSError) as error:
            warnings.warn(f"the state in {self.path} is unreadable ({error}); training starts over.", stacklevel=2)
            return None

    @property
    def due(self) -> bool:
        """Whether it is time to save again."""
        return time.monotonic() - self._last >= EVERY_SECONDS

    def save(self, tensors: dict[str, Tensor]) -> None:
        """Write the state."""
        from safetensors.torch import save

        write_atomically(self.path, save({name: tensor.contiguous() for name, tensor in tensors.items()}))
        self._last = time.monotonic()

    def remove(self) -> None:
        """Forget it: the training is over."""
        self.path.unlink(missing_ok=True)
