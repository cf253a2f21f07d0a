"""`harmax.inspect` and its two commands import optional packages only when they need them."""

import subprocess
import sys

LATE = {"transformers", "matplotlib", "safetensors", "tiktoken", "sklearn", "PIL", "kornia"}


def test_no_optional_package_is_imported_early():
    code = "import sys, harmax.inspect, harmax.cli.geometry, harmax.cli.prototypes; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    modules = set(done.stdout.split())
    assert "harmax.inspect.geometry" in modules
    assert not LATE & modules
    assert not any(module.startswith("harmax_lab") for module in modules)
