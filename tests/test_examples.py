"""Every example runs and shows what it says it shows."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
TESTS = [Path(__file__), Path(__file__).parent / "tools/test_examples.py"]


def test_digits(tmp_path):
    main = runpy.run_path(str(EXAMPLES / "digits.py"))["main"]
    accuracies = main(steps=150, output=str(tmp_path / "digits.svg"))
    assert accuracies["harmonic"] > 0.9
    assert accuracies["linear"] > 0.9
    assert "<svg" in (tmp_path / "digits.svg").read_text()


def test_tied_language_model():
    main = runpy.run_path(str(EXAMPLES / "tied_language_model.py"))["main"]
    assert main(steps=120) > 0.6


def test_harmonize_trainer():
    losses = runpy.run_path(str(EXAMPLES / "harmonize_trainer.py"))["main"](steps=60)
    assert losses["harmonic, at once"] == pytest.approx(losses["linear"], abs=0.02)
    assert losses["harmonic, without softening"] < losses["linear"]


def test_accelerate_digits(tmp_path):
    found = runpy.run_path(str(EXAMPLES / "accelerate_digits.py"))["main"](epochs=4, output=str(tmp_path / "state"))
    assert found["with a pause"] == pytest.approx(found["without a pause"], abs=1e-6)
    assert found["with a pause"] < 0.6


def test_lattice(tmp_path):
    main = runpy.run_path(str(EXAMPLES / "lattice.py"))["main"]
    residuals = main(epochs=40, seeds=2, output=str(tmp_path / "lattice.svg"))
    assert residuals["harmonic"] < 0.05 < residuals["linear"]
    assert "<svg" in (tmp_path / "lattice.svg").read_text()


@pytest.mark.slow
def test_tensor_parallel():
    path = EXAMPLES / "tensor_parallel.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*torchrun, str(path), "--steps", "40"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    printed = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    losses = runpy.run_path(str(path))["main"](steps=40)
    assert printed == pytest.approx([losses[0], losses[-1]], rel=1e-5, abs=6e-6)
    assert losses[-1] < losses[0]


def test_prototypes(tmp_path):
    main = runpy.run_path(str(EXAMPLES / "prototypes.py"))["main"]
    found = main(steps=100, output=str(tmp_path / "decisions.png"))
    assert found["accuracy"] > 0.85
    assert found["clearest"] > found["accuracy"] + 0.02
    assert found["own"] > 0.95
    assert (tmp_path / "decisions.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_opens_with_how_to_run_it(path):
    opening = path.read_text().split('"""')[1]
    assert f"python examples/{path.name}" in opening
    assert "pip install" in opening
    assert any(f"def test_{path.stem}(" in tests.read_text() for tests in TESTS)
