"""Features are computed once per picture and network, and never used if they do not match their checksum."""

from pathlib import Path

import pytest
import torch

from harmax.data.images.picture_list import open_pictures
from harmax.train.pictures import features as module
from harmax.train.pictures.backbones import Backbone, load_backbone
from harmax.train.pictures.features import ARRAYS, INDEX, FeatureStore
from harmax.train.vision.pictures import whole_squares
from own_pictures import write_folder, write_network

CPU = torch.device("cpu")


class Counting(torch.nn.Module):
    """A network that counts the pictures it has seen."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network, self.seen = network, 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen += len(images)
        found: torch.Tensor = self.network(images)
        return found


def compute(folder: Path, root: Path, *, network: str = "one") -> tuple[torch.Tensor, int, str]:
    backbone = load_backbone(f"{write_network(root.parent / 'nets')}:Colors")
    counting = Counting(backbone.module)
    pictures = open_pictures(root).pictures
    store = FeatureStore(folder, network)
    x = store.compute(
        Backbone("counting", counting, backbone.preparation),
        whole_squares(pictures.open_side("train"), 16),
        [one.sha256 for one in pictures.train],
        micro_batch=4,
        device=CPU,
    )
    return x, counting.seen, store.caution


def test_only_new_pictures_are_computed(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "p", count=5)
    first, seen, caution = compute(tmp_path / "store", root)
    assert (first.shape, seen, caution) == ((12, 8), 12, "")
    again, seen, _ = compute(tmp_path / "store", root)
    assert seen == 0
    assert again.equal(first)
    write_folder(root, "{name}/{index}_more.png", count=6)  # five of the six are known already
    more, seen, _ = compute(tmp_path / "store", root)
    assert 0 < seen <= 6
    assert len(more) > len(first)
    assert compute(tmp_path / "store", root, network="another")[1] > 12


def test_a_stopped_run_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAVE_EVERY", 4)
    root = write_folder(tmp_path / "p", count=5)
    real, calls = module.compute_features, []

    def stop(*arguments: object) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "compute_features", stop)
    with pytest.raises(KeyboardInterrupt):
        compute(tmp_path / "store", root)
    monkeypatch.setattr(module, "compute_features", real)
    assert compute(tmp_path / "store", root)[1] == 4  # eight of twelve are kept


@pytest.mark.parametrize("file", [ARRAYS, INDEX])
def test_damaged_features_are_computed_again_and_it_says_so(tmp_path: Path, file: str) -> None:
    root = write_folder(tmp_path / "p", count=3)
    first, _, _ = compute(tmp_path / "store", root)
    path = tmp_path / "store" / file
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))
    if file == INDEX:
        path.write_text("{}")
    again, seen, caution = compute(tmp_path / "store", root)
    assert seen == 6
    assert again.equal(first)
    assert "The features are computed again." in caution
    assert str(tmp_path / "store") in caution
