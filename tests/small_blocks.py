"""Blocks and tiles so small that a small problem has several of them, and such problems, for the Triton kernels."""

import numpy as np
import pytest
import torch

from harmax.kernels.problem import Block
from harmax.kernels.triton import modes, tiles

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(tiles, "TILE", {"BM": 16, "BN": 16, "num_warps": 4})
    monkeypatch.setattr(tiles, "NEAR_TILE", {"BM": 4, "BN": 32})
    monkeypatch.setattr(tiles, "DW_COLUMNS", 48)
    monkeypatch.setattr(tiles, "PITCH", 16)
    monkeypatch.setattr(modes, "block", small_block)
    with np.errstate(all="ignore"):  # a GPU says nothing either when it divides by zero
        yield


def small_block(mode, tokens, features, classes):
    return {"fast": Block(tokens, classes), "balanced": Block(16, classes)}.get(
        mode, Block(max(1, min(24, tokens)), 32)
    )


def error(got, want):
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


def draw(rows=40, features=20, classes=70, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x, w = (torch.randn(count, features, generator=generator).to(dtype) for count in (rows, classes))
    return x, w, torch.randint(classes, (rows,), generator=generator)
