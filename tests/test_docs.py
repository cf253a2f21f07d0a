"""The documents are a test: their code runs, their links lead somewhere, the API page says what the docstrings say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.datasets import load_iris
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

import circle
import harmax
import harmax_lab
from harmax.cli.main import main
from own_pictures import write_folder, write_network

ROOT = Path(__file__).parent.parent
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "docs/first_hour").glob("*.md"),
    *(ROOT / "lab").glob("**/*.md"),
    *(ROOT / "benchmarks").glob("**/*.md"),
]


# Full addresses of this repository's own files, as pages of a package index must have them.
OWN = re.compile(
    r"https://(?:github\.com/harmax/harmax/(?:blob|tree)|raw\.githubusercontent\.com/harmax/harmax)/main/(.+)"
)


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    """The targets of a page's links and pictures, code left out."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return re.findall(r"\]\(([^)]+)\)", text) + re.findall(r'src="([^"]+)"', text)


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def test_the_first_code_of_the_readme_trains_and_draws_its_shapes(capsys):
    exec(blocks("README.md")[0], names := {})
    x, y, head, shapes = (names[name] for name in ("x", "y", "head", "shapes"))
    assert (head(x).argmax(1) == y).float().mean() > 0.98
    drawn = capsys.readouterr().out.splitlines()[1:]
    assert ["".join(row.split()[index] for row in drawn) for index in range(3)] == shapes


def test_the_first_code_of_the_readme_needs_torch_and_harmax_alone():
    imported = re.findall(r"^(?:import|from) (.+?)(?: import .*)?$", blocks("README.md")[0], flags=re.MULTILINE)
    assert {name.split(".")[0] for line in imported for name in line.replace(" as F", "").split(", ")} <= {
        "torch",
        "harmax",
    }


def test_the_other_code_of_the_readme_runs():
    names = {"model": AutoModelForCausalLM.from_config(tiny_llama())}
    exec(blocks("README.md")[1], names)
    assert type(names["model"]).__name__ == "HarmonicLlamaForCausalLM"
    model = nn.Module()
    model.fc = nn.Linear(768, 100)
    names = {"model": model, "features": torch.randn(2, 768), "target": torch.tensor([1, 2])}
    exec(blocks("README.md")[2], names)
    torch.testing.assert_close(names["loss"], F.cross_entropy(names["log_probabilities"], names["target"]))
    assert model.fc is names["head"]


def test_the_code_of_the_readme_for_tables_runs(tmp_path, monkeypatch, capsys):
    flowers = load_iris(as_frame=True)
    table = flowers.data.iloc[::2].assign(species=flowers.target_names[flowers.target[::2]])
    table.to_csv(tmp_path / "flowers.csv", index=False)
    monkeypatch.chdir(tmp_path)
    exec(next(block for block in blocks("README.md") if "read_csv" in block), {})
    printed = capsys.readouterr().out
    for words in ("petal length (cm)", "setosa (", "nearest training rows", "answer from probability"):
        assert words in printed


def tiny_llama():
    return LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)


def test_the_film_of_the_readme_can_be_made(tmp_path, monkeypatch):
    monkeypatch.setenv("HARMAX_CORES", "1")  # a process for each loss would take longer to start than to train
    shares = circle.main(tmp_path / "circle.gif", seeds=(0, 52), epochs=3)
    assert set(shares) == {"linear", "harmonic"}
    with Image.open(tmp_path / "circle.gif") as film:
        assert film.n_frames == 4
        assert film.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    assert (ROOT / "docs/images/circle.gif").stat().st_size < 1.5e6


def test_the_code_of_the_guide_runs(tmp_path, monkeypatch, capsys):
    harmax_lab.run("toy_cases", smoke=True, seeds=1, folder=tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    words = ["--data", write_folder("photos", count=3), "--backbone", f"{write_network(tmp_path)}:Colors"]
    assert main(["vision", "pictures", *map(str, words), "--epochs", "1", "--output", "run3", "--device", "cpu"]) == 0
    pixels = torch.randint(256, (2, 16, 16, 3), dtype=torch.uint8)
    names = {
        "F": F,
        "torch": torch,
        "pixels": pixels,
        "features": torch.randn(4, 512),
        "target": torch.randint(10, (4,)),
        **vars(harmax),
    }
    linear = nn.Linear(512, 10)
    names |= {"linear": linear, "optimizer": torch.optim.SGD(linear.parameters()), "config": tiny_llama()}
    own = {'"run3/model"': f'"run3/model", backbone={words[3]!r}'}
    smaller = {
        **own,
        "range(20)": "range(4)",
        "epochs=1000": "epochs=2",
        "exponent=768": "exponent=12, n_embd=12, n_layer=1",
    }
    for code in blocks("docs/guide.md"):
        for large, small in smaller.items():
            code = code.replace(large, small)
        exec(code, names)
    assert "arm=harmonic" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in links(page):
        link, _, anchor = target.partition("#")
        own = OWN.match(link)
        if link.startswith("https://") and own is None:
            continue
        path = ROOT / own[1] if own else page.parent / link if link else page
        assert path.exists(), target
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path.read_text()), target


@pytest.mark.parametrize("page", ["README.md", "lab/README.md"])
def test_pages_that_a_package_index_shows_have_no_relative_links(page):
    assert not [target for target in links(ROOT / page) if not target.startswith("https://")]


def test_what_is_generated_is_current():
    done = subprocess.run([sys.executable, ROOT / "docs/build.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_names_both_commands():
    text = (ROOT / "README.md").read_text()
    assert "make reproduce" in text
    assert "make test" in text
