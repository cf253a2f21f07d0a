"""What a frozen network computes from pictures, kept in the output folder and verified before it is used again."""

# N pictures, B pictures of a batch, D features

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from harmax.errors import DamagedError, needs
from harmax.files import check_ordinary, digest, read_json, write_atomically, write_json
from harmax.train.pictures.backbones import Backbone
from harmax.train.vision.pictures import Pictures

ARRAYS, INDEX = "features.safetensors", "features.json"
SAVE_EVERY = 512
"""Pictures after which the features so far are kept, so that a stopped run continues there."""


class FeatureStore:
    """Features by the checksum of their picture, for one network.

    Args:
        folder: where they are kept: `features.safetensors`, and `features.json` with the checksums of the pictures, of
            the network and of the first file.
        network: the checksum of the network.

    Attributes:
        caution: why stored features were not used, or an empty text.
    """

    def __init__(self, folder: Path, network: str) -> None:
        self._folder, self._network = folder, network
        self._rows: dict[str, np.ndarray] = {}
        self.caution = ""
        if (folder / INDEX).is_file():
            try:
                self._rows = self._read()
            except DamagedError as error:
                self.caution = f"{error} The features are computed again."

    def _read(self) -> dict[str, np.ndarray]:
        with needs("run"):
            from safetensors.numpy import load

        index = read_json(self._folder / INDEX)
        try:
            if index["network"] != self._network:
                return {}  # of another backbone or image size
            data = check_ordinary(self._folder / ARRAYS).read_bytes()
            if digest(data) != index["digest"]:
                raise DamagedError(f"{self._folder / ARRAYS} does not have the checksum that {INDEX} names.")
            rows = load(data)["features"]
            return dict(zip(index["pictures"], rows, strict=True))
        except (KeyError, TypeError, ValueError, OSError) as error:
            if isinstance(error, DamagedError):
                raise
            raise DamagedError(f"{self._folder / INDEX} cannot be used ({error!r}).") from error

    def _write(self) -> None:
        with needs("run"):
            from safetensors.numpy import save

        data = save({"features": np.stack([*self._rows.values()])})
        write_atomically(self._folder / ARRAYS, data)
        write_json(
            self._folder / INDEX,
            {"network": self._network, "digest": digest(data), "pictures": [*self._rows]},
        )

    def compute(
        self,
        backbone: Backbone,
        pictures: Pictures,
        sums: Sequence[str],
        *,
        micro_batch: int,
        device: torch.device,
        tell: Callable[[int, int], object] = lambda done, of: None,
    ) -> Tensor:
        """Return the features of pictures, (N, D), float32; those that are kept already are not computed.

        Args:
            backbone: the network, on its device.
            pictures: squares of its size.
            sums: the pictures' checksums.
            micro_batch: pictures at a time.
            device: where the network is.
            tell: is called with the number of pictures done and of all that must be computed.
        """
        missing = {checksum: place for place, checksum in enumerate(sums) if checksum not in self._rows}
        places, kept = list(missing.values()), 0
        for start in range(0, len(places), micro_batch):
            tell(start, len(places))
            batch = places[start : start + micro_batch]
            x_BD = compute_features(backbone, np.stack([read_square(pictures, place) for place in batch]), device)
            self._rows |= {sums[place]: row for place, row in zip(batch, x_BD.cpu().numpy(), strict=True)}
            if (start + len(batch)) // SAVE_EVERY > kept:
                kept += 1
                self._write()
        if places:
            self._write()
        return torch.from_numpy(np.stack([self._rows[checksum] for checksum in sums]))


@torch.no_grad()
def compute_features(backbone: Backbone, squares: np.ndarray, device: torch.device) -> Tensor:
    """Return the features of squares (B, H, W, C), uint8, as (B, D), float32."""
    x_BD: Tensor = backbone.module(backbone.preparation.prepare(torch.from_numpy(squares).to(device)))
    if not x_BD.isfinite().all():
        raise ValueError(
            f"`backbone` {backbone.name} must compute finite features, got NaN or infinity; check its weights."
        )
    return x_BD.float()


def read_square(pictures: Pictures, place: int, epoch: int = 0) -> np.ndarray:
    """Return one picture as a square, (H, W, C), uint8."""
    sample = pictures[place, epoch]
    if isinstance(sample, str):
        raise DamagedError(sample)
    return sample[0]
