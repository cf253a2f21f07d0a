"""The digits of scikit-learn."""

from pathlib import Path

import numpy as np
import pytest

from harmax.data.images import load_images


def test_digits_need_no_folder_and_are_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    monkeypatch.setenv("HARMAX_DATA", str(tmp_path / "nowhere"))
    sides = [load_images("digits", split) for split in ("train", "test")]
    bundle = load_digits()
    pixels = np.concatenate([side.pixels for side in sides])
    np.testing.assert_array_equal(np.rint(pixels * (16 / 255)), bundle.images)
    np.testing.assert_array_equal(np.concatenate([side.labels for side in sides]), bundle.target)
    assert [len(side.labels) for side in sides] == [1437, 360]
    assert pixels.max() == 255
