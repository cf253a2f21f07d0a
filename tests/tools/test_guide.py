"""The code of the guide that needs other people's packages (its fences say `py`) runs."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tools.torchvision_stub import torchvision_for_timm

GUIDE = Path(__file__).parents[2] / "docs/guide.md"
pytestmark = pytest.mark.filterwarnings("ignore")  # of other people's packages, as they come


def test_the_code_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("timm", "pytorch_metric_learning", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    import onnxruntime

    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {
        "torch": torch,
        "F": F,
        "images": torch.randn(4, 3, 32, 32),
        "target": torch.arange(4),
        "embeddings": torch.randn(4, 512),
        "labels": torch.arange(4),
    }
    with torchvision_for_timm():
        import timm  # noqa: F401

    blocks = re.findall(r"```py\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 3
    for code in blocks:
        exec(code, names)
    session = onnxruntime.InferenceSession("model.onnx")
    found = session.run(None, {session.get_inputs()[0].name: names["images"][:3].numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(found), names["model"](names["images"][:3]), rtol=0, atol=1e-4)
