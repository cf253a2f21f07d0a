"""The state of a training on disk."""

import time
import warnings
from pathlib import Path

from torch import Tensor

from harmax.errors import needs
from harmax.files import write_atomically

EVERY_SECONDS = 30.0


class Checkpoint:
    """One file with the last state.

    Args:
        path: of the file. Its folder is made when the file is first written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = time.monotonic()
        with needs("run"):
            import safetensors.torch  # noqa: F401  (a missing package must show before the work)

    def load(self) -> dict[str, Tensor] | None:
        """Return what was saved last, or None. If the file cannot be read, warn and return None."""
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
        """Whether the last state was saved long enough ago."""
        return time.monotonic() - self._last >= EVERY_SECONDS

    def save(self, tensors: dict[str, Tensor]) -> None:
        """Write the state."""
        from safetensors.torch import save

        write_atomically(self.path, save({name: tensor.contiguous() for name, tensor in tensors.items()}))
        self._last = time.monotonic()

    def remove(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)
