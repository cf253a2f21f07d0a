"""A small folder of token shards."""

from pathlib import Path

import numpy as np
import pytest

from harmax.data.text import TokenShards, unpack_corpus
from token_shards import write_shards


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    # Every token is another one, so that a window says where it comes from.
    write_shards(tmp_path, train_0=np.arange(331), train_1=np.arange(1000, 1170), val=np.arange(7))
    unpack_corpus(tmp_path, tmp_path)
    return tmp_path


@pytest.fixture
def shards(folder: Path) -> TokenShards:
    return TokenShards(folder, "train")
