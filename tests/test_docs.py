"""The documents are a test: their code runs, their links lead somewhere, the API page says what the docstrings say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import harmax
import harmax_lab

ROOT = Path(__file__).parent.parent
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "lab").glob("**/*.md"),
    *(ROOT / "benchmarks").glob("**/*.md"),
]


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def test_the_first_code_of_the_readme_trains():
    names: dict[str, object] = {}
    torch.manual_seed(0)
    exec(blocks("README.md")[0], names)
    x, y, head = names["x"], names["y"], names["head"]
    assert (head(x).argmax(1) == y).float().mean() > 0.93


def test_the_other_code_of_the_readme_runs():
    model = nn.Module()
    model.lm_head = nn.Linear(768, 100, bias=False)
    names = {"model": model, "features": torch.randn(2, 768), "target": torch.tensor([1, 2])}
    exec(blocks("README.md")[1].replace("50257", "100"), names)
    torch.testing.assert_close(names["loss"], F.cross_entropy(names["logits"], names["target"]))
    assert model.lm_head is names["head"]


def test_the_code_of_the_guide_runs(tmp_path, monkeypatch, capsys):
    harmax_lab.run("toy_cases", smoke=True, seeds=1, folder=tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    names = {"F": F, "torch": torch, "features": torch.randn(4, 512), "target": torch.randint(10, (4,)), **vars(harmax)}
    smaller = {"range(20)": "range(4)", "epochs=1000": "epochs=2", "exponent=768": "exponent=12, n_embd=12, n_layer=1"}
    for code in blocks("docs/guide.md"):
        for large, small in smaller.items():
            code = code.replace(large, small)
        exec(code, names)
    assert "arm=harmonic" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        assert link.startswith("https://") or (page.parent / link).exists(), link


def test_what_is_generated_is_current():
    done = subprocess.run([sys.executable, ROOT / "docs/build.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_names_both_commands():
    text = (ROOT / "README.md").read_text()
    assert "make reproduce" in text
    assert "make test" in text
