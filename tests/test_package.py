"""Promises of an installation: few public names, a light import, layers that point downward, complete metadata."""

import subprocess
import sys
from importlib.metadata import metadata, version
from pathlib import Path

import harmax

ROOT = Path(__file__).parent.parent
OPTIONAL = [
    "tyro",
    "rich",
    "safetensors",
    "matplotlib",
    "jinja2",
    "sklearn",
    "pandas",
    "transformers",
    "tiktoken",
    "ray",
    "triton",
    "jax",
    "flax",
]


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_import_pulls_in_no_optional_dependency():
    code = "import torch, sys; before = set(sys.modules); import harmax; print(*sorted(set(sys.modules) - before))"
    added = run(code).split()
    assert "harmax.heads" in added
    roots = {name.split(".")[0] for name in added}
    assert not roots & set(OPTIONAL)
    assert roots <= {"harmax"}, "importing harmax must add nothing to what `import torch` loads"


def test_imports_go_downward_only():
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_public_names_are_few_and_change_only_on_purpose():
    """A change here is a change for users: it needs an entry in CHANGELOG.md."""
    assert set(harmax.__all__) == {
        "HarmonicHead",
        "HarmonicLoss",
        "LearnableHarmonicHead",
        "LossOptions",
        "LossOutput",
        "__version__",
        "harmax",
        "harmonic_entropy",
        "harmonic_logits",
        "harmonic_loss",
        "log_harmax",
        "replace_head",
        "squared_distance",
    }


def test_every_public_name_is_documented():
    for name in harmax.__all__:
        assert getattr(harmax, name).__doc__, name


def test_metadata():
    assert version("harmax") == harmax.__version__
    requires = metadata("harmax").get_all("Requires-Dist")
    core = [line for line in requires if "extra ==" not in line]
    assert sorted(line.split(">")[0] for line in core) == ["numpy", "torch"]
