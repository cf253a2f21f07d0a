"""The types that a user's type checker sees."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import harmax

PACKAGE = Path(harmax.__file__).parent


@pytest.mark.slow
def test_a_users_file_passes_mypys_strict_mode(tmp_path):
    pytest.importorskip("mypy")
    # Silent: errors inside harmax are the business of `make check`, here only the user's file counts.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", "public_api.py"],
        cwd=Path(__file__).parent,
        env={**os.environ, "MYPYPATH": str(PACKAGE.parent), "MYPY_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").is_file()
