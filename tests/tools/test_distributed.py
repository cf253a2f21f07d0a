"""DDP and FSDP2 on two processes: the same training as one process, and one scale on all ranks."""

import itertools
from pathlib import Path
from typing import Any

import torch

from harmax import HarmonicHead
from tools.ranks import HEADS, RANKS, WRAPPINGS, Classifier, main, train


def test_two_processes_train_as_one_does(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(main, (tmp_path,), nprocs=RANKS)
    found = torch.load(tmp_path / "found.pt", weights_only=True)
    for wrapping, kind in itertools.product(WRAPPINGS, HEADS):
        assert_as_one_process(found[wrapping, kind], kind, f"{wrapping}, {kind}")


def assert_as_one_process(got: dict[str, Any], kind: str, case: str) -> None:
    alone = Classifier(kind)
    losses = train(alone)
    scale = alone.head.scale
    assert scale is not None
    assert got["scales"] == [scale] * RANKS, case
    torch.testing.assert_close(got["losses"], losses, rtol=1e-4, atol=1e-5, msg=case)
    state = {key.removeprefix("module."): value for key, value in got["state"].items()}
    assert state.keys() == alone.state_dict().keys(), case
    for key, value in alone.state_dict().items():
        torch.testing.assert_close(state[key], value, rtol=1e-3, atol=1e-4, msg=f"{case}: {key}")
    assert got["resumed"] == scale, case
    if kind != "learned":
        assert HarmonicHead.from_state_dict(state, "head.").scale == scale, case
